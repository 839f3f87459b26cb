"""Every caller gets an answer: errors as results, cancels as confirmed, a missing peer in time."""

from collections.abc import Callable
import time
from typing import Any

import pytest
from rclpy.action.server import ServerGoalHandle

from kv_agent_ros.action import GenerateStream
from kv_agent_ros.deadline import Deadline
from kv_agent_ros.errors import BadRequestError, CanceledError, ModelUnavailableError, Outcome, Status, UnreachableError
from kv_agent_ros.msg import Metric
from kv_agent_ros.ros.endpoints import Endpoints
from kv_agent_ros.ros.goals import cancel_with
from kv_agent_ros.srv import ForgetRecord, GetStats

CALL_S = 20.0


def raising(error: Exception) -> Callable[..., None]:
    """A handler that raises it."""

    def handle(request: Any, response: Any) -> None:
        raise error

    return handle


@pytest.mark.parametrize(
    ('error', 'outcome'),
    [
        (BadRequestError('no such thing'), Outcome.BAD_REQUEST),
        (ModelUnavailableError('no such model'), Outcome.MODEL_UNAVAILABLE),
        (UnreachableError('no such peer'), Outcome.TIMEOUT),
        (CanceledError('canceled'), Outcome.CANCELED),
        (ZeroDivisionError('a bug'), Outcome.INTERNAL),
        (KeyError('a bug'), Outcome.INTERNAL),
    ],
)
def test_what_a_handler_raises_is_the_answer(endpoints: Endpoints, error: Exception, outcome: Outcome) -> None:
    name = f'raises_{type(error).__name__.lower()}'
    endpoints.service(ForgetRecord, name, raising(error))
    answer = endpoints.service_caller(ForgetRecord, name).call(ForgetRecord.Request(), CALL_S)
    assert Outcome(answer.result.error_code) is outcome
    assert str(error) in answer.result.error_msg


def test_what_an_action_raises_is_its_result(endpoints: Endpoints) -> None:
    endpoints.action(GenerateStream, 'raises', raising(ZeroDivisionError('a bug')))
    caller = endpoints.action_caller(GenerateStream, 'raises')
    result = caller.call(GenerateStream.Goal(), Deadline(CALL_S), lambda feedback: None)
    assert Outcome(result.result.error_code) is Outcome.INTERNAL
    assert 'a bug' in result.result.error_msg


def test_a_handler_that_returns_nothing_has_succeeded(endpoints: Endpoints) -> None:
    endpoints.service(ForgetRecord, 'quiet', lambda request, response: None)
    answer = endpoints.service_caller(ForgetRecord, 'quiet').call(ForgetRecord.Request(), CALL_S)
    assert Outcome(answer.result.error_code) is Outcome.SUCCESS


def test_books_that_cannot_be_read_are_an_empty_answer(endpoints: Endpoints) -> None:
    def read() -> list[Metric]:
        raise ZeroDivisionError('a bug')

    endpoints.stats(read)
    answer = endpoints.service_caller(GetStats, 'tested/get_stats').call(GetStats.Request(), CALL_S)
    assert list(answer.metrics) == []


def test_a_cancelled_goal_ends_its_work_and_says_so(endpoints: Endpoints) -> None:
    def work(goal: ServerGoalHandle, result: GenerateStream.Result) -> Status:
        goal.publish_feedback(GenerateStream.Feedback(text='begun'))
        with cancel_with(goal, Deadline(CALL_S)) as deadline:
            deadline.wait(CALL_S)
        return Status(outcome=Outcome.CANCELED if deadline.is_canceled else Outcome.TIMEOUT)

    endpoints.action(GenerateStream, 'long_work', work)
    caller, deadline = endpoints.action_caller(GenerateStream, 'long_work'), Deadline(CALL_S)
    begun_s = time.monotonic()
    result = caller.call(GenerateStream.Goal(), deadline, lambda feedback: deadline.cancel())
    assert Outcome(result.result.error_code) is Outcome.CANCELED
    assert time.monotonic() - begun_s < CALL_S / 2


def test_a_missing_service_is_unreachable_in_time(endpoints: Endpoints) -> None:
    caller = endpoints.service_caller(ForgetRecord, 'nobody_serves_this')
    begun_s = time.monotonic()
    with pytest.raises(UnreachableError, match='nobody_serves_this'):
        caller.call(ForgetRecord.Request(), 0.5)
    assert time.monotonic() - begun_s < 5.0
    assert not caller.is_ready


def test_a_missing_action_is_unreachable_in_time(endpoints: Endpoints) -> None:
    caller = endpoints.action_caller(GenerateStream, 'nobody_acts_so')
    begun_s = time.monotonic()
    with pytest.raises(UnreachableError, match='nobody_acts_so'):
        caller.call(GenerateStream.Goal(), Deadline(0.5), lambda feedback: None)
    assert time.monotonic() - begun_s < 8.0


def test_a_silent_service_is_unreachable_in_time(endpoints: Endpoints) -> None:
    released = Deadline(CALL_S)
    endpoints.service(ForgetRecord, 'silent', lambda request, response: Status() if released.wait(CALL_S) else None)
    caller = endpoints.service_caller(ForgetRecord, 'silent')
    try:
        with pytest.raises(UnreachableError, match='silent'):
            caller.call(ForgetRecord.Request(), 0.5)
    finally:
        released.cancel()
