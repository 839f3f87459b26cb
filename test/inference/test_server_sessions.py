"""Sessions on a server: warmed with what they said last, closed, and counted as its replies count them."""

from concurrent.futures import ThreadPoolExecutor
import threading

import pytest

from kv_agent_ros.deadline import Deadline
from kv_agent_ros.errors import ModelUnavailableError
from kv_agent_ros.inference.base import GenerationRequest, Message, Role
from kv_agent_ros.inference.priority import Priority
from kv_agent_ros.inference.scripted import ScriptedBackend
from kv_agent_ros.inference.server_sessions import FRESH_S, MAX_SESSIONS, ServerSessions
from kv_agent_ros.kvcache.base import Prefetched
from kv_agent_ros.kvcache.block import SessionKey, SessionUsage

ROBOT = SessionKey(robot_id='robot1', session_id='s1')
ANSWER_S = 10.0


class Server:
    """A scripted server whose time stands still, and the sessions on it."""

    def __init__(self) -> None:
        self.now_s = 100.0
        self.closed: list[SessionKey] = []
        self.told: list[SessionUsage] = []
        self.may_answer = threading.Event()
        self.may_answer.set()
        self.backend = ScriptedBackend(self._answer)
        self.sessions = ServerSessions(
            self.backend,
            block_tokens=2,
            close_session=lambda session, deadline: self.closed.append(session),
            clock=lambda: self.now_s,
        )
        self.sessions.listen(self.told.append)

    def say(self, text: str, session: SessionKey = ROBOT) -> None:
        request = GenerationRequest(session=session, messages=(Message(role=Role.USER, content=text),), priority=3)
        self.sessions.generate(request, Deadline(ANSWER_S))

    def _answer(self, request: GenerationRequest) -> str:
        assert self.may_answer.wait(ANSWER_S)
        return 'yes it is'


@pytest.fixture
def server() -> Server:
    return Server()


def test_a_session_is_warmed_with_its_last_prompt_and_answer_behind_all_others(server: Server) -> None:
    server.say('is the cup full')
    server.now_s += FRESH_S
    done = server.sessions.warm(ROBOT, Deadline(ANSWER_S))
    warmed = server.backend.requests[-1]
    assert [message.content for message in warmed.messages] == ['is the cup full', 'yes it is']
    assert (warmed.max_new_tokens, warmed.priority, warmed.purpose) == (1, Priority.WARM_UP, 'warm-up')
    assert done.is_complete
    assert done.num_blocks > server.told[-1].num_blocks > 0


def test_what_was_used_a_moment_ago_is_not_asked_for_again(server: Server) -> None:
    server.say('is the cup full')
    server.now_s += FRESH_S - 0.1
    assert server.sessions.warm(ROBOT, Deadline(ANSWER_S)).num_blocks == server.told[-1].num_blocks
    server.now_s += 0.1
    server.sessions.warm(ROBOT, Deadline(ANSWER_S))
    server.sessions.warm(ROBOT, Deadline(ANSWER_S))
    assert len(server.backend.requests) == 2


def test_a_session_that_said_nothing_has_nothing_to_warm(server: Server) -> None:
    assert server.sessions.warm(ROBOT, Deadline(ANSWER_S)) == Prefetched(num_blocks=0, is_complete=True)
    assert server.backend.requests == []


def test_a_closed_session_is_closed_in_the_server_and_not_warmed_again(server: Server) -> None:
    server.say('is the cup full')
    assert server.sessions.forget(ROBOT, Deadline(ANSWER_S)) == server.told[-1].num_blocks
    assert server.sessions.forget(ROBOT, Deadline(ANSWER_S)) == 0
    assert server.closed == [ROBOT, ROBOT]
    server.now_s += FRESH_S
    assert server.sessions.warm(ROBOT, Deadline(ANSWER_S)) == Prefetched(num_blocks=0, is_complete=True)


def test_a_turn_that_ends_after_its_session_was_closed_does_not_bring_it_back(server: Server) -> None:
    server.may_answer.clear()
    with ThreadPoolExecutor(1) as pool:
        turn = pool.submit(server.say, 'is the cup full')
        deadline = Deadline(ANSWER_S)
        while not server.backend.requests:
            assert not deadline.wait(0.005)
        server.sessions.forget(ROBOT, Deadline(ANSWER_S))
        server.may_answer.set()
        turn.result(ANSWER_S)
    assert server.told == []
    server.now_s += FRESH_S
    server.sessions.warm(ROBOT, Deadline(ANSWER_S))
    assert len(server.backend.requests) == 1
    server.say('is it full now')
    assert len(server.told) == 1


def test_a_warm_up_at_work_ends_when_its_session_is_closed(server: Server) -> None:
    server.say('is the cup full')
    server.now_s += FRESH_S
    server.may_answer.clear()
    with ThreadPoolExecutor() as pool:
        work = pool.submit(server.sessions.warm, ROBOT, Deadline(ANSWER_S))
        deadline = Deadline(ANSWER_S)
        while len(server.backend.requests) < 2:
            assert not deadline.wait(0.01)
        assert server.sessions.warm(ROBOT, Deadline(ANSWER_S)) == Prefetched(num_blocks=0, is_complete=False)
        server.sessions.forget(ROBOT, Deadline(ANSWER_S))
        server.may_answer.set()
        assert work.result(ANSWER_S) == Prefetched(num_blocks=0, is_complete=False)
    assert len(server.backend.requests) == 2


def test_counts_add_up_over_the_turns_of_a_session(server: Server) -> None:
    server.say('is the cup full')
    server.say('is the cup full')
    first, second = server.told
    assert (second.prompt_tokens, first.cached_tokens) == (2 * first.prompt_tokens, 0)
    assert 0 < second.cached_tokens < first.prompt_tokens
    assert second.num_blocks == first.prompt_tokens // 2


def test_the_longest_silent_sessions_are_forgotten(server: Server) -> None:
    for number in range(MAX_SESSIONS + 1):
        server.say('hello', SessionKey(robot_id=f'robot{number}', session_id='s'))
    server.now_s += FRESH_S
    num_requests = len(server.backend.requests)
    server.sessions.warm(SessionKey(robot_id='robot0', session_id='s'), Deadline(ANSWER_S))
    assert len(server.backend.requests) == num_requests
    server.sessions.warm(SessionKey(robot_id='robot1', session_id='s'), Deadline(ANSWER_S))
    assert len(server.backend.requests) == num_requests + 1


def test_a_lost_server_fails_the_warm_up_and_not_the_next_one(server: Server) -> None:
    server.say('is the cup full')
    server.now_s += FRESH_S
    server.backend.close()
    for _ in range(2):
        with pytest.raises(ModelUnavailableError):
            server.sessions.warm(ROBOT, Deadline(ANSWER_S))
