"""What our prefix tree costs when it is small and when it is a hundred times as large."""

from collections.abc import Callable
from dataclasses import dataclass
import gc
import time

import numpy as np

from benchmarks._tree_workload import NUM_TOKENS, VOCABULARY, Tokens, namespace, resident_bytes
from kv_agent_ros.kvcache.eviction import LruPolicy
from kv_agent_ros.kvcache.path import TokenPath, token_path
from kv_agent_ros.kvcache.radix_tree import RadixPrefixCache

NUM_REPEATS = 30
NUM_PROBES = 40  # sequences of each measurement, the same in every repeat


@dataclass(frozen=True, kw_only=True, slots=True)
class Growth:
    """CPU microseconds at one size: per sequence of 2,000 tokens, for evictions per block."""

    num_blocks: int
    match_us: float
    lock_us: float
    insert_us: float
    evict_us: float
    bytes_per_block: float
    num_repeats: int


def grow(num_small: int, num_large: int, block_tokens: int) -> tuple[Growth, Growth]:
    """One tree, measured at two sizes."""
    random = np.random.default_rng(2)
    space = namespace(block_tokens)
    tree = RadixPrefixCache(LruPolicy())
    probes = [token_path(space, _sequence(random)) for _ in range(NUM_PROBES)]
    for path in probes:
        tree.insert(path)
    gc.collect()
    gc.freeze()
    start_bytes, start_blocks = resident_bytes(), tree.num_blocks
    found = []
    for num_blocks in (num_small, num_large):
        while tree.num_blocks < num_blocks:
            tree.insert(token_path(space, _sequence(random)))
        grown = (resident_bytes() - start_bytes) / max(1, tree.num_blocks - start_blocks)
        found.append(_measure(tree, probes, [token_path(space, _sequence(random)) for _ in range(NUM_PROBES)], grown))
    return found[0], found[1]


def bytes_of_single_blocks(num_blocks: int) -> float:
    """Memory per block where every block is a node of its own: the worst shape."""
    tree = RadixPrefixCache(LruPolicy())
    tokens = np.random.default_rng(3).permutation(num_blocks * 16).astype('<i4').reshape(num_blocks, 16)
    before_bytes = resident_bytes()
    for block in tokens:
        tree.insert(TokenPath(root=b'', tokens=block.tobytes(), block_tokens=16))
    return (resident_bytes() - before_bytes) / num_blocks


def _sequence(random: np.random.Generator) -> Tokens:
    return random.integers(0, VOCABULARY, NUM_TOKENS, dtype=np.int32)


def _measure(tree: RadixPrefixCache, probes: list[TokenPath], fresh: list[TokenPath], grown: float) -> Growth:
    num_blocks = tree.num_blocks
    match_s = _best(lambda: [tree.match(path) for path in probes])
    lock_s = _best(lambda: [tree.unlock(tree.lock(path)) for path in probes])
    insert_s, evict_s = [], []
    num_probe_blocks = sum(path.num_blocks for path in fresh)
    for _ in range(NUM_REPEATS):
        held = [tree.hold(path) for path in probes]
        insert_s.append(_seconds(lambda: [tree.insert(path) for path in fresh]))
        evict_s.append(_seconds(lambda: tree.evict(num_probe_blocks)))
        for path in fresh:
            tree.cut(path, 0)
        for lock in held:
            tree.unlock(lock)
    return Growth(
        num_blocks=num_blocks,
        match_us=match_s * 1e6 / NUM_PROBES,
        lock_us=lock_s * 1e6 / NUM_PROBES,
        insert_us=min(insert_s) * 1e6 / NUM_PROBES,
        evict_us=min(evict_s) * 1e6 / num_probe_blocks,
        bytes_per_block=grown,
        num_repeats=NUM_REPEATS,
    )


def _best(call: Callable[[], object]) -> float:
    return min(_seconds(call) for _ in range(NUM_REPEATS))


def _seconds(call: Callable[[], object]) -> float:
    start_s = time.thread_time()
    call()
    return time.thread_time() - start_s
