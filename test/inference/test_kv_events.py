"""Following an engine's events: real ZMQ sockets, and publishers that lose, repeat, restart and lie."""

from collections import deque
from collections.abc import Callable, Iterator
from contextlib import ExitStack
import threading

import numpy as np
import pytest

from kv_agent_ros.deadline import Deadline
from kv_agent_ros.errors import ConfigError
from kv_agent_ros.inference.engine_mirror import MirrorState
from kv_agent_ros.inference.kv_events import EventFollower, NoReplay, NumberedBatch, Replay, ZmqReplay
from kv_agent_ros.inference.loopback_events import ANYWHERE, LoopbackEvents, prefix, removed, stored
from kv_agent_ros.kvcache.block import EventKind, KVEvent, KVNamespace, Tier, block_keys
from kv_agent_ros.kvcache.event_stream import EventStream
from kv_agent_ros.kvcache.event_wire import EventBatch, encode_batch

WAIT_S = 10.0


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as opened:
        yield opened


@pytest.fixture
def engine(stack: ExitStack) -> LoopbackEvents:
    return publishing(stack)


def publishing(stack: ExitStack, endpoints: tuple[str, str] = ANYWHERE, num_kept: int = 1000) -> LoopbackEvents:
    engine = LoopbackEvents(endpoints, num_kept)
    stack.callback(engine.close)
    return engine


def following(stack: ExitStack, engine: LoopbackEvents, replay: Replay) -> EventFollower:
    follower = EventFollower.open(endpoint=engine.endpoint, replay=replay)
    stack.callback(follower.close)
    return follower


def connected(stack: ExitStack, engine: LoopbackEvents, replay: Replay) -> EventFollower:
    """A follower that hears what is said from now on: its connection stands."""
    follower = following(stack, engine, replay)
    follower.poll(0.0)
    deadline = Deadline(WAIT_S)
    while not follower.poll(0.05):
        assert not deadline.is_over
        engine.say()
    until(follower, lambda: follower.poll(0.05) == 0)
    return follower


def until(follower: EventFollower, predicate: Callable[[], bool], again: Callable[[], object] = lambda: None) -> None:
    """Poll until the predicate is true; fails after WAIT_S."""
    deadline = Deadline(WAIT_S)
    while not predicate():
        assert not deadline.is_over, follower.stats()
        again()
        follower.poll(0.05)


def with_replay(engine: LoopbackEvents) -> ZmqReplay:
    return ZmqReplay(engine.replay_endpoint, 1.0)


def test_late_follower_gets_everything_from_the_start(stack: ExitStack, engine: LoopbackEvents) -> None:
    engine.say(stored(1, 2))
    engine.say(stored(3, parent=2))
    follower = following(stack, engine, with_replay(engine))
    assert follower.stats().state is MirrorState.WAITING
    assert follower.poll(0.0) == 2
    stats = follower.stats()
    assert (stats.state, stats.num_blocks, stats.num_orphans) == (MirrorState.SYNCED, 3, 0)
    assert follower.matched_tokens(prefix(1, 2, 3, 9), '') == 6
    assert follower.matched_tokens(prefix(2, 3), '') == 0


def test_live_events_are_applied_once_though_a_replay_brought_them(stack: ExitStack, engine: LoopbackEvents) -> None:
    follower = connected(stack, engine, with_replay(engine))
    engine.say(stored(1))
    engine.say(removed(1))
    engine.say(stored(2))
    until(follower, lambda: follower.matched_tokens(prefix(2), '') == 2)
    assert follower.stats().num_events == 3
    assert follower.matched_tokens(prefix(1), '') == 0


def test_gap_is_filled_by_a_replay(stack: ExitStack, engine: LoopbackEvents) -> None:
    follower = connected(stack, engine, with_replay(engine))
    engine.lose(stored(1))
    engine.lose(stored(2, parent=1))
    engine.say(stored(3, parent=2))
    until(follower, lambda: follower.matched_tokens(prefix(1, 2, 3), '') == 6)
    assert follower.stats().state is MirrorState.SYNCED


def test_gap_that_nobody_can_fill_degrades_the_mirror_until_all_is_cleared(
    stack: ExitStack, engine: LoopbackEvents
) -> None:
    follower = connected(stack, engine, NoReplay())
    engine.say(stored(1))
    until(follower, lambda: follower.matched_tokens(prefix(1), '') == 2)
    engine.lose(removed(1))
    engine.say(stored(5))
    until(follower, lambda: follower.matched_tokens(prefix(5), '') == 2)
    assert follower.stats().state is MirrorState.DEGRADED
    engine.say({'type': 'AllBlocksCleared'})
    until(follower, lambda: follower.stats().state is MirrorState.SYNCED)
    assert follower.stats().num_blocks == 0


