"""The robot's agent as a node: execute_task with feedback and confirmed cancel, and the thin task services."""

from dataclasses import dataclass
import threading
import traceback
import uuid

from rclpy.action.server import ServerGoalHandle
from rclpy.impl.rcutils_logger import RcutilsLogger

from kv_agent_ros.action import ExecuteTask
from kv_agent_ros.agent.journal import ProgressListener, ignore_progress
from kv_agent_ros.agent.robot_agent import RobotAgent
from kv_agent_ros.agent.task import Task, TaskProgress, TaskResult
from kv_agent_ros.agent.task_queue import RunTask, TaskBook, TaskEntry
from kv_agent_ros.build.agent import open_agent
from kv_agent_ros.config import AgentConfig
from kv_agent_ros.deadline import Deadline
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


class TaskService:
    """The callbacks."""

    def __init__(self, agent: RobotAgent, book: TaskBook, robot_id: str) -> None:
        self._agent = agent
        self._book = book
        self._robot_id = robot_id
        self._listeners: dict[str, ProgressListener] = {}  # of tasks that came by the action
        self._dry_runs: set[str] = set()

    def run(self, task: Task, deadline: Deadline, note: ProgressListener) -> TaskResult:
        """Run a task of the book, telling the book and whoever waits for it."""
        listener = self._listeners.get(task.task_id, ignore_progress)

        def tell(progress: TaskProgress) -> None:
            note(progress)
            listener(progress)

        act = self._agent.rehearse if task.task_id in self._dry_runs else self._agent.run
        return act(task, deadline, tell)

    def execute(self, goal: ServerGoalHandle, result: ExecuteTask.Result) -> Status:
        """execute_task."""
        asked = goal.request
        task, status = self._task(asked.instruction, asked.robot_id, asked.timeout_s)

        def tell(progress: TaskProgress) -> None:
            feedback = ExecuteTask.Feedback()
            fill_feedback(progress, feedback)
            goal.publish_feedback(feedback)

        self._listeners[task.task_id] = tell
        self._dry_runs |= {task.task_id} if asked.dry_run else set()
        try:
            status = self._book.submit(task) if status.is_success else status
            return self._await(goal, task, result) if status.is_success else status
        finally:
            self._listeners.pop(task.task_id, None)
            self._dry_runs.discard(task.task_id)

    def _await(self, goal: ServerGoalHandle, task: Task, result: ExecuteTask.Result) -> Status:
        with cancel_with(goal, Deadline(2 * task.timeout_s)) as asked:
            while True:
                entry = self._book.wait_done(task.task_id, Deadline(POLL_S))
                if entry is None:
                    return Status(outcome=Outcome.INTERNAL, message=f'{task.task_id} is no longer in the book')
                if entry.result is not None:
                    fill_task_result(entry.result, result)
                    return Status(outcome=entry.result.outcome, message=entry.result.message)
                if asked.is_canceled:
                    self._book.cancel(task.task_id)

    def submit(self, request: SubmitTask.Request, response: SubmitTask.Response) -> Status:
        """submit_task."""
        task, status = self._task(request.instruction, request.robot_id, request.timeout_s)
        response.task_id = task.task_id
        return self._book.submit(task) if status.is_success else status

    def get(self, request: GetTask.Request, response: GetTask.Response) -> Status:
        """get_task."""
        entry = self._book.get(request.task_id)
        if entry is None:
            return Status(outcome=Outcome.BAD_REQUEST, message=f'no task {request.task_id!r}; list_tasks has them')
        response.status = _summary(entry)
        if entry.result is not None:
            fill_task_result(entry.result, response.status)
        return Status()

    def cancel(self, request: CancelTask.Request, response: CancelTask.Response) -> Status:
        """cancel_task."""
        return self._book.cancel(request.task_id)

    def list_tasks(self, request: ListTasks.Request, response: ListTasks.Response) -> None:
        """list_tasks."""
        newest = list(reversed(self._book.list(self._robot_id)))[: request.limit]
        response.tasks = [_summary(entry) for entry in newest]

    def metrics(self) -> list[Metric]:
        """Tasks by outcome."""
        entries = self._book.list(self._robot_id)
        done = [entry.result for entry in entries if entry.result is not None]
        return [
            Metric(name='tasks_open', value=len(entries) - len(done)),
            Metric(name='tasks_done', value=len(done)),
            Metric(name='tasks_succeeded', value=sum(result.outcome is Outcome.SUCCESS for result in done)),
        ]

    def _task(self, instruction: str, robot_id: str, timeout_s: float) -> tuple[Task, Status]:
        task_id = f'task-{uuid.uuid4().hex[:12]}'
        task = Task(task_id=task_id, robot_id=self._robot_id, instruction=instruction, timeout_s=timeout_s)
        if robot_id in ('', self._robot_id):
            return task, Status()
        message = f'robot_id: this agent is {self._robot_id}, got {robot_id!r}; ask in that namespace'
        return task, Status(outcome=Outcome.ROBOT_NOT_FOUND, message=message)


def _summary(entry: TaskEntry) -> TaskStatus:
    message = TaskStatus(
        task_id=entry.task.task_id,
        robot_id=entry.task.robot_id,
        instruction=entry.task.instruction,
        phase=entry.progress.phase.value,
    )
    if entry.result is not None:
        message.result = result_to_msg(entry.result.outcome, entry.result.message)
        message.duration_s = entry.result.duration_s
    return message


def open_core(config: AgentConfig, node: ManagedNode) -> AgentCore:
    """An empty task book."""
    return AgentCore(book=TaskBook(max_queued=config.max_queue))


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
    service = TaskService(agent, core.book, config.robot_id)
    worker = Worker(core.book, config.robot_id, service.run, endpoints.node.get_logger())
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
