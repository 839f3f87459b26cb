"""The tree against a model that knows nothing of runs, splits and queues: dictionaries of prefixes."""

from dataclasses import dataclass

from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule
import numpy as np
import pytest

from kv_agent_ros.kvcache.block import KVNamespace, block_keys
from kv_agent_ros.kvcache.eviction import BlockUse, LruPolicy, Rank
from kv_agent_ros.kvcache.path import TokenPath, token_path
from kv_agent_ros.kvcache.radix_tree import PathLock, RadixPrefixCache

Blocks = tuple[int, ...]  # one number per block
SEQUENCES = st.lists(st.integers(0, 2), max_size=7).map(tuple)
NUM_GHOSTS = 4


@dataclass(kw_only=True, slots=True)
class Use:
    """What the model knows about one block."""

    last: int
    first: int
    num_uses: int
    priority: int


class NotedLru:
    """LRU that keeps what it was told about every block."""

    def __init__(self) -> None:
        self.told: dict[bytes, BlockUse] = {}

    def rank(self, use: BlockUse) -> Rank:
        self.told[use.key] = use
        return (0, use.last_used)


class TreeMachine(RuleBasedStateMachine):
    """Every operation, at one block size; blocks differ in their last token only."""

    block_tokens = 3

    def __init__(self) -> None:
        super().__init__()
        self.policy = NotedLru()
        self.tree = RadixPrefixCache(self.policy, num_ghosts=NUM_GHOSTS)
        self.uses: dict[Blocks, Use] = {}  # prefix -> its last block
        self.ghosts: dict[Blocks, int] = {}
        self.doomed: set[Blocks] = set()
        self.locks: list[tuple[PathLock, Blocks]] = []
        self.tick = 0

    def path(self, blocks: Blocks) -> TokenPath:
        tokens = np.zeros((len(blocks), self.block_tokens), '<i4')
        tokens[:, -1] = blocks
        return TokenPath(root=b'a', tokens=tokens.tobytes(), block_tokens=self.block_tokens)

    def matched(self, blocks: Blocks) -> Blocks:
        end = 0
        while end < len(blocks) and blocks[: end + 1] in self.uses:
            end += 1
        return blocks[:end]

    def is_locked(self, prefix: Blocks) -> bool:
        return any(held[: len(prefix)] == prefix for _, held in self.locks)

    def leaves(self) -> list[Blocks]:
        parents = {prefix[:-1] for prefix in self.uses.keys() | self.doomed}
        return [prefix for prefix in self.uses if prefix not in parents and not self.is_locked(prefix)]

    def keys(self, prefixes: set[Blocks]) -> set[bytes]:
        return {self.path(prefix).keys()[-1] for prefix in prefixes}

    @rule(blocks=SEQUENCES, priority=st.integers(0, 2))
    def insert(self, blocks: Blocks, priority: int) -> None:
        found = self.matched(blocks)
        added = self.tree.insert(self.path(blocks), priority)
        if blocks[: len(found) + 1] in self.doomed:
            assert added == 0
            return
        assert added == len(blocks) - len(found)
        self.tick += 1
        for end in range(1, len(blocks) + 1):
            num_uses = 0 if end <= len(found) else 1 + self.ghosts.pop(blocks[:end], 0)
            fresh = Use(last=self.tick, first=self.tick, num_uses=num_uses, priority=priority)
            use = self.uses.setdefault(blocks[:end], fresh)
            use.last, use.priority = self.tick, max(priority, use.priority)

    @rule(blocks=SEQUENCES)
    def match(self, blocks: Blocks) -> None:
        assert self.tree.match(self.path(blocks)) == len(self.matched(blocks))

    @rule(blocks=SEQUENCES)
    def lock(self, blocks: Blocks) -> None:
        self.locks.append((self.tree.lock(self.path(blocks)), self.matched(blocks)))
        self.tick += 1
        for end in range(1, len(self.matched(blocks)) + 1):
            use = self.uses[blocks[:end]]
            use.last, use.num_uses = self.tick, use.num_uses + 1

    @rule(blocks=SEQUENCES, num_branches=st.integers(1, 3))
    def fork(self, blocks: Blocks, num_branches: int) -> None:
        for _ in range(num_branches):
            self.locks.append((self.tree.hold(self.path(blocks)), self.matched(blocks)))

    @rule(index=st.integers(0, 20))
    def unlock(self, index: int) -> None:
        if not self.locks:
            return
        lock, held = self.locks.pop(index % len(self.locks))
        assert lock.keys == self.path(held).keys()
        gone = {prefix for prefix in self.doomed if not self.is_locked(prefix)}
        assert set(self.tree.unlock(lock)) == self.keys(gone)
        assert self.tree.unlock(lock) == []
        self.doomed -= gone

    @rule(num_blocks=st.integers(0, 5))
    def evict(self, num_blocks: int) -> None:
        removed = self.tree.evict(num_blocks)
        assert len(removed) == min(num_blocks, sum(not self.is_locked(prefix) for prefix in self.uses))
        for key in removed:
            (victim,) = (prefix for prefix in self.leaves() if self.path(prefix).keys()[-1] == key)
            assert self.uses[victim].last == min(self.uses[prefix].last for prefix in self.leaves())
            self.ghosts[victim] = self.uses.pop(victim).num_uses
            if len(self.ghosts) > NUM_GHOSTS:
                del self.ghosts[next(iter(self.ghosts))]

    @rule(blocks=SEQUENCES, num_kept=st.integers(0, 6))
    def cut(self, blocks: Blocks, num_kept: int) -> None:
        removed = self.tree.cut(self.path(blocks), num_kept)
        if len(self.matched(blocks)) > num_kept:
            self.forget({prefix for prefix in self.uses if prefix[: num_kept + 1] == blocks[: num_kept + 1]}, removed)
        else:
            assert removed == []

    @rule()
    def clear(self) -> None:
        self.forget(set(self.uses), self.tree.clear())

    def forget(self, prefixes: set[Blocks], removed: list[bytes]) -> None:
        doomed = {prefix for prefix in prefixes if self.is_locked(prefix)}
        assert set(removed) == self.keys(prefixes - doomed)
        self.doomed |= doomed
        for prefix in prefixes:
            del self.uses[prefix]

    @rule()
    def ask_the_policy_about_every_leaf(self) -> None:
        self.policy.told.clear()
        self.tree.reorder()
        self.tree.victim_key()
        for prefix in self.leaves():
            use, told = self.uses[prefix], self.policy.told[self.path(prefix).keys()[-1]]
            assert (told.last_used, told.first_used) == (use.last, use.first)
            assert (told.num_uses, told.priority, told.depth) == (use.num_uses, use.priority, len(prefix) - 1)

    @invariant()
    def books_agree(self) -> None:
        self.tree.check_integrity()
        assert set(self.tree.all_keys()) == self.keys(set(self.uses) | self.doomed)
        assert self.tree.num_evictable_blocks == sum(not self.is_locked(prefix) for prefix in self.uses)

    def teardown(self) -> None:
        while self.locks:
            self.unlock(0)
        self.evict(len(self.uses))
        assert (self.tree.num_blocks, self.tree.num_evictable_blocks) == (0, 0)


