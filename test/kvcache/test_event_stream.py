"""Events over real sockets on this machine: in order, repeated on request, never in the way of the cache."""

from collections.abc import Iterator
import contextlib
import time

import pytest
import zmq

from kv_agent_ros.errors import ConfigError
from kv_agent_ros.kvcache.block import EventKind, KVEvent, Tier
from kv_agent_ros.kvcache.event_stream import END_OF_REPLAY, EventStream
from kv_agent_ros.kvcache.event_wire import AllCleared, BlocksRemoved, decode_batch

LOOPBACK = 'tcp://127.0.0.1:*'
TIMEOUT_MS = 20_000


@pytest.fixture
def stream() -> Iterator[EventStream]:
    opened = EventStream.open(
        endpoint=LOOPBACK, replay_endpoint=LOOPBACK, topic='kv', num_kept_batches=3, wall_clock=lambda: 12.0
    )
    yield opened
    opened.close()


def removed(number: int) -> KVEvent:
    return KVEvent(sequence=number, kind=EventKind.REMOVED, block_keys=(number.to_bytes(8, 'big') + bytes(24),))


def connected(kind: int, endpoint: str) -> 'zmq.Socket[bytes]':
    socket: zmq.Socket[bytes] = zmq.Context.instance().socket(kind)
    socket.setsockopt(zmq.RCVTIMEO, TIMEOUT_MS)
    socket.setsockopt(zmq.LINGER, 0)
    socket.connect(endpoint)
    return socket


def replayed(stream: EventStream, wanted: bytes) -> list[tuple[int, bytes]]:
    """The batches that the replay socket answers with."""
    with connected(zmq.DEALER, stream.endpoints[1]) as socket:
        socket.send_multipart([b'', wanted])
        batches = []
        while (frames := socket.recv_multipart())[1] != END_OF_REPLAY:
            batches.append((int.from_bytes(frames[1], 'big'), frames[2]))
        return batches


@pytest.fixture
def subscriber(stream: EventStream) -> Iterator['zmq.Socket[bytes]']:
    """A subscriber whose subscription has arrived: it has heard something, and hears nothing more."""
    with connected(zmq.SUB, stream.endpoints[0]) as socket:
        socket.subscribe('kv')
        for _ in range(200):
            stream(removed(0))
            if socket.poll(100):
                break
        while socket.poll(300):
            socket.recv_multipart()
        yield socket


def published(stream: EventStream, subscriber: 'zmq.Socket[bytes]', number: int) -> tuple[int, bytes]:
    """Publish one event and wait for its message, so that it is a batch of its own."""
    stream(removed(number))
    topic, sequence, payload = subscriber.recv_multipart()
    assert topic == b'kv'
    return int.from_bytes(sequence, 'big'), payload


def test_a_subscriber_hears_every_batch_in_order(stream: EventStream, subscriber: 'zmq.Socket[bytes]') -> None:
    messages = [published(stream, subscriber, number) for number in (5, 6, 7)]
    first = messages[0][0]
    assert [sequence for sequence, _ in messages] == [first, first + 1, first + 2]
    assert [decode_batch(payload).events for _, payload in messages] == [
        (BlocksRemoved(block_hashes=(number,), tier=Tier.DRAM),) for number in (5, 6, 7)
    ]
    assert decode_batch(messages[0][1]).at_s == 12.0


def test_who_missed_something_can_have_it_again(stream: EventStream, subscriber: 'zmq.Socket[bytes]') -> None:
    messages = [published(stream, subscriber, number) for number in (5, 6, 7, 8)]
    assert replayed(stream, messages[2][0].to_bytes(8, 'big')) == messages[2:]


def test_only_the_last_batches_are_kept(stream: EventStream, subscriber: 'zmq.Socket[bytes]') -> None:
    messages = [published(stream, subscriber, number) for number in range(5)]
    assert replayed(stream, bytes(8)) == messages[-3:]


@pytest.mark.parametrize('wanted', [b'', b'abc', b'\xff' * 8, b'x' * 900])
def test_a_strange_request_gets_only_the_end(stream: EventStream, wanted: bytes) -> None:
    stream(removed(1))
    assert replayed(stream, wanted) == []


def test_what_waits_at_the_end_is_still_published(stream: EventStream, subscriber: 'zmq.Socket[bytes]') -> None:
    stream(KVEvent(sequence=1, kind=EventKind.CLEARED))
    stream.close()
    assert decode_batch(subscriber.recv_multipart()[2]).events == (AllCleared(),)


def test_after_the_end_events_are_ignored_and_ports_are_free() -> None:
    first = EventStream.open(endpoint=LOOPBACK, replay_endpoint=LOOPBACK)
    endpoint, replay_endpoint = first.endpoints
    first.close()
    first(removed(1))
    first.close()
    open_soon(endpoint, replay_endpoint).close()


def open_soon(endpoint: str, replay_endpoint: str) -> EventStream:
    """ZMQ frees the port of a closed socket a little later."""
    end_s = time.monotonic() + 10.0
    while time.monotonic() < end_s:
        with contextlib.suppress(ConfigError):
            return EventStream.open(endpoint=endpoint, replay_endpoint=replay_endpoint)
    raise AssertionError(f'{endpoint} or {replay_endpoint} is never free again')


def test_a_taken_endpoint_is_a_clear_error(stream: EventStream) -> None:
    with pytest.raises(ConfigError, match='expected a free endpoint'):
        EventStream.open(endpoint=LOOPBACK, replay_endpoint=stream.endpoints[0])
