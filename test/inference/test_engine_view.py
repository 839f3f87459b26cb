"""A server's cache as kv_cache_node shows it: by events that can be trusted, else by the replies."""

from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace

import pytest

from kv_agent_ros.deadline import Deadline
from kv_agent_ros.inference.engine_mirror import MirrorState
from kv_agent_ros.inference.engine_view import MAX_SESSIONS, EngineView
from kv_agent_ros.inference.kv_events import EventFollower, NoReplay
from kv_agent_ros.inference.loopback_events import LoopbackEvents, stored
from kv_agent_ros.kvcache.block import CacheStats, SessionKey, SessionUsage, Tier

WAIT_S = 10.0
EMPTY = CacheStats(
    tiers=(),
    sessions=(),
    num_blocks=0,
    num_leases=0,
    num_expired_leases=0,
    prompt_tokens=5,
    cached_tokens=1,
    num_checksum_failures=0,
)


def usage(robot: str, num_blocks: int = 9) -> SessionUsage:
    session = SessionKey(robot_id=robot, session_id='s')
    return SessionUsage(session=session, num_blocks=num_blocks, is_pinned=False, prompt_tokens=100, cached_tokens=60)


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as opened:
        yield opened


def followed(stack: ExitStack, *events: object) -> tuple[LoopbackEvents, EventFollower]:
    """An engine without a replay that has said these events, and who heard them."""
    engine = LoopbackEvents()
    stack.callback(engine.close)
    follower = EventFollower.open(endpoint=engine.endpoint, replay=NoReplay())
    stack.callback(follower.close)
    deadline = Deadline(WAIT_S)
    while not follower.poll(0.02):
        assert not deadline.is_over
        engine.say({'type': 'AllBlocksCleared'})
    while follower.poll(0.02):
        pass
    engine.say(*events)
    while not follower.stats().num_blocks:
        assert not deadline.is_over
        follower.poll(0.02)
    return engine, follower


def test_without_events_the_replies_are_counted() -> None:
    view = EngineView()
    view.hear(usage('robot1'))
    view.hear(usage('robot2'))
    shown = view.added_to(EMPTY)
    assert (shown.tiers, shown.sessions) == ((), (usage('robot1'), usage('robot2')))
    assert (shown.prompt_tokens, shown.cached_tokens) == (205, 121)
    view.forget(usage('robot1').session)
    assert view.added_to(EMPTY).sessions == (usage('robot2'),)


def test_a_session_that_our_own_cache_knows_too_is_one_session() -> None:
    view = EngineView()
    view.hear(usage('robot1'))
    (shown,) = view.added_to(replace(EMPTY, sessions=(usage('robot1', num_blocks=1),))).sessions
    assert (shown.num_blocks, shown.prompt_tokens, shown.cached_tokens) == (10, 200, 120)


def test_events_win_over_replies_as_long_as_none_is_missing(stack: ExitStack) -> None:
    engine, follower = followed(stack, stored(1, 2, session='robot1/s'), stored(5, medium='CPU'))
    view = EngineView((follower,))
    view.hear(usage('robot1'))
    view.hear(usage('robot2'))
    shown = view.added_to(EMPTY)
    assert [each.num_blocks for each in shown.sessions] == [2, 0]
    assert [(tier.tier, tier.num_blocks, tier.is_degraded) for tier in shown.tiers] == [(Tier.HBM, 2, False)]
    engine.lose(stored(3, parent=2))
    engine.say(stored(4, parent=3))
    deadline = Deadline(WAIT_S)
    while follower.stats().state is not MirrorState.DEGRADED:
        assert not deadline.is_over
        follower.poll(0.02)
    shown = view.added_to(EMPTY)
    assert [each.num_blocks for each in shown.sessions] == [9, 9]
    assert shown.tiers[0].is_degraded


def test_events_that_name_no_sessions_leave_them_to_the_replies(stack: ExitStack) -> None:
    _, follower = followed(stack, stored(1, 2))
    view = EngineView((follower,))
    view.hear(usage('robot1'))
    assert view.added_to(EMPTY).sessions[0].num_blocks == 9


def test_the_longest_silent_sessions_are_dropped() -> None:
    view = EngineView()
    for number in range(MAX_SESSIONS + 1):
        view.hear(usage(f'robot{number}'))
    shown = view.added_to(EMPTY).sessions
    assert (len(shown), shown[0].session.robot_id) == (MAX_SESSIONS, 'robot1')