@pytest.mark.parametrize('block_tokens', [1, 3, 16, 256])
def test_any_order_of_operations_agrees_with_sets_of_prefixes(block_tokens: int) -> None:
    machine = type(f'TreeOf{block_tokens}', (TreeMachine,), {'block_tokens': block_tokens})
    case = machine.TestCase
    case.settings = settings(max_examples=40, stateful_step_count=40, deadline=None)
    case('runTest').runTest()


TOKENS = st.lists(st.integers(0, 3), max_size=60)


@given(written=st.lists(TOKENS, max_size=6), wanted=TOKENS, block_tokens=st.sampled_from([1, 2, 3, 16, 256]))
def test_match_is_the_longest_common_prefix_in_full_blocks(
    written: list[list[int]], wanted: list[int], block_tokens: int
) -> None:
    namespace = space(block_tokens)
    tree = RadixPrefixCache(LruPolicy())
    for tokens in written:
        path = token_path(namespace, tokens)
        tree.insert(path)
        assert tree.match(path) == len(tokens) // block_tokens
    common = max((_num_common(tokens, wanted) // block_tokens for tokens in written), default=0)
    assert tree.match(token_path(namespace, wanted)) == common
    assert tree.lock(token_path(namespace, wanted)).keys == tuple(block_keys(namespace, wanted)[:common])
    assert set(tree.all_keys()) == {key for tokens in written for key in block_keys(namespace, tokens)}


@given(tenants=st.lists(st.text(max_size=3), min_size=2, max_size=4, unique=True), tokens=TOKENS)
def test_no_tenant_ever_matches_what_another_one_wrote(tenants: list[str], tokens: list[int]) -> None:
    writer, *others = (token_path(space(1, tenant), tokens) for tenant in tenants)
    tree = RadixPrefixCache(LruPolicy())
    tree.insert(writer)
    assert [tree.match(path) for path in others] == [0] * len(others)
    assert not set(writer.keys()) & {key for path in others for key in path.keys()}  # noqa: SIM118


def space(block_tokens: int, tenant: str = '') -> KVNamespace:
    return KVNamespace(
        model='m',
        revision='r',
        dtype='float16',
        num_layers=1,
        num_kv_heads=1,
        head_dim=2,
        block_tokens=block_tokens,
        tenant=tenant,
    )


def _num_common(one: list[int], other: list[int]) -> int:
    pairs = zip(one, other, strict=False)
    return next((index for index, (a, b) in enumerate(pairs) if a != b), min(len(one), len(other)))