def test_engine_that_does_not_repeat_for_a_while_only_delays_the_mirror(
    stack: ExitStack, engine: LoopbackEvents
) -> None:
    follower = connected(stack, engine, ZmqReplay(engine.replay_endpoint, 0.05))
    engine.answers = False
    engine.lose(stored(1))
    engine.say(stored(2, parent=1))
    until(follower, lambda: follower.stats().state is MirrorState.DEGRADED)
    engine.answers = True
    until(follower, lambda: follower.matched_tokens(prefix(1, 2), '') == 4)
    assert follower.stats().state is MirrorState.SYNCED
    assert follower.stats().num_resyncs == 1


def test_lost_connection_degrades_the_mirror_until_the_engine_is_heard_again(stack: ExitStack) -> None:
    with ExitStack() as first_life:
        engine = publishing(first_life)
        endpoints = (engine.endpoint, engine.replay_endpoint)
        follower = connected(stack, engine, ZmqReplay(endpoints[1], 0.2))
        engine.say(stored(1))
        until(follower, lambda: follower.matched_tokens(prefix(1), '') == 2)
    until(follower, lambda: follower.stats().state is MirrorState.DEGRADED)
    publishing(stack, endpoints)
    until(follower, lambda: follower.stats().state is MirrorState.SYNCED)
    assert follower.stats().num_blocks == 0


def test_lost_connection_to_an_engine_that_never_repeats_degrades_the_mirror_too(stack: ExitStack) -> None:
    with ExitStack() as first_life:
        engine = publishing(first_life)
        follower = connected(stack, engine, NoReplay())
        engine.say(stored(1))
        until(follower, lambda: follower.matched_tokens(prefix(1), '') == 2)
    until(follower, lambda: follower.stats().state is MirrorState.DEGRADED)


def test_sessions_are_told_apart_and_followed_to_where_they_are_left(stack: ExitStack, engine: LoopbackEvents) -> None:
    follower = connected(stack, engine, with_replay(engine))
    engine.say(stored(1, 2, session='robot1/s'), stored(3, parent=1, session='robot2/s'))
    until(follower, lambda: follower.stats().num_blocks == 3)
    assert follower.stats().blocks_by_session == {'robot1/s': 2, 'robot2/s': 2}
    engine.say(removed(2))
    until(follower, lambda: follower.stats().num_blocks == 2)
    assert follower.stats().blocks_by_session == {'robot1/s': 1, 'robot2/s': 2}
    engine.say(removed(3, 1))
    until(follower, lambda: follower.stats().num_blocks == 0)
    assert follower.stats().blocks_by_session == {}
    assert follower.stats().names_sessions


def test_adapters_are_told_apart(stack: ExitStack, engine: LoopbackEvents) -> None:
    follower = connected(stack, engine, with_replay(engine))
    engine.say(stored(1, salt='a', adapter='gripper'))
    until(follower, lambda: follower.matched_tokens(prefix(1), 'a', 'gripper') == 2)
    assert follower.matched_tokens(prefix(1), 'a') == 0


def test_replay_that_begins_too_late_degrades_the_mirror(stack: ExitStack) -> None:
    engine = publishing(stack, num_kept=1)
    engine.say(stored(1))
    engine.say(stored(2, parent=1))
    follower = following(stack, engine, with_replay(engine))
    follower.poll(0.0)
    stats = follower.stats()
    assert (stats.state, stats.num_blocks, stats.num_orphans) == (MirrorState.DEGRADED, 0, 1)


def test_engine_that_starts_anew_is_mirrored_anew(stack: ExitStack, engine: LoopbackEvents) -> None:
    follower = connected(stack, engine, with_replay(engine))
    engine.say(stored(1, 2))
    until(follower, lambda: follower.matched_tokens(prefix(1, 2), '') == 4)
    engine.restart()
    engine.say(stored(7))
    until(follower, lambda: follower.matched_tokens(prefix(7), '') == 2)
    assert follower.matched_tokens(prefix(1), '') == 0
    assert follower.stats().state is MirrorState.SYNCED


