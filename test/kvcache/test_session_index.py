"""References that are soft, and sessions that stay closed."""

import numpy as np

from kv_agent_ros.kvcache.block import KVNamespace, SessionKey
from kv_agent_ros.kvcache.path import TokenPath, token_path
from kv_agent_ros.kvcache.session_index import SessionIndex

NAMESPACE = KVNamespace(
    model='tiny', revision='1', dtype='float32', num_layers=1, num_kv_heads=1, head_dim=4, block_tokens=4
)
ONE, TWO = (SessionKey(robot_id=f'robot{n}', session_id='planner') for n in (1, 2))


def path(*tokens: int) -> TokenPath:
    return token_path(NAMESPACE, np.repeat(np.asarray(tokens, np.int32), 4))


def refer(index: SessionIndex, session: SessionKey, *tokens: int) -> bool:
    return index.refer(session, index.join(session), path(*tokens), path(*tokens).keys())


def test_references_are_counted_by_session() -> None:
    index = SessionIndex()
    refer(index, ONE, 1, 2)
    refer(index, TWO, 1)
    first, second = path(1, 2).keys()
    assert [index.num_references(key) for key in (first, second, bytes(32))] == [2, 1, 0]
    assert index.end(TWO) == 1
    assert index.num_references(first) == 1
    index.check_integrity()


def test_closed_session_is_opened_by_a_new_turn_only() -> None:
    index = SessionIndex()
    generation = index.begin(ONE)
    index.end(ONE)
    assert not refer(index, ONE, 1)
    assert index.begin(ONE) != generation
    assert not index.refer(ONE, generation, path(1), path(1).keys())
    assert refer(index, ONE, 1)


def test_tombstones_are_bounded_and_the_oldest_goes_first() -> None:
    index = SessionIndex()
    for number in range(8193):
        index.end(SessionKey(robot_id=f'robot{number}', session_id='x'))
    assert not refer(index, SessionKey(robot_id='robot1', session_id='x'), 1)
    assert refer(index, SessionKey(robot_id='robot0', session_id='x'), 1)


def test_session_that_was_only_crowded_out_opens_itself_again() -> None:
    index = SessionIndex(max_sessions=1)
    refer(index, ONE, 1)
    refer(index, TWO, 2)
    assert index.drop_surplus() == [ONE]
    assert refer(index, ONE, 1)
    index.check_integrity()


def test_fork_of_a_session_that_lost_blocks_shares_the_rest() -> None:
    index = SessionIndex()
    refer(index, ONE, 1, 2, 3)
    index.forget_blocks(path(1, 2, 3).keys()[2:])
    assert index.fork(ONE, TWO) == 2
    assert index.prefix(TWO).keys() == path(1, 2, 3).keys()


def test_clock_of_a_turn_counts_what_was_computed_since_it_started() -> None:
    index = SessionIndex()
    assert index.read_clock(ONE, 100, 5.0) == (0, 0.0)
    index.begin(ONE)
    index.start_clock(ONE, 60, 5.0)
    assert index.read_clock(ONE, 100, 7.0) == (40, 2.0)
    assert index.read_clock(ONE, 20, 7.0) == (0, 2.0)


class CountedKey(SessionKey):
    """Knows how often keys were looked up."""

    num_lookups = 0

    def __hash__(self) -> int:
        CountedKey.num_lookups += 1
        return hash(self.session_id)


def test_looking_for_surplus_sessions_costs_the_same_however_many_are_open() -> None:
    index = SessionIndex()
    for number in range(500):
        index.begin(CountedKey(robot_id='robot', session_id=str(number)))
    CountedKey.num_lookups = 0
    assert index.drop_surplus() == []
    assert CountedKey.num_lookups <= 2
