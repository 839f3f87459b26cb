"""The task services of agent_node: execute_task with feedback and confirmed cancel, and the thin ones around it."""

from collections.abc import Callable
from dataclasses import replace
import uuid

from rclpy.action.server import ServerGoalHandle
from rclpy.impl.rcutils_logger import RcutilsLogger

from kv_agent_ros.action import ExecuteTask
from kv_agent_ros.agent.journal import ProgressListener, ignore_progress
from kv_agent_ros.agent.robot_agent import RobotAgent
from kv_agent_ros.agent.task import Task, TaskMode, TaskProgress, TaskResult
from kv_agent_ros.agent.task_queue import TaskBook, TaskEntry
from kv_agent_ros.deadline import Deadline
from kv_agent_ros.errors import Outcome, Status
from kv_agent_ros.inspector.metrics import Metric
from kv_agent_ros.msg import TaskStatus
from kv_agent_ros.nodes.listeners import isolated
from kv_agent_ros.robot.plan import Plan
from kv_agent_ros.ros.conversions.task import fill_course, fill_feedback, fill_task_result
from kv_agent_ros.ros.conversions.values import result_to_msg
from kv_agent_ros.ros.goals import cancel_with
from kv_agent_ros.srv import CancelTask, GetTask, ListTasks, SubmitTask

POLL_S = 0.2


class TaskService:
    """The callbacks."""

    def __init__(
        self,
        agent: RobotAgent,
        book: TaskBook,
        robot_id: str,
        on_plan: Callable[[Plan], None],
        logger: RcutilsLogger,
    ) -> None:
        self._on_plan = on_plan
        self._agent = agent
        self._book = book
        self._robot_id = robot_id
        self._logger = logger
        self._listeners: dict[str, ProgressListener] = {}  # of tasks that came by the action

    def run(self, task: Task, deadline: Deadline, note: ProgressListener) -> TaskResult:
        """Run a task of the book, telling the book and whoever waits for it."""
        listeners = (
            isolated(self._listeners.get(task.task_id, ignore_progress), self._logger.error),
            isolated(self._show_plan, self._logger.error),
        )

        def tell(progress: TaskProgress) -> None:
            note(progress)
            for listen in listeners:
                listen(progress)

        self._logger.info(f'{task.task_id} begins')
        result = self._agent.run(task, deadline, tell)
        self._logger.info(f'{task.task_id} ends after {result.duration_s:.1f} s: {result.outcome.name}')
        return result

    def _show_plan(self, progress: TaskProgress) -> None:
        if progress.plan is not None and progress.step_index < 0:
            self._on_plan(progress.plan)

    def execute(self, goal: ServerGoalHandle, result: ExecuteTask.Result) -> Status:
        """execute_task."""
        asked = goal.request
        task, status = self._task(asked.instruction, asked.robot_id, asked.timeout_s)
        task = replace(task, mode=TaskMode.REHEARSE if asked.dry_run else TaskMode.DO)

        def tell(progress: TaskProgress) -> None:
            feedback = ExecuteTask.Feedback()
            fill_feedback(progress, feedback)
            goal.publish_feedback(feedback)

        self._listeners[task.task_id] = tell
        try:
            status = self._book.submit(task) if status.is_success else status
            return self._await(goal, task, result) if status.is_success else status
        finally:
            self._listeners.pop(task.task_id, None)

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
        response.status = self._summary(entry)
        if entry.result is None:
            fill_course(entry, response.status)
        else:
            fill_task_result(entry.result, response.status)
        return Status()

    def cancel(self, request: CancelTask.Request, response: CancelTask.Response) -> Status:
        """cancel_task."""
        return self._book.cancel(request.task_id)

    def list_tasks(self, request: ListTasks.Request, response: ListTasks.Response) -> None:
        """list_tasks."""
        newest = list(reversed(self._book.list(self._robot_id)))[: request.limit]
        response.tasks = [self._summary(entry) for entry in newest]

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

    def _summary(self, entry: TaskEntry) -> TaskStatus:
        message = TaskStatus(
            task_id=entry.task.task_id,
            robot_id=entry.task.robot_id,
            instruction=entry.task.instruction,
            phase=entry.progress.phase.value,
            duration_s=self._book.duration_s(entry),
        )
        if entry.result is not None:
            message.result = result_to_msg(entry.result.outcome, entry.result.message)
        return message
