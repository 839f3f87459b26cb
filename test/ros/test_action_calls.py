"""No goal is lost, however fast its answers come and however many threads ask."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
import sys
import threading

import pytest
from rclpy.action import ActionServer, CancelResponse, GoalResponse
from rclpy.action.server import ServerGoalHandle
from rclpy.callback_groups import ReentrantCallbackGroup
from rclpy.context import Context
from spun_endpoints import spun_endpoints

from kv_agent_ros.action import GenerateStream
from kv_agent_ros.deadline import Deadline
from kv_agent_ros.errors import CanceledError, Outcome, UnreachableError
from kv_agent_ros.ros.calls import ACCEPT_S
from kv_agent_ros.ros.endpoints import Endpoints

NUM_GOALS = 300
NUM_THREADS = 8
CALL_S = 30.0


@pytest.fixture
def impatient_threads() -> Iterator[None]:
    """Threads are switched after every few instructions."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


@pytest.mark.usefixtures('impatient_threads')
def test_no_goal_is_lost_when_its_acceptance_comes_before_the_send_returns(endpoints: Endpoints) -> None:
    endpoints.action(GenerateStream, 'instant', lambda goal, result: None)
    caller = endpoints.action_caller(GenerateStream, 'instant')

    def ask(number: int) -> Outcome:
        result = caller.call(GenerateStream.Goal(), Deadline(CALL_S), lambda feedback: None)
        return Outcome(result.result.error_code)

    with ThreadPoolExecutor(NUM_THREADS) as pool:
        outcomes = list(pool.map(ask, range(NUM_GOALS)))
    assert outcomes == [Outcome.SUCCESS] * NUM_GOALS


def test_a_server_that_starts_again_is_not_the_one_that_had_the_goal(endpoints: Endpoints, context: Context) -> None:
    accepted, released = threading.Event(), threading.Event()

    def work(goal: ServerGoalHandle, result: GenerateStream.Result) -> None:
        accepted.set()
        released.wait(2 * CALL_S)

    caller, deadline = endpoints.action_caller(GenerateStream, 'restarted'), Deadline(CALL_S)
    with ThreadPoolExecutor(1) as pool, ExitStack() as servers:
        servers.callback(released.set)
        with spun_endpoints('server', context) as first:
            first.action(GenerateStream, 'restarted', work)
            call = pool.submit(caller.call, GenerateStream.Goal(), deadline, lambda feedback: None)
            assert accepted.wait(CALL_S)
        second = servers.enter_context(spun_endpoints('server', context))
        second.action(GenerateStream, 'restarted', work)
        with pytest.raises(UnreachableError, match='went away'):
            call.result(2 * CALL_S)
        assert not deadline.is_over


def test_a_cancel_is_heard_before_the_goal_is_accepted(endpoints: Endpoints, context: Context) -> None:
    asked, released, canceled = threading.Event(), threading.Event(), threading.Event()

    def hesitate(request: GenerateStream.Goal) -> GoalResponse:
        asked.set()
        released.wait(CALL_S)
        return GoalResponse.ACCEPT

    def accept_cancel(goal: ServerGoalHandle) -> CancelResponse:
        canceled.set()
        return CancelResponse.ACCEPT

    def work(goal: ServerGoalHandle) -> GenerateStream.Result:
        canceled.wait(CALL_S)
        goal.abort()
        return GenerateStream.Result()

    caller, deadline = endpoints.action_caller(GenerateStream, 'hesitant'), Deadline(CALL_S)
    with spun_endpoints('hesitant_server', context) as serving, ThreadPoolExecutor(1) as pool:
        server = ActionServer(
            serving.node,
            GenerateStream,
            'hesitant',
            execute_callback=work,
            goal_callback=hesitate,
            cancel_callback=accept_cancel,
            callback_group=ReentrantCallbackGroup(),
        )
        call = pool.submit(caller.call, GenerateStream.Goal(), deadline, lambda feedback: None)
        assert asked.wait(CALL_S)
        deadline.cancel()
        try:
            with pytest.raises(CanceledError, match='before the goal was accepted'):
                call.result(ACCEPT_S / 2)
        finally:
            released.set()
        assert canceled.wait(CALL_S), 'a goal that is accepted late is cancelled'
        server.destroy()