def test_restart_that_has_already_counted_as_far_as_we_had_is_noticed(stack: ExitStack, engine: LoopbackEvents) -> None:
    follower = connected(stack, engine, with_replay(engine))
    engine.say(stored(1))
    until(follower, lambda: follower.matched_tokens(prefix(1), '') == 2)
    counted = engine.sequence
    engine.restart()
    for number in range(counted + 1):
        engine.lose(stored(20 + number))
    engine.say(stored(50))
    until(follower, lambda: follower.matched_tokens(prefix(50), '') == 2)
    assert follower.matched_tokens(prefix(1), '') == 0
    assert follower.matched_tokens(prefix(20), '') == 2


def test_restart_behind_a_broken_connection_is_noticed_without_a_gap(stack: ExitStack) -> None:
    with ExitStack() as first_life:
        engine = publishing(first_life)
        endpoints = (engine.endpoint, engine.replay_endpoint)
        follower = connected(stack, engine, ZmqReplay(endpoints[1], 0.2))
        engine.say(stored(1))
        until(follower, lambda: follower.matched_tokens(prefix(1), '') == 2)
        counted = engine.sequence
    second = publishing(stack, endpoints)
    second.at_s = 500.0
    for number in range(counted):
        second.lose(stored(20 + number))
    until(follower, lambda: follower.matched_tokens(prefix(20), '') == 2)
    assert follower.matched_tokens(prefix(1), '') == 0
    assert follower.stats().state is MirrorState.SYNCED


def test_tenants_and_tiers_are_told_apart(stack: ExitStack, engine: LoopbackEvents) -> None:
    follower = connected(stack, engine, with_replay(engine))
    engine.say(stored(1, salt='a'), stored(1, salt='a', medium='CPU_PINNED'), removed(1))
    until(follower, lambda: follower.matched_tokens(prefix(1), 'a') == 2)
    assert follower.matched_tokens(prefix(1), 'b') == 0
    assert follower.matched_tokens(prefix(1), '') == 0
    assert follower.stats().blocks_by_tier == {Tier.DRAM: 1}
    engine.say(removed(1, medium='CPU_PINNED'))
    until(follower, lambda: follower.matched_tokens(prefix(1), 'a') == 0)


def test_older_dialect_is_followed_too(stack: ExitStack, engine: LoopbackEvents) -> None:
    follower = connected(stack, engine, with_replay(engine))
    engine.say(['BlockStored', [1, 2], None, [2, 3, 4, 5], 2, None])
    engine.say(['BlockRemoved', [2]])
    until(follower, lambda: follower.matched_tokens([2, 3, 4, 5], '') == 2)


@pytest.mark.parametrize(
    'frames', [(b'kv',), (b'kv', b'xx', b''), (b'kv', bytes(8), b'not msgpack'), (b'kv', bytes(8), b'\xc0')]
)
def test_garbage_degrades_the_mirror_and_ends_nothing(
    stack: ExitStack, engine: LoopbackEvents, frames: tuple[bytes, ...]
) -> None:
    follower = connected(stack, engine, with_replay(engine))
    engine.say_bytes(*frames)
    engine.say(stored(1))
    until(follower, lambda: follower.matched_tokens(prefix(1), '') == 2)
    assert follower.stats().state is MirrorState.DEGRADED


@pytest.mark.parametrize('token', [1 << 31, -(1 << 31) - 1, (1 << 64) - 1])
def test_batch_that_cannot_be_read_is_a_hole_and_all_others_are_followed(
    stack: ExitStack, engine: LoopbackEvents, token: int
) -> None:
    follower = connected(stack, engine, with_replay(engine))
    engine.say(stored(1))
    until(follower, lambda: follower.matched_tokens(prefix(1), '') == 2)
    engine.say(stored(2, parent=1) | {'token_ids': [4, token]})
    engine.lose(stored(3, parent=1))
    engine.say(stored(4, parent=3))
    until(follower, lambda: follower.matched_tokens(prefix(1, 3, 4), '') == 6)
    assert follower.stats().state is MirrorState.DEGRADED
    engine.say({'type': 'AllBlocksCleared'})
    until(follower, lambda: follower.stats().state is MirrorState.SYNCED)


def test_number_that_no_engine_counts_to_is_garbage(stack: ExitStack, engine: LoopbackEvents) -> None:
    follower = connected(stack, engine, with_replay(engine))
    engine.say(stored(1))
    until(follower, lambda: follower.matched_tokens(prefix(1), '') == 2)
    engine.say_bytes(b'kv', (-5).to_bytes(8, 'big', signed=True), encode_batch(EventBatch(at_s=1e9, events=())))
    until(follower, lambda: follower.stats().state is MirrorState.DEGRADED)
    assert follower.matched_tokens(prefix(1), '') == 2


