"""Follows an engine's stream of cache events into a mirror of its index: gaps, repeats, restarts and replays.

The wire is ZMQ as SGLang and vLLM publish it: [topic, sequence, payload], and a ROUTER that repeats what was missed.
An engine that starts anew counts from 0 again; since it gives no name to its life, the timestamp of the last batch we
applied tells one life from another.
"""

from collections.abc import Sequence
import contextlib
from dataclasses import dataclass
import threading
from typing import Protocol

import zmq
from zmq.utils.monitor import recv_monitor_message

from kv_agent_ros.deadline import Deadline
from kv_agent_ros.errors import BadRequestError, ConfigError
from kv_agent_ros.inference.engine_mirror import EngineMirror, MirrorState, MirrorStats
from kv_agent_ros.kvcache.block import TokenArray
from kv_agent_ros.kvcache.event_wire import AllCleared, EventBatch, decode_batch

END_OF_REPLAY = -1
SEQUENCE_BYTES = 8
NO_EVENTS = EventBatch(at_s=0.0, events=())
MAX_MESSAGES_A_POLL = 10_000
MAX_MESSAGES_A_REPLAY = 100_000
MAX_MESSAGE_BYTES = 64 << 20  # whoever sends a larger one is disconnected
REPLAY_PATIENCE = 10  # so many times what one message of a replay may take, for all of it
CONNECTION_CHANGES = zmq.EVENT_DISCONNECTED | zmq.EVENT_HANDSHAKE_SUCCEEDED


@dataclass(frozen=True, kw_only=True, slots=True)
class NumberedBatch:
    """A batch with its place in the stream."""

    sequence: int
    batch: EventBatch


class Replay(Protocol):
    """Where missed batches can be asked for."""

    def batches(self, first: int) -> tuple[list[NumberedBatch], bool]:
        """What the engine still has from the sequence `first` on, and whether that was all of it."""
        ...

    @property
    def can_repeat(self) -> bool:
        """Whether it ever has an answer."""
        ...


class NoReplay:
    """A Replay of engines that keep nothing: what is missed is lost."""

    can_repeat = False

    def batches(self, first: int) -> tuple[list[NumberedBatch], bool]:
        return [], False


class ZmqReplay:
    """A Replay over an engine's ROUTER endpoint; waits at most `timeout_s` for each message, and ten times for all.

    A batch that cannot be read is left out.
    """

    can_repeat = True

    def __init__(self, endpoint: str, timeout_s: float) -> None:
        self._endpoint = endpoint
        self._timeout_s = timeout_s

    def batches(self, first: int) -> tuple[list[NumberedBatch], bool]:
        """See Replay. A socket a request, so that a late answer is never taken for that of another question."""
        socket = _connected(zmq.DEALER, self._endpoint)
        found: list[NumberedBatch] = []
        try:
            socket.send_multipart([b'', first.to_bytes(SEQUENCE_BYTES, 'big')])
            deadline = Deadline(REPLAY_PATIENCE * self._timeout_s)
            for _ in range(MAX_MESSAGES_A_REPLAY):
                wait_s = min(self._timeout_s, deadline.remaining_s)
                if deadline.is_over or not socket.poll(round(wait_s * 1000)):
                    break
                frames = socket.recv_multipart()
                with contextlib.suppress(BadRequestError):
                    heard = _read(frames)
                    if heard.sequence == END_OF_REPLAY:
                        return found, True
                    found.append(heard)
            return found, False
        finally:
            socket.close(0)


