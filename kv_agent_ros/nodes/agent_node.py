"""The robot's agent as a node: execute_task with feedback and confirmed cancel, and the thin task services."""

from dataclasses import dataclass
import threading
import traceback

from nav_msgs.msg import Path
from rclpy.impl.rcutils_logger import RcutilsLogger

from kv_agent_ros.action import ExecuteTask
from kv_agent_ros.agent.route import planned_route
from kv_agent_ros.agent.task_queue import RunTask, TaskBook
from kv_agent_ros.build.agent import open_agent
from kv_agent_ros.config import AgentConfig
from kv_agent_ros.deadline import Deadline
from kv_agent_ros.nodes.agent_services import TaskService
from kv_agent_ros.robot.plan import Plan
from kv_agent_ros.robot.skills import HOUSEHOLD_SKILLS
from kv_agent_ros.ros.clients import RosMemory, RosPlanner, RosSessionCache
from kv_agent_ros.ros.endpoints import Endpoints
from kv_agent_ros.ros.gate_client import RosGate
from kv_agent_ros.ros.markers import path_message
from kv_agent_ros.ros.metrics import to_metrics
from kv_agent_ros.ros.qos import STATE
from kv_agent_ros.ros.runtime import ManagedNode, NodeSpec, run_node
from kv_agent_ros.ros.world_client import RosWorld
from kv_agent_ros.srv import CancelTask, GetTask, ListTasks, SubmitTask

MEMORY_TIMEOUT_S = 10.0
GATE_TIMEOUT_S = 10.0
CACHE_TIMEOUT_S = 1.0
POLL_S = 0.2


@dataclass(frozen=True, kw_only=True, slots=True)
class AgentCore:
    """The robot's tasks."""

    book: TaskBook

    def close(self) -> None:
        """Every task is asked to end."""
        self.book.cancel_all()


class Worker:
    """The one thread that runs the robot's tasks, in their order."""

    def __init__(self, book: TaskBook, robot_id: str, run: RunTask, logger: RcutilsLogger) -> None:
        self._book = book
        self._robot_id = robot_id
        self._run = run
        self._logger = logger
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._work, name='tasks', daemon=True)
        self._thread.start()

    def close(self) -> None:
        """End the running task; wait a moment for its robot to stand still."""
        self._ended.set()
        self._book.cancel_all()
        self._thread.join(3.0)

    def _work(self) -> None:
        while not self._ended.is_set():
            try:
                self._book.work(self._robot_id, self._run, Deadline(POLL_S))
            except Exception:  # a bug must not end the thread that stops the robot
                self._logger.error(f'a task failed:\n{traceback.format_exc()}')


def open_core(config: AgentConfig, node: ManagedNode) -> AgentCore:
    """An empty task book."""
    return AgentCore(book=TaskBook(max_queued=config.max_queue))


def serve(core: AgentCore, config: AgentConfig, endpoints: Endpoints) -> None:
    """The agent around its clients, then what it offers."""
    shared = config.shared_namespace
    world = RosWorld(endpoints, shared, HOUSEHOLD_SKILLS)
    agent = open_agent(
        config,
        planner=RosPlanner(endpoints, shared, config.plan_timeout_s),
        gate=RosGate(endpoints, GATE_TIMEOUT_S),
        world=world,
        memory=RosMemory(endpoints, shared, MEMORY_TIMEOUT_S),
        cache=RosSessionCache(endpoints, shared, CACHE_TIMEOUT_S),
        clock=endpoints.now_s,
    )
    path = endpoints.publisher(Path, 'planned_path', STATE)

    def show(plan: Plan) -> None:
        route = planned_route(plan, world.snapshot(), config.robot_id, world.predict)
        path.publish(path_message(route, endpoints.now_s()))

    logger = endpoints.node.get_logger()
    service = TaskService(agent, core.book, config.robot_id, show, logger)
    worker = Worker(core.book, config.robot_id, service.run, logger)
    endpoints.on_close(worker.close)
    endpoints.action(ExecuteTask, '~/execute_task', service.execute)
    endpoints.service(SubmitTask, 'submit_task', service.submit)
    endpoints.service(GetTask, 'get_task', service.get)
    endpoints.service(CancelTask, 'cancel_task', service.cancel)
    endpoints.service(ListTasks, 'list_tasks', service.list_tasks)
    endpoints.stats(lambda: to_metrics(service.metrics()))


SPEC = NodeSpec(name='agent_node', config=AgentConfig, open=open_core, serve=serve)


def main() -> int:
    """Entry point."""
    return run_node(SPEC)
