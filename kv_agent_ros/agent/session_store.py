"""Where sessions live between tasks and restarts: JSON lines per robot, or memory.

A file holds one header, then what was added, a line each, flushed to disk before the task goes on. A torn or damaged
line ends the file as far as we read: the session goes on from the last whole line, with a warning. A new epoch, a lost
tail and a first save replace the file in one step.
"""

from collections.abc import Callable, Iterator
from dataclasses import replace
import hashlib
import json
import logging
import os
from pathlib import Path
import secrets
from typing import Protocol

from kv_agent_ros.agent.session import AgentSession, SessionState
from kv_agent_ros.errors import BadRequestError, StoreError
from kv_agent_ros.inference.base import Message, Role
from kv_agent_ros.kvcache.block import SessionKey
from kv_agent_ros.robot.plan import Json

VERSION = 1
CONTEXT_TOKENS = 4000

_log = logging.getLogger(__name__)


def unguessable_id() -> str:
    """128 random bits: nobody can name another robot's session."""
    return secrets.token_hex(16)


class SessionStore(Protocol):
    """Hands out and keeps sessions, one per robot."""

    def resume(self, robot_id: str) -> AgentSession:
        """The robot's session, as it was when last saved, or a first one."""
        ...

    def save(self, session: AgentSession) -> None:
        """Keep it. Raises StoreError."""
        ...


class MemorySessions:
    """A SessionStore that forgets at exit."""

    def __init__(self, ids: Callable[[], str] = unguessable_id, context_tokens: int = CONTEXT_TOKENS) -> None:
        self._ids = ids
        self._context_tokens = context_tokens
        self._states: dict[str, SessionState] = {}

    def resume(self, robot_id: str) -> AgentSession:
        first = SessionState(key=SessionKey(robot_id=robot_id, session_id=self._ids()))
        return AgentSession(self._states.get(robot_id, first), self._context_tokens)

    def save(self, session: AgentSession) -> None:
        self._states[session.key.robot_id] = session.state


class FileSessions:
    """A SessionStore in a directory. One process at a time writes a robot's file."""

    def __init__(
        self, directory: Path, ids: Callable[[], str] = unguessable_id, context_tokens: int = CONTEXT_TOKENS
    ) -> None:
        self._directory = directory
        self._ids = ids
        self._context_tokens = context_tokens
        self._saved: dict[str, SessionState] = {}

    def resume(self, robot_id: str) -> AgentSession:
        path = self._path(robot_id)
        state = SessionState(key=SessionKey(robot_id=robot_id, session_id=self._ids()))
        try:
            lines = path.read_bytes().split(b'\n') if path.exists() else []
        except OSError as error:
            raise StoreError(f'session file {path}: expected to read it, got {error}') from error
        kept = 0
        for line in lines[:-1]:
            try:
                state = _apply(state, json.loads(line), robot_id)
            except (ValueError, KeyError, TypeError, RecursionError, BadRequestError) as error:
                _log.warning('%s: line %d is damaged (%s); the session goes on from before it', path, kept + 1, error)
                break
            kept += 1
        if kept == len(lines) - 1 and lines[-1] == b'':
            self._saved[robot_id] = state
        elif lines:
            _log.warning('%s: %d bytes after line %d are dropped', path, len(b''.join(lines[kept:])), kept)
            self._saved.pop(robot_id, None)
        return AgentSession(state, self._context_tokens)

    def save(self, session: AgentSession) -> None:
        state, saved = session.state, self._saved.get(session.key.robot_id)
        try:
            self._directory.mkdir(parents=True, exist_ok=True)
            if saved is None or saved.key != state.key or saved.epoch != state.epoch:
                self._replace(state)
            else:
                self._append(state, saved)
        except OSError as error:
            raise StoreError(f'session file in {self._directory}: expected to write it, got {error}') from error
        self._saved[state.key.robot_id] = state

    def _replace(self, state: SessionState) -> None:
        path = self._path(state.key.robot_id)
        fresh = path.with_suffix('.tmp')
        _write(fresh, 'wb', [_header(state), *_changes(replace(state, messages=(), tasks=(), num_tokens=0), state)])
        os.replace(fresh, path)
        descriptor = os.open(self._directory, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    def _append(self, state: SessionState, saved: SessionState) -> None:
        changes = list(_changes(saved, state))
        if changes:
            _write(self._path(state.key.robot_id), 'ab', changes)

    def _path(self, robot_id: str) -> Path:
        plain = ''.join(char for char in robot_id if char.isascii() and (char.isalnum() or char in '_-'))[:40]
        return self._directory / f'{plain}-{hashlib.sha256(robot_id.encode()).hexdigest()[:8]}.jsonl'


def _write(path: Path, mode: str, records: list[dict[str, Json]]) -> None:
    text = ''.join(json.dumps(record, ensure_ascii=False, separators=(',', ':')) + '\n' for record in records)
    with open(path, mode) as file:
        file.write(text.encode())
        file.flush()
        os.fsync(file.fileno())


def _header(state: SessionState) -> dict[str, Json]:
    return {
        'version': VERSION,
        'robot_id': state.key.robot_id,
        'session_id': state.key.session_id,
        'epoch': state.epoch,
    }


def _changes(old: SessionState, state: SessionState) -> Iterator[dict[str, Json]]:
    for message in state.messages[len(old.messages) :]:
        yield {'role': message.role.value, 'content': message.content, 'token_ids': list(message.token_ids)}
    if state.tasks != old.tasks:
        yield {'tasks': list(state.tasks)}
    if state.num_tokens != old.num_tokens:
        yield {'num_tokens': state.num_tokens}


def _apply(state: SessionState, record: dict[str, Json], robot_id: str) -> SessionState:
    """The state after one line. Raises ValueError, KeyError or TypeError when the line is not one of ours."""
    if 'version' in record:
        if record['version'] != VERSION or record['robot_id'] != robot_id:
            raise BadRequestError(f'session: expected version {VERSION} of {robot_id}, got {record["version"]}')
        key = SessionKey(robot_id=robot_id, session_id=str(record['session_id']))
        return SessionState(key=key, epoch=int(str(record['epoch'])))
    if 'tasks' in record:
        tasks = record['tasks']
        return replace(state, tasks=tuple(map(str, tasks)) if isinstance(tasks, list) else ())
    if 'num_tokens' in record:
        return replace(state, num_tokens=int(str(record['num_tokens'])))
    ids = record['token_ids']
    message = Message(
        role=Role(record['role']),
        content=str(record['content']),
        token_ids=tuple(int(str(each)) for each in ids) if isinstance(ids, list) else (),
    )
    return replace(state, messages=(*state.messages, message))
