"""Tasks over a real graph, one process a node: planned by rules, with a fast simulator."""

from collections.abc import Callable
from typing import Any

import pytest
from running_graph import TASK_S, RunningGraph, poll

from kv_agent_ros.action import ExecuteTask
from kv_agent_ros.errors import Outcome
from kv_agent_ros.srv import CancelTask, GetTask, ListTasks, QueryAudit, SubmitTask

CHINESE = '去厨房检查水杯是否倒满，如果满了就倒掉一半，然后返回充电座。'
LONG = 'wait 60 seconds, then return to the dock'
SHORT = 'wait 1 second, then return to the dock'
AGENT = '/robot1/agent_node/execute_task'


@pytest.fixture(scope='module')
def graph(open_graph: Callable[..., RunningGraph]) -> RunningGraph:
    """One robot and a full cup, as fast as possible."""
    return open_graph()


@pytest.fixture(scope='module')
def poured(graph: RunningGraph) -> Any:
    """The result of the report's task, done once with a full cup."""
    return graph.do_task(CHINESE)


@pytest.fixture(scope='module')
def home_without_cup(open_graph: Callable[..., RunningGraph]) -> RunningGraph:
    """A home without a cup, at ten times real time, so that a task can be caught while it runs."""
    return open_graph({'simulator_node': {'removed': ('cup1',), 'realtime_factor': 10.0}})


def outcome(answer: Any) -> Outcome:
    """The outcome of any response or result."""
    return Outcome(answer.result.error_code)


def test_the_reports_task_in_chinese_leaves_half_a_cup_and_a_docked_robot(graph: RunningGraph, poured: Any) -> None:
    assert outcome(poured) is Outcome.SUCCESS, poured.result.error_msg
    assert graph.fill_level('cup1') == pytest.approx(0.5, abs=0.05)
    assert graph.robot().is_docked
    assert [plan.source for plan in poured.plans] == ['rule']


def test_nothing_is_poured_from_a_cup_that_is_not_full(graph: RunningGraph, poured: Any) -> None:
    before = graph.fill_level('cup1')
    result = graph.do_task(CHINESE)
    assert outcome(result) is Outcome.SUCCESS, result.result.error_msg
    assert graph.fill_level('cup1') == before
    assert graph.robot().is_docked


def test_the_audit_of_these_tasks_verifies_and_ends_where_the_task_says(graph: RunningGraph, poured: Any) -> None:
    result = graph.do_task(SHORT)
    audit = graph.call(QueryAudit, '/robot1/query_audit', limit=50, verify=True)
    assert outcome(audit) is Outcome.SUCCESS, audit.result.error_msg
    assert audit.is_verified
    assert audit.head == result.audit_head
    assert {'plan', 'act', 'result'} <= {record.kind for record in audit.records}


def test_a_dry_run_plans_and_moves_nothing(graph: RunningGraph) -> None:
    before = graph.position()
    result = graph.send(ExecuteTask, AGENT, instruction='go to the bedroom', dry_run=True).result()
    assert outcome(result) is Outcome.SUCCESS, result.result.error_msg
    assert result.plans
    assert not result.steps
    assert graph.position() == before


def test_without_a_cup_the_task_fails_clearly_and_the_robot_is_docked(home_without_cup: RunningGraph) -> None:
    result = home_without_cup.do_task(CHINESE)
    assert outcome(result) in (Outcome.PRECONDITION_FAILURE, Outcome.EXECUTION_FAILURE), result.result
    assert 'cup' in result.result.error_msg
    assert home_without_cup.robot().is_docked


def test_a_submitted_task_is_followed_to_its_end_by_its_id(home_without_cup: RunningGraph) -> None:
    graph = home_without_cup
    accepted = graph.call(SubmitTask, '/robot1/submit_task', instruction=SHORT)
    assert outcome(accepted) is Outcome.SUCCESS, accepted.result.error_msg
    done = poll(lambda: task_in_phase(graph, accepted.task_id, 'done'), TASK_S, 'the end of a submitted task')
    assert Outcome(done.result.error_code) is Outcome.SUCCESS, done.result.error_msg
    assert [step.step.skill for step in done.steps] == ['wait', 'dock']
    newest = graph.call(ListTasks, '/robot1/list_tasks', limit=1).tasks
    assert [task.task_id for task in newest] == [accepted.task_id]


