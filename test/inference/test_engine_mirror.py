"""The mirror against a dictionary: whatever an engine says, the two indices and the matches agree."""

from hypothesis import given
from hypothesis import strategies as st

from kv_agent_ros.inference.engine_mirror import MAX_SESSIONS, EngineMirror, MirrorState
from kv_agent_ros.kvcache.block import Tier
from kv_agent_ros.kvcache.event_wire import AllCleared, BlocksRemoved, BlocksStored, WireEvent

HASHES = st.integers(1, 12)
SESSIONS = st.sampled_from(['', 'a', 'b'])
TIERS = st.sampled_from([Tier.HBM, Tier.DRAM])


def stored(block_hash: int, parent: int, tier: Tier, session: str = '') -> BlocksStored:
    return BlocksStored(
        block_hashes=(block_hash,),
        token_ids=(block_hash,),
        block_tokens=1,
        parent_hash=parent,
        tier=tier,
        session_id=session,
    )


# A block's parent is fixed, as it is in a chain of hashes: the half of its number.
EVENTS = st.one_of(
    st.builds(lambda value, tier, name: stored(value, value // 2, tier, name), HASHES, TIERS, SESSIONS),
    st.builds(lambda value, tier: BlocksRemoved(block_hashes=(value,), tier=tier), HASHES, TIERS),
    st.just(AllCleared()),
)


def expected_match(held: set[tuple[int, Tier]], path: list[int]) -> int:
    present = {value for value, _ in held}
    length = 0
    while length < len(path) and path[length] in present:
        length += 1
    return length


@given(st.lists(EVENTS, max_size=60))
def test_mirror_holds_what_a_set_of_blocks_and_tiers_holds(events: list[WireEvent]) -> None:
    mirror = EngineMirror()
    held: set[tuple[int, Tier]] = set()
    for event in events:
        mirror.apply(event)
        match event:
            case AllCleared():
                held.clear()
            case BlocksRemoved():
                held -= {(value, event.tier) for value in event.block_hashes}
            case BlocksStored():
                held.add((event.block_hashes[0], event.tier))
        mirror.check_integrity()
        for path in ([1, 2, 4, 8], [1, 2, 5, 11], [1, 3, 6, 12], [2, 4]):
            assert mirror.matched_tokens(path, '') == (0 if path[0] != 1 else expected_match(held, path))
    stats = mirror.stats()
    assert stats.num_blocks + stats.num_orphans == len({value for value, _ in held})
    assert all(1 <= depth <= 4 for depth in stats.blocks_by_session.values())  # 12 has three ancestors


def test_orphans_count_once_their_parent_is_known() -> None:
    mirror = EngineMirror()
    mirror.apply(stored(2, 1, Tier.HBM))
    assert (mirror.matched_tokens([1, 2], ''), mirror.stats().num_orphans) == (0, 1)
    mirror.apply(stored(1, 0, Tier.HBM))
    assert (mirror.matched_tokens([1, 2], ''), mirror.stats().num_orphans) == (2, 0)


def test_block_that_is_its_own_ancestor_is_never_reached() -> None:
    mirror = EngineMirror()
    mirror.apply(stored(1, 2, Tier.HBM))
    mirror.apply(stored(2, 1, Tier.HBM))
    mirror.check_integrity()
    assert mirror.stats().num_blocks == 0


def test_nothing_heard_is_not_the_same_as_nothing_cached() -> None:
    mirror = EngineMirror()
    assert mirror.state is MirrorState.WAITING
    mirror.apply(AllCleared())
    assert mirror.state is MirrorState.SYNCED


def test_sessions_that_are_long_silent_are_forgotten_though_their_prefix_stays() -> None:
    mirror = EngineMirror()
    for number in range(MAX_SESSIONS + 2):
        mirror.apply(stored(1, 0, Tier.HBM, 'robot'))
        mirror.apply(stored(1, 0, Tier.HBM, str(number)))
    mirror.check_integrity()
    names = set(mirror.stats().blocks_by_session)
    assert len(names) == MAX_SESSIONS
    assert {'robot', '3', str(MAX_SESSIONS + 1)} <= names
    assert not {'0', '1'} & names


def test_mirror_of_an_engine_that_never_removes_starts_anew_and_says_so() -> None:
    mirror = EngineMirror(max_blocks=4)
    for number in range(1, 6):
        mirror.apply(stored(number, 0, Tier.HBM))
    mirror.check_integrity()
    stats = mirror.stats()
    assert (stats.state, stats.num_blocks) == (MirrorState.DEGRADED, 1)
    assert mirror.matched_tokens([5], '') == 1
