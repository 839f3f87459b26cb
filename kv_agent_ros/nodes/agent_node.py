"""The robot's agent as a node: execute_task with feedback and confirmed cancel, and the thin task services."""

from dataclasses import dataclass
import threading
import time
import uuid

from rclpy.action.server import ServerGoalHandle

from kv_agent_ros.action import ExecuteTask
from kv_agent_ros.agent.robot_agent import RobotAgent
from kv_agent_ros.agent.task import TaskPhase, TaskProgress, TaskResult
from kv_agent_ros.agent.task_book import TaskBook, TaskEntry
from kv_agent_ros.build.agent import open_agent
from kv_agent_ros.config import AgentConfig
from kv_agent_ros.errors import Outcome, Status
from kv_agent_ros.inspector.metrics import Metric
from kv_agent_ros.msg import TaskStatus
from kv_agent_ros.robot.skills import HOUSEHOLD_SKILLS
from kv_agent_ros.ros.clients import RosMemory, RosPlanner
from kv_agent_ros.ros.conversions.task import fill_feedback, fill_task_result
from kv_agent_ros.ros.conversions.values import result_to_msg
from kv_agent_ros.ros.endpoints import Endpoints
from kv_agent_ros.ros.gate_client import RosGate
from kv_agent_ros.ros.goals import cancel_with
from kv_agent_ros.ros.metrics import to_metrics
from kv_agent_ros.ros.runtime import ManagedNode, NodeSpec, run_node
from kv_agent_ros.ros.world_client import RosWorld
from kv_agent_ros.srv import CancelTask, GetTask, ListTasks, SubmitTask

MEMORY_TIMEOUT_S = 10.0
GATE_TIMEOUT_S = 10.0
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

    def __init__(self, agent: RobotAgent, book: TaskBook) -> None:
        self._agent = agent
        self._book = book
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
            for entry in self._book.take(POLL_S):
                self._book.finish(self._run(entry))

    def _run(self, entry: TaskEntry) -> TaskResult:
        def tell(progress: TaskProgress) -> None:
            self._book.note(progress)
            entry.listener(progress)

        run = self._agent.rehearse if entry.is_dry_run else self._agent.run
        try:
            return run(entry.task, entry.deadline, tell)
        except Exception as error:  # a bug must not end the thread that stops the robot
            message = f'{type(error).__name__}: {error}'
            return TaskResult(task_id=entry.task.task_id, outcome=Outcome.INTERNAL, message=message)


class TaskService:
    """The callbacks."""

    def __init__(self, book: TaskBook, robot_id: str) -> None:
        self._book = book
        self._robot_id = robot_id

    def execute(self, goal: ServerGoalHandle, result: ExecuteTask.Result) -> Status:
        """execute_task."""
        asked = goal.request
        submit = self._book.submit_dry_run if asked.dry_run else self._book.submit
        if asked.robot_id not in ('', self._robot_id):
            return self._not_here(asked.robot_id)

        def tell(progress: TaskProgress) -> None:
            feedback = ExecuteTask.Feedback()
            fill_feedback(progress, feedback)
            goal.publish_feedback(feedback)

        entry = submit(asked.instruction, self._robot_id, asked.timeout_s, tell)
        with cancel_with(goal, entry.deadline):
            while not entry.is_done:
                entry = self._book.wait(entry.task.task_id, POLL_S)
                if entry.deadline.is_canceled and entry.phase is TaskPhase.QUEUED:
                    entry = self._book.cancel(entry.task.task_id)
        fill_task_result(entry.results[0], result)
        return Status(outcome=entry.results[0].outcome, message=entry.results[0].message)

    def submit(self, request: SubmitTask.Request, response: SubmitTask.Response) -> Status:
        """submit_task."""
        if request.robot_id not in ('', self._robot_id):
            return self._not_here(request.robot_id)
        response.task_id = self._book.submit(request.instruction, self._robot_id, request.timeout_s).task.task_id
        return Status()

    def get(self, request: GetTask.Request, response: GetTask.Response) -> None:
        """get_task."""
        response.status = _status_message(self._book.get(request.task_id))

    def cancel(self, request: CancelTask.Request, response: CancelTask.Response) -> None:
        """cancel_task."""
        self._book.cancel(request.task_id)

    def list_tasks(self, request: ListTasks.Request, response: ListTasks.Response) -> None:
        """list_tasks."""
        response.tasks = [_summary(entry) for entry in self._book.newest(request.limit)]

    def metrics(self) -> list[Metric]:
        """Tasks by phase and outcome."""
        entries = self._book.newest(1000)
        done = [entry.results[0] for entry in entries if entry.results]
        return [
            Metric(name='tasks_waiting', value=sum(entry.phase is TaskPhase.QUEUED for entry in entries)),
            Metric(name='tasks_done', value=len(done)),
            Metric(name='tasks_succeeded', value=sum(result.outcome is Outcome.SUCCESS for result in done)),
        ]

    def _not_here(self, robot_id: str) -> Status:
        message = f'robot_id: this agent is {self._robot_id}, got {robot_id!r}; ask in that namespace'
        return Status(outcome=Outcome.ROBOT_NOT_FOUND, message=message)


def _summary(entry: TaskEntry) -> TaskStatus:
    message = TaskStatus(
        task_id=entry.task.task_id,
        robot_id=entry.task.robot_id,
        instruction=entry.task.instruction,
        phase=entry.phase.value,
        duration_s=time.monotonic() - entry.accepted_s,
    )
    for result in entry.results:
        message.result = result_to_msg(result.outcome, result.message)
        message.duration_s = result.duration_s
    return message


def _status_message(entry: TaskEntry) -> TaskStatus:
    message = _summary(entry)
    for result in entry.results:
        fill_task_result(result, message)
    return message


def open_core(config: AgentConfig, node: ManagedNode) -> AgentCore:
    """An empty task book."""
    return AgentCore(book=TaskBook(max_queue=config.max_queue, clock=time.monotonic, make_id=_task_id))


def _task_id() -> str:
    return f'task-{uuid.uuid4().hex[:12]}'


def serve(core: AgentCore, config: AgentConfig, endpoints: Endpoints) -> None:
    """The agent around its clients, then what it offers."""
    shared = config.shared_namespace
    agent = open_agent(
        config,
        planner=RosPlanner(endpoints, shared, config.plan_timeout_s),
        gate=RosGate(endpoints, GATE_TIMEOUT_S),
        world=RosWorld(endpoints, shared, HOUSEHOLD_SKILLS),
        memory=RosMemory(endpoints, shared, MEMORY_TIMEOUT_S),
        clock=endpoints.now_s,
    )
    endpoints.on_close(Worker(agent, core.book).close)
    service = TaskService(core.book, config.robot_id)
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
