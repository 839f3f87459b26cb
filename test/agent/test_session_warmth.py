"""The agent tells the cache when a robot's conversation goes on, and when it starts anew."""

from collections.abc import Callable
import json

from kv_agent_ros.agent.fake import FakeHome
from kv_agent_ros.agent.session_store import MemorySessions
from kv_agent_ros.agent.task import Task, TaskMode
from kv_agent_ros.deadline import Deadline
from kv_agent_ros.inference.scripted import ScriptedBackend, answers_in_order

DOCK = json.dumps({'plan': [{'skill': 'dock'}]})
MakeHome = Callable[..., FakeHome]


def run(home: FakeHome, sessions: MemorySessions, task_id: str, mode: TaskMode = TaskMode.DO) -> None:
    backend = ScriptedBackend(answer=answers_in_order([DOCK, DOCK]))
    task = Task(task_id=task_id, robot_id=home.robot_id, instruction='Return to the dock.', mode=mode)
    home.agent(backend, sessions).run(task, Deadline(30.0))


def test_a_conversation_that_goes_on_is_brought_to_memory_before_it_is_needed(make_home: MakeHome) -> None:
    home, sessions = make_home(), MemorySessions(ids=lambda: 's1')
    run(home, sessions, 't1')
    run(home, sessions, 't2', TaskMode.REHEARSE)
    key = sessions.resume(home.robot_id).key
    assert home.cache.asked == [('warm', key), ('warm', key)]


def test_a_conversation_that_starts_anew_lets_go_of_what_it_used(make_home: MakeHome) -> None:
    home, sessions = make_home(), MemorySessions(ids=lambda: 's1', context_tokens=1)
    run(home, sessions, 't1')
    run(home, sessions, 't2')
    key = sessions.resume(home.robot_id).key
    assert home.cache.asked == [('warm', key), ('forget', key)]
