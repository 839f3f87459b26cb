"""Sessions: they only grow, survive kill -9 and damage, and start a fresh epoch from a summary when they are full."""

import itertools
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st
import pytest

from kv_agent_ros.agent.prompt import divergence
from kv_agent_ros.agent.session import AgentSession
from kv_agent_ros.agent.session_store import FileSessions, MemorySessions, SessionStore, unguessable_id
from kv_agent_ros.errors import Outcome, StoreError
from kv_agent_ros.inference.base import Message, Role, Turn, Usage

ASK = Message(role=Role.USER, content='去厨房\nline two')
ANSWER = Message(role=Role.ASSISTANT, content='{"plan":[]}', token_ids=(1, 2, 3))
COST = Turn(purpose='plan', usage=Usage(prompt_tokens=90, generated_tokens=10), engine='local', outcome=Outcome.SUCCESS)


@pytest.fixture(params=['memory', 'file'])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> SessionStore:
    return MemorySessions() if request.param == 'memory' else FileSessions(tmp_path)


def talk(store: SessionStore, robot_id: str, *messages: Message) -> AgentSession:
    session = store.resume(robot_id)
    session.append(messages, [COST])
    store.save(session)
    return session


def only_file(directory: Path) -> Path:
    (path,) = directory.glob('*.jsonl')
    return path


def test_a_saved_session_is_resumed_as_it_was(store: SessionStore) -> None:
    session = talk(store, 'robot1', ASK, ANSWER)
    session.close_task('went to the kitchen: SUCCESS')
    store.save(session)
    assert store.resume('robot1').state == session.state


def test_robots_have_sessions_of_their_own_with_ids_that_cannot_be_guessed(store: SessionStore) -> None:
    one, two = talk(store, 'robot1', ASK), talk(store, 'robot2', ANSWER)
    assert one.key.session_id != two.key.session_id and len(one.key.session_id) == 32
    assert store.resume('robot1').messages == (ASK,)


def test_another_process_finds_the_session_without_a_clean_exit(tmp_path: Path) -> None:
    session = talk(FileSessions(tmp_path), 'robot1', ASK, ANSWER)
    assert FileSessions(tmp_path).resume('robot1').state == session.state


@pytest.mark.parametrize(
    'tail', [b'{"role":"user","cont', b'not json\n', b'{"role":"pope","content":"x"}\n', b'\xff\n']
)
def test_a_damaged_tail_costs_a_warning_and_the_session_goes_on(
    tmp_path: Path, tail: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    talk(FileSessions(tmp_path), 'robot1', ASK, ANSWER)
    with open(only_file(tmp_path), 'ab') as file:
        file.write(tail)
    store = FileSessions(tmp_path)
    session = store.resume('robot1')
    assert session.messages == (ASK, ANSWER)
    assert 'dropped' in caplog.text
    session.append([ASK], [])
    store.save(session)
    assert FileSessions(tmp_path).resume('robot1').messages == (ASK, ANSWER, ASK)


@settings(deadline=None)
@given(cut=st.integers(min_value=0, max_value=2000))
def test_a_file_cut_anywhere_gives_a_prefix_of_the_conversation(
    tmp_path_factory: pytest.TempPathFactory, cut: int
) -> None:
    directory = tmp_path_factory.mktemp('cut')
    store = FileSessions(directory)
    for _ in range(3):
        talk(store, 'robot1', ASK, ANSWER)
    path = only_file(directory)
    path.write_bytes(path.read_bytes()[:cut])
    messages = FileSessions(directory).resume('robot1').messages
    assert divergence(messages, (ASK, ANSWER) * 3) == ''


def test_a_full_context_starts_an_epoch_from_a_summary(tmp_path: Path) -> None:
    store = FileSessions(tmp_path, context_tokens=100)
    session = talk(store, 'robot1', ASK, ANSWER)
    session.close_task('go to the kitchen: SUCCESS')
    session.begin_task()
    store.save(session)
    resumed = FileSessions(tmp_path, context_tokens=100).resume('robot1')
    assert resumed.state.epoch == 1 and resumed.key == session.key
    assert 'go to the kitchen: SUCCESS' in resumed.messages[0].content
    assert [message.role for message in resumed.messages] == [Role.USER, Role.ASSISTANT]
    assert resumed.state.num_tokens == 0


def test_a_context_that_is_not_full_keeps_its_epoch(tmp_path: Path) -> None:
    session = talk(FileSessions(tmp_path, context_tokens=101), 'robot1', ASK, ANSWER)
    session.begin_task()
    assert session.state.epoch == 0 and session.messages == (ASK, ANSWER)


def test_a_hostile_robot_name_stays_inside_the_folder(tmp_path: Path) -> None:
    names = itertools.chain(['../../etc/passwd', 'a/b', '机器人', ''], ['x' * 300])
    for name in names:
        talk(FileSessions(tmp_path / 'sessions'), name, ASK)
    assert [path.name for path in tmp_path.iterdir()] == ['sessions']
    assert len(list((tmp_path / 'sessions').glob('*.jsonl'))) == 5


def test_a_folder_that_cannot_be_written_is_a_store_error(tmp_path: Path) -> None:
    (tmp_path / 'file').write_text('')
    store = FileSessions(tmp_path / 'file')
    session = AgentSession(MemorySessions().resume('robot1').state, 100)
    with pytest.raises(StoreError):
        store.save(session)


def test_ids_are_long_and_never_repeat() -> None:
    assert len({unguessable_id() for _ in range(1000)}) == 1000
