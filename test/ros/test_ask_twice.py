"""What is safe to repeat is asked again when the first answer does not come."""

import threading

import pytest

from kv_agent_ros.errors import UnreachableError
from kv_agent_ros.ros.endpoints import Endpoints
from kv_agent_ros.srv import ReleaseLease

TIMEOUT_S = 5.0


class SlowAtFirst:
    """Answers `num_silent` calls only when the test is over, later ones at once."""

    def __init__(self, num_silent: int) -> None:
        self.num_calls = 0
        self.is_over = threading.Event()
        self._num_silent = num_silent

    def answer(self, request: ReleaseLease.Request, response: ReleaseLease.Response) -> None:
        self.num_calls += 1
        if self.num_calls <= self._num_silent:
            self.is_over.wait(3 * TIMEOUT_S)


def test_a_lost_first_answer_is_asked_for_again(endpoints: Endpoints) -> None:
    server = SlowAtFirst(num_silent=1)
    endpoints.service(ReleaseLease, 'release_lease', server.answer)
    caller = endpoints.service_caller(ReleaseLease, 'release_lease')
    try:
        assert caller.ask_twice(ReleaseLease.Request(), TIMEOUT_S).result.error_code == 0
        assert server.num_calls == 2
    finally:
        server.is_over.set()


def test_two_lost_answers_are_an_unreachable_peer(endpoints: Endpoints) -> None:
    server = SlowAtFirst(num_silent=2)
    endpoints.service(ReleaseLease, 'release_nothing', server.answer)
    caller = endpoints.service_caller(ReleaseLease, 'release_nothing')
    try:
        with pytest.raises(UnreachableError):
            caller.ask_twice(ReleaseLease.Request(), 1.0)
    finally:
        server.is_over.set()
