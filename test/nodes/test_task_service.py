"""The task service over a fake home: what becomes of a task depends on the task, not on who waits for it."""

from collections.abc import Callable
from pathlib import Path

import pytest
from rclpy.logging import get_logger

from kv_agent_ros.agent.fake import FakeHome
from kv_agent_ros.agent.task import Task, TaskMode, TaskPhase, TaskProgress
from kv_agent_ros.agent.task_queue import TaskBook, TaskEntry
from kv_agent_ros.deadline import Deadline
from kv_agent_ros.errors import Outcome
from kv_agent_ros.harness.policy import load_policy
from kv_agent_ros.inference.unavailable import UnavailableBackend
from kv_agent_ros.nodes.agent_services import TaskService
from kv_agent_ros.nodes.listeners import isolated
from kv_agent_ros.robot.plan import Plan
from kv_agent_ros.srv import GetTask, ListTasks
from kv_agent_ros.world.fake import example_cup

POLICY = Path(__file__).parents[2] / 'config' / 'policies' / 'default.yaml'
WAIT_S = 30.0


class Desk:
    """A service, its book and the home in which its tasks are done."""

    def __init__(self, directory: Path, on_plan: Callable[[Plan], None]) -> None:
        self.home = FakeHome(directory, load_policy(POLICY), (example_cup('cup_1', 1.0, 0.0),))
        self.now_s = 100.0
        self.book = TaskBook(clock=lambda: self.now_s)
        agent = self.home.agent(UnavailableBackend())
        self.service = TaskService(agent, self.book, 'robot1', on_plan, get_logger('desk'))

    def done(self, mode: TaskMode) -> TaskEntry:
        """A task of that mode, as it ended."""
        instruction = 'Go to the kitchen, then return to the dock.'
        self.book.submit(Task(task_id='t1', robot_id='robot1', instruction=instruction, mode=mode))
        assert self.book.work('robot1', self.service.run, Deadline(WAIT_S))
        entry = self.book.get('t1')
        assert entry is not None
        return entry


def test_a_dry_run_that_nobody_waits_for_moves_nothing(tmp_path: Path) -> None:
    plans: list[Plan] = []
    desk = Desk(tmp_path, plans.append)
    result = desk.done(TaskMode.REHEARSE).result
    assert result is not None and result.outcome is Outcome.SUCCESS
    assert desk.home.executed() == []
    assert plans == list(result.plans)


def test_a_listener_that_fails_does_not_end_the_task(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    def fail(plan: Plan) -> None:
        raise ZeroDivisionError('a path that cannot be drawn')

    desk = Desk(tmp_path, fail)
    result = desk.done(TaskMode.DO).result
    assert result is not None and result.outcome is Outcome.SUCCESS
    assert desk.home.executed() == ['navigate', 'dock']
    printed = capfd.readouterr().err
    assert 'ZeroDivisionError: a path that cannot be drawn' in printed
    assert 't1 begins' in printed
    assert 't1 ends' in printed and 'SUCCESS' in printed


def test_the_list_says_how_long_ago_an_open_task_was_accepted(tmp_path: Path) -> None:
    desk = Desk(tmp_path, lambda plan: None)
    desk.book.submit(Task(task_id='t1', robot_id='robot1', instruction='return to the dock'))
    desk.now_s += 7.0
    response = ListTasks.Response()
    desk.service.list_tasks(ListTasks.Request(), response)
    assert [task.duration_s for task in response.tasks] == [7.0]


def test_get_task_shows_the_plan_of_a_task_that_still_runs(tmp_path: Path) -> None:
    shown: list[int] = []

    def look(plan: Plan) -> None:
        response = GetTask.Response()
        assert desk.service.get(GetTask.Request(task_id='t1'), response).is_success
        shown.append(len(response.status.plans))

    desk = Desk(tmp_path, look)
    desk.done(TaskMode.DO)
    assert shown == [1]


def test_a_listener_that_fails_is_told_of_once() -> None:
    heard, told = list[str](), list[str]()

    def fail(progress: TaskProgress) -> None:
        heard.append(progress.message)
        raise ZeroDivisionError('a bug')

    listen = isolated(fail, told.append)
    for message in ('a', 'b'):
        listen(TaskProgress(task_id='t1', phase=TaskPhase.EXECUTING, message=message))
    assert heard == ['a', 'b']
    assert ['t1' in text and 'a bug' in text for text in told] == [True]
