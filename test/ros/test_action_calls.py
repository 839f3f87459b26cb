"""No goal is lost, however fast its answers come and however many threads ask."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
import sys

import pytest

from kv_agent_ros.action import GenerateStream
from kv_agent_ros.deadline import Deadline
from kv_agent_ros.errors import Outcome
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