def test_a_second_goal_waits_for_the_first_and_is_then_done(home_without_cup: RunningGraph) -> None:
    graph = home_without_cup
    first = graph.start_task(LONG)
    poll(lambda: 'executing' in phases(first), TASK_S, 'the first task under way')
    second = graph.start_task(SHORT)
    poll(lambda: len(open_tasks(graph)) == 2, TASK_S, 'both tasks in the book')
    assert [task.phase for task in open_tasks(graph)] == ['queued', 'executing']  # the newest first
    assert outcome(first.result()) is Outcome.SUCCESS
    assert outcome(second.result()) is Outcome.SUCCESS


def test_cancel_task_ends_a_running_and_a_queued_task(home_without_cup: RunningGraph) -> None:
    graph = home_without_cup
    running, queued = (graph.call(SubmitTask, '/robot1/submit_task', instruction=LONG).task_id for _ in range(2))
    poll(lambda: task_in_phase(graph, running, 'executing'), TASK_S, 'the first task under way')
    for task_id in (queued, running):
        answer = graph.call(CancelTask, '/robot1/cancel_task', task_id=task_id)
        assert outcome(answer) is Outcome.SUCCESS, answer.result.error_msg
    for task_id in (queued, running):
        done = poll(lambda task_id=task_id: task_in_phase(graph, task_id, 'done'), 20.0, 'the end after a cancel')
        assert Outcome(done.result.error_code) is Outcome.CANCELED
    again = graph.call(CancelTask, '/robot1/cancel_task', task_id=running)
    assert outcome(again) is Outcome.BAD_REQUEST


@pytest.mark.parametrize(
    ('instruction', 'robot_id', 'expected'),
    [
        pytest.param(SHORT, 'robot7', Outcome.ROBOT_NOT_FOUND, id='an unknown robot'),
        pytest.param('', 'robot1', Outcome.BAD_REQUEST, id='no instruction'),
        pytest.param(' \n\t', '', Outcome.BAD_REQUEST, id='a blank instruction'),
        pytest.param('go ' * 3334, '', Outcome.BAD_REQUEST, id='ten kilobytes'),
        pytest.param('杯' * 10_000, '', Outcome.BAD_REQUEST, id='ten thousand Chinese characters'),
    ],
)
def test_a_malformed_request_is_refused_by_service_and_action_alike(
    graph: RunningGraph, instruction: str, robot_id: str, expected: Outcome
) -> None:
    by_service = graph.call(SubmitTask, '/robot1/submit_task', instruction=instruction, robot_id=robot_id)
    by_action = graph.send(ExecuteTask, AGENT, instruction=instruction, robot_id=robot_id).result()
    assert (outcome(by_service), outcome(by_action)) == (expected, expected)
    assert by_service.result.error_msg
    assert not by_action.steps


@pytest.mark.parametrize('timeout_s', [0.0, -1.0, float('nan')])
def test_a_timeout_that_is_none_is_refused(graph: RunningGraph, timeout_s: float) -> None:
    answer = graph.call(SubmitTask, '/robot1/submit_task', instruction=SHORT, timeout_s=timeout_s)
    assert outcome(answer) is Outcome.BAD_REQUEST
    result = graph.send(ExecuteTask, AGENT, instruction=SHORT, timeout_s=timeout_s).result()
    assert outcome(result) is Outcome.BAD_REQUEST


def test_an_instruction_that_nobody_understands_is_a_planning_failure_and_nothing_moves(graph: RunningGraph) -> None:
    before = graph.position()
    result = graph.do_task('qwertz uiop')
    assert outcome(result) is Outcome.PLANNING_FAILURE, result.result
    assert graph.position() == before


def test_an_unknown_task_id_is_a_bad_request(graph: RunningGraph) -> None:
    assert outcome(graph.call(GetTask, '/robot1/get_task', task_id='nothing')) is Outcome.BAD_REQUEST
    assert outcome(graph.call(CancelTask, '/robot1/cancel_task', task_id='')) is Outcome.BAD_REQUEST


def phases(goal: Any) -> list[str]:
    """The phases that its feedback has told of."""
    return [feedback.phase for feedback in goal.feedback]


def task_in_phase(graph: RunningGraph, task_id: str, phase: str) -> Any:
    """The task when it is in that phase, else nothing."""
    status = graph.call(GetTask, '/robot1/get_task', task_id=task_id).status
    return status if status.phase == phase else None


def open_tasks(graph: RunningGraph) -> list[Any]:
    """The tasks that are not done, newest first."""
    return [task for task in graph.call(ListTasks, '/robot1/list_tasks', limit=5).tasks if task.phase != 'done']
