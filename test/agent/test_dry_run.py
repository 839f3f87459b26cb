"""A rehearsed task: planned and judged, nothing done; its conversation has the same bounds as any other."""

from collections.abc import Callable
from itertools import repeat
import json

from kv_agent_ros.agent.fake import FakeHome
from kv_agent_ros.agent.session import AgentSession
from kv_agent_ros.agent.session_store import MemorySessions
from kv_agent_ros.agent.task import Task, TaskMode
from kv_agent_ros.deadline import Deadline
from kv_agent_ros.errors import Outcome, StoreError
from kv_agent_ros.inference.scripted import ScriptedBackend, answers_in_order
from kv_agent_ros.inference.unavailable import UnavailableBackend
from kv_agent_ros.world.fake import example_cup

PLAN = json.dumps({'plan': [{'skill': 'navigate', 'target': 'kitchen'}, {'skill': 'dock'}]})
CONTEXT_TOKENS = 2000
INSTRUCTION = 'Go to the kitchen, then return to the dock.'
GO = Task(task_id='t1', robot_id='robot1', instruction=INSTRUCTION, mode=TaskMode.REHEARSE)


def test_nothing_moves_and_nothing_is_remembered(make_home: Callable[..., FakeHome]) -> None:
    home = make_home(example_cup('cup_1', 1.0, 0.0))
    result = home.agent(UnavailableBackend()).run(GO, Deadline(30.0))
    assert result.outcome is Outcome.SUCCESS
    assert home.executed() == []
    assert home.memory.records == {}


def test_many_rehearsals_do_not_fill_the_context(make_home: Callable[..., FakeHome]) -> None:
    home, sessions = make_home(example_cup('cup_1', 1.0, 0.0)), MemorySessions(context_tokens=CONTEXT_TOKENS)
    backend = ScriptedBackend(answers_in_order(list(repeat(PLAN, 40))))
    agent = home.agent(backend, sessions)
    results = [agent.run(GO, Deadline(30.0)) for _ in range(20)]
    prompts = [turn.usage.prompt_tokens for result in results for turn in result.turns]
    assert {result.outcome for result in results} == {Outcome.SUCCESS}
    assert sessions.resume(home.robot_id).state.epoch > 0
    assert max(prompts) < 2 * CONTEXT_TOKENS


class BrokenSessions:
    """A SessionStore on a disk that fails."""

    def resume(self, robot_id: str) -> AgentSession:
        raise StoreError('the disk is gone')

    def save(self, session: AgentSession) -> None:
        raise StoreError('the disk is gone')


def test_a_broken_session_store_is_a_result(make_home: Callable[..., FakeHome]) -> None:
    home = make_home(example_cup('cup_1', 1.0, 0.0))
    result = home.agent(UnavailableBackend(), BrokenSessions()).run(GO, Deadline(30.0))
    assert result.outcome is Outcome.INTERNAL
    assert 'disk' in result.message