class EventFollower:
    """Keeps one engine's mirror. poll() belongs to one thread; the questions are thread-safe."""

    def __init__(self, subscription: zmq.Socket[bytes], replay: Replay) -> None:
        self._subscription = subscription
        self._monitor: zmq.Socket[bytes] = subscription.get_monitor_socket(CONNECTION_CHANGES)
        self._replay = replay
        self._mirror = EngineMirror()
        self._lock = threading.Lock()
        self._expected = 0  # sequence of the next batch
        self._last_at_s = 0.0  # timestamp of the one before it
        self._has_hole = False  # batches of this life of the engine are lost
        self._must_verify = True  # the engine may have begun another life

    @classmethod
    def open(cls, *, endpoint: str, replay: Replay, topic: str = '') -> 'EventFollower':
        """Subscribe, whether or not the engine is there yet. Raises ConfigError for an impossible endpoint."""
        subscription = _connected(zmq.SUB, endpoint)
        subscription.setsockopt(zmq.SUBSCRIBE, topic.encode())
        return cls(subscription, replay)

    def poll(self, timeout_s: float) -> int:
        """Apply what the engine has said, waiting up to `timeout_s` for the first of it; the number of batches."""
        try:
            return self._poll(timeout_s)
        except BaseException:  # of which we know nothing, least of all what it kept from being applied
            self._lose()
            raise

    def matched_tokens(self, tokens: TokenArray | Sequence[int], cache_salt: str, adapter: str = '') -> int:
        """How many tokens from the first on the engine holds in some tier for that tenant and LoRA adapter."""
        with self._lock:
            return self._mirror.matched_tokens(tokens, cache_salt, adapter)

    @property
    def state(self) -> MirrorState:
        """How far the mirror can be trusted; cheap."""
        with self._lock:
            return self._mirror.state

    def stats(self) -> MirrorStats:
        """The mirror's books."""
        with self._lock:
            return self._mirror.stats()

    def close(self) -> None:
        """Close the sockets; idempotent."""
        if not self._subscription.closed:
            self._subscription.disable_monitor()
            self._subscription.close(0)

    def _poll(self, timeout_s: float) -> int:
        self._note_connections()
        num_applied = self._catch_up() if self._must_verify else 0
        for number in range(MAX_MESSAGES_A_POLL):
            if not self._subscription.poll(0 if number or num_applied else round(timeout_s * 1000)):
                break
            num_applied += self._hear(self._subscription.recv_multipart())
            if self._must_verify and self._replay.can_repeat:
                break  # it has just been asked, and to ask takes long
        return num_applied

    def _hear(self, frames: list[bytes]) -> int:
        """One live message; the number of batches that it led to."""
        self._note_connections()
        try:
            heard = _read(frames)
        except BadRequestError:
            self._lose()
            return 0
        if heard.sequence < self._expected:
            if heard.batch.at_s <= self._last_at_s:
                return 0  # a replay has brought it already
            self._begin_life()
        num_applied = 0
        is_broken = heard.sequence > self._expected or (self._must_verify and self._expected > 0)
        if is_broken or self._must_verify:
            self._must_verify = self._replay.can_repeat
            num_applied = self._catch_up()
            if self._must_verify:
                return 0  # the next poll asks again, and then gets this one, too
        if heard.sequence < self._expected:
            return num_applied
        if heard.sequence > self._expected or (is_broken and not self._replay.can_repeat):
            self._lose()
        self._apply(heard)
        return num_applied + 1

    def _catch_up(self) -> int:
        """Apply what we have missed, if the engine can say it; the number of batches."""
        batches, is_whole = self._replay.batches(max(0, self._expected - 1))
        if not is_whole:
            self._judge()
            return 0
        if self._expected and not self._continues(batches):
            self._begin_life()
            batches, is_whole = self._replay.batches(0)
            if not is_whole:
                return 0
        self._must_verify = False
        num_applied = 0
        for each in batches:
            if each.sequence > self._expected:
                self._lose()
            if each.sequence >= self._expected:
                self._apply(each)
                num_applied += 1
        self._judge()
        return num_applied

    def _continues(self, batches: list[NumberedBatch]) -> bool:
        """Whether the first of these is the last that we have applied."""
        if not batches:
            return False
        return (batches[0].sequence, batches[0].batch.at_s) == (self._expected - 1, self._last_at_s)

    def _apply(self, numbered: NumberedBatch) -> None:
        with self._lock:
            for event in numbered.batch.events:
                is_kept = self._mirror.apply(event)
                self._has_hole = (self._has_hole or not is_kept) and not isinstance(event, AllCleared)
        self._expected = numbered.sequence + 1
        self._last_at_s = numbered.batch.at_s
        self._judge()

    def _begin_life(self) -> None:
        """The engine has started anew, with nothing in its cache."""
        self._expected, self._last_at_s, self._has_hole = 0, 0.0, False
        with self._lock:
            self._mirror.clear()

    def _lose(self) -> None:
        """Something that the engine said is lost for good."""
        self._has_hole = True
        self._judge()

    def _judge(self) -> None:
        if self._must_verify and not self._expected:
            return  # nothing was heard yet
        with self._lock:
            if self._has_hole or self._must_verify:
                self._mirror.mark_degraded()
            else:
                self._mirror.mark_synced()

    def _note_connections(self) -> None:
        """What was said before a connection stood is missed, and behind one that broke may be another life."""
        while self._monitor.poll(0):
            recv_monitor_message(self._monitor)
            self._must_verify = True
            self._judge()


def _read(frames: list[bytes]) -> NumberedBatch:
    """A message of the stream or of a replay, whose frames before the last two differ between engines."""
    if len(frames) < 2 or len(frames[-2]) != SEQUENCE_BYTES:
        raise BadRequestError(f'event message: expected [topic, sequence, payload], got {len(frames)} frames')
    sequence = int.from_bytes(frames[-2], 'big', signed=True)
    if sequence == END_OF_REPLAY:
        return NumberedBatch(sequence=sequence, batch=NO_EVENTS)
    if sequence < 0:
        raise BadRequestError(f'event message: expected a number from 0 on, got {sequence}')
    return NumberedBatch(sequence=sequence, batch=decode_batch(frames[-1]))


def _connected(kind: int, endpoint: str) -> zmq.Socket[bytes]:
    socket: zmq.Socket[bytes] = zmq.Context.instance().socket(kind)
    socket.setsockopt(zmq.MAXMSGSIZE, MAX_MESSAGE_BYTES)
    try:
        socket.connect(endpoint)
    except zmq.ZMQError as error:
        socket.close(0)
        raise ConfigError(f'events: expected an endpoint like tcp://127.0.0.1:5557, got {endpoint!r}') from error
    return socket
