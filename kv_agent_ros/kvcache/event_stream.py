"""Cache events over ZMQ, as engines publish them: a PUB socket, and a ROUTER socket that repeats what somebody missed.

A message is [topic, sequence, payload], the sequence 8 bytes big-endian, counting batches from 0. A request to the
ROUTER is the first sequence wanted; the answer ends with sequence -1. Wire format: KV events of SGLang and vLLM.
"""

from collections import deque
from collections.abc import Callable
from itertools import islice
import secrets
import threading
import time

import zmq

from kv_agent_ros.errors import ConfigError
from kv_agent_ros.kvcache.block import KVEvent
from kv_agent_ros.kvcache.event_wire import EventBatch, encode_batch, to_wire

END_OF_REPLAY = (-1).to_bytes(8, 'big', signed=True)
_MAX_QUEUED_EVENTS = 100_000  # what a stalled thread may owe; beyond it the oldest are lost, and the sequence shows it
_CLOSE_S = 5.0


class EventStream:
    """An EventListener that publishes. Its thread owns the sockets; calling it never blocks."""

    def __init__(
        self,
        *,
        publisher: zmq.Socket[bytes],
        replay: zmq.Socket[bytes],
        wake: tuple[zmq.Socket[bytes], zmq.Socket[bytes]],
        topic: str,
        num_kept_batches: int,
        wall_clock: Callable[[], float],
    ) -> None:
        self._publisher = publisher
        self._replay = replay
        self._topic = topic.encode()
        self._kept: deque[tuple[int, bytes]] = deque(maxlen=num_kept_batches)
        self._wall_clock = wall_clock
        self._waiting: deque[KVEvent] = deque()
        self._sequence = 0
        self._wake, self._wakes = wake
        self._lock = threading.Lock()
        self._is_closed = False
        self._thread = threading.Thread(target=self._work, name='kv-events', daemon=True)

    @classmethod
    def open(
        cls,
        *,
        endpoint: str,
        replay_endpoint: str,
        topic: str = '',
        num_kept_batches: int = 10_000,
        wall_clock: Callable[[], float] = time.time,
    ) -> 'EventStream':
        """Bind both endpoints, such as tcp://127.0.0.1:5557. Raises ConfigError when one cannot be bound."""
        publisher = _bound(zmq.PUB, endpoint)
        try:
            replay = _bound(zmq.ROUTER, replay_endpoint)
        except ConfigError:
            publisher.close(0)
            raise
        stream = cls(
            publisher=publisher,
            replay=replay,
            wake=_pair(),
            topic=topic,
            num_kept_batches=num_kept_batches,
            wall_clock=wall_clock,
        )
        stream._thread.start()
        return stream

    @property
    def endpoints(self) -> tuple[str, str]:
        """Where it publishes and where it replays; ports that were left open are filled in."""
        return (
            self._publisher.getsockopt_string(zmq.LAST_ENDPOINT),
            self._replay.getsockopt_string(zmq.LAST_ENDPOINT),
        )

    def __call__(self, event: KVEvent) -> None:
        """Publish one change soon."""
        with self._lock:
            if self._is_closed:
                return
            if len(self._waiting) == _MAX_QUEUED_EVENTS:
                self._waiting.popleft()
                self._sequence += 1  # nobody may take the gap for silence
            self._waiting.append(event)
            if len(self._waiting) == 1:
                self._wake.send(b'')

    def close(self) -> None:
        """Publish what waits, then close the sockets; idempotent."""
        with self._lock:
            if self._is_closed:
                return
            self._is_closed = True
            self._wake.send(b'')
        self._thread.join(_CLOSE_S)

    def _work(self) -> None:
        poller = zmq.Poller()
        poller.register(self._wakes, zmq.POLLIN)
        poller.register(self._replay, zmq.POLLIN)
        is_closed = False
        while not is_closed:
            ready = dict(poller.poll())
            if self._wakes in ready:
                self._wakes.recv()
                is_closed = self._publish()
            if self._replay in ready:
                self._answer(self._replay.recv_multipart())
        for socket in (self._publisher, self._replay, self._wakes, self._wake):
            socket.close(linger=1000)

    def _publish(self) -> bool:
        """Send what waits as one batch; whether this was the last."""
        with self._lock:
            events, self._waiting = self._waiting, deque()
            sequence = self._sequence
            self._sequence += bool(events)
            is_closed = self._is_closed
        if events:
            batch = EventBatch(at_s=self._wall_clock(), events=tuple(to_wire(event) for event in events))
            payload = encode_batch(batch)
            self._kept.append((sequence, payload))
            self._publisher.send_multipart([self._topic, sequence.to_bytes(8, 'big'), payload])
        return is_closed

    def _answer(self, frames: list[bytes]) -> None:
        """Repeat what is still kept from a sequence on; a malformed request gets only the end."""
        client, wanted = frames[0], frames[-1]
        first = int.from_bytes(wanted, 'big') if len(wanted) == 8 else 1 << 64
        num_earlier = sum(sequence < first for sequence, _ in self._kept)
        for sequence, payload in islice(self._kept, num_earlier, None):
            self._replay.send_multipart([client, b'', sequence.to_bytes(8, 'big'), payload])
        self._replay.send_multipart([client, b'', END_OF_REPLAY, b''])


def _pair() -> tuple[zmq.Socket[bytes], zmq.Socket[bytes]]:
    """Two ends: what is sent to the first arrives at the second."""
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context.instance()
    first, second = context.socket(zmq.PAIR), context.socket(zmq.PAIR)
    endpoint = f'inproc://{secrets.token_hex(16)}'
    second.bind(endpoint)
    first.connect(endpoint)
    return first, second


def _bound(kind: int, endpoint: str) -> zmq.Socket[bytes]:
    socket: zmq.Socket[bytes] = zmq.Context.instance().socket(kind)
    try:
        socket.bind(endpoint)
    except zmq.ZMQError as error:
        socket.close(0)
        raise ConfigError(
            f'events: expected a free endpoint like tcp://127.0.0.1:5557, got {endpoint!r} ({error})'
        ) from error
    return socket