@pytest.mark.parametrize('frames', [(b'kv',), (b'kv', bytes(8), encode_batch(EventBatch(at_s=0.0, events=())))])
def test_poll_ends_though_the_engine_never_stops_repeating_itself(
    stack: ExitStack, engine: LoopbackEvents, frames: tuple[bytes, ...]
) -> None:
    follower = connected(stack, engine, NoReplay())
    is_over = threading.Event()
    talking = threading.Thread(
        target=lambda: deque(iter(lambda: engine.say_bytes(*frames) or is_over.is_set(), True), maxlen=0)
    )
    polling = threading.Thread(target=lambda: follower.poll(1.0))
    talking.start()
    polling.start()
    polling.join(WAIT_S)
    has_ended = not polling.is_alive()
    is_over.set()
    talking.join()
    polling.join()
    assert has_ended


class DefectiveReplay:
    """A Replay that has a bug for a while."""

    can_repeat = True

    def __init__(self, replay: Replay) -> None:
        self._replay = replay
        self.is_broken = False

    def batches(self, first: int) -> tuple[list[NumberedBatch], bool]:
        if self.is_broken:
            raise ZeroDivisionError
        return self._replay.batches(first)


def test_mirror_that_a_bug_kept_from_following_does_not_say_that_it_has(
    stack: ExitStack, engine: LoopbackEvents
) -> None:
    replay = DefectiveReplay(with_replay(engine))
    follower = connected(stack, engine, replay)
    assert follower.state is MirrorState.SYNCED
    replay.is_broken = True
    engine.lose(stored(1))
    engine.say(stored(2, parent=1))
    with pytest.raises(ZeroDivisionError):
        until(follower, lambda: False)
    assert follower.state is MirrorState.DEGRADED
    replay.is_broken = False
    until(follower, lambda: follower.matched_tokens(prefix(1, 2), '') == 4)


class MuteReplay:
    """A Replay that never answers, and counts who asked."""

    can_repeat = True
    num_asked = 0

    def batches(self, first: int) -> tuple[list[NumberedBatch], bool]:
        self.num_asked += 1
        return [], False


def test_engine_that_only_talks_and_never_repeats_holds_no_poll_up(stack: ExitStack, engine: LoopbackEvents) -> None:
    replay = MuteReplay()
    follower = following(stack, engine, replay)
    until(follower, lambda: replay.num_asked > 1, again=lambda: engine.say(stored(1)))  # its connection stands
    for _ in range(100):
        engine.say(stored(1))
    before = replay.num_asked
    follower.poll(WAIT_S)
    assert replay.num_asked - before <= 2


def test_replay_that_never_ends_is_cut_off(stack: ExitStack, engine: LoopbackEvents) -> None:
    engine.say(stored(1))
    engine.ends_replays = False
    replayed: list[bool] = []
    asking = threading.Thread(target=lambda: replayed.append(ZmqReplay(engine.replay_endpoint, 0.1).batches(0)[1]))
    asking.start()
    asking.join(WAIT_S)
    has_ended = not asking.is_alive()
    engine.ends_replays = True
    asking.join()
    assert (has_ended, replayed) == (True, [False])


def test_our_own_stream_is_followed(stack: ExitStack) -> None:
    stream = EventStream.open(endpoint='tcp://127.0.0.1:*', replay_endpoint='tcp://127.0.0.1:*')
    stack.callback(stream.close)
    endpoint, replay_endpoint = stream.endpoints
    tokens = np.arange(8, dtype='<i4')
    namespace = KVNamespace(
        model='m', revision='r', dtype='float16', num_layers=1, num_kv_heads=1, head_dim=4, block_tokens=4
    )
    keys = tuple(block_keys(namespace, tokens))
    stream(KVEvent(sequence=1, kind=EventKind.STORED, block_keys=keys, tokens=tokens.tobytes()))
    follower = EventFollower.open(endpoint=endpoint, replay=ZmqReplay(replay_endpoint, 1.0))
    stack.callback(follower.close)
    until(follower, lambda: follower.matched_tokens(tokens, '') == 8)
    assert follower.stats().blocks_by_tier == {Tier.DRAM: 2}
    stream(KVEvent(sequence=2, kind=EventKind.REMOVED, block_keys=keys[1:]))
    until(follower, lambda: follower.matched_tokens(tokens, '') == 4)


def test_impossible_endpoint_is_a_config_error() -> None:
    with pytest.raises(ConfigError, match='events'):
        EventFollower.open(endpoint='nowhere', replay=NoReplay())
