"""The prefix trees' workload: sequences with shared heads, inserted once, then matched. Every tree has a child process
of its own, so that none pays for the garbage of another. Needs numpy only, so that it runs in any environment.
"""

from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
import gc
from multiprocessing import get_context
from pathlib import Path
import resource
import sys
import time
from typing import Protocol, TypeVar

import numpy as np
import numpy.typing as npt

from kv_agent_ros.kvcache.block import KVNamespace
from kv_agent_ros.kvcache.eviction import LruPolicy
from kv_agent_ros.kvcache.path import token_path
from kv_agent_ros.kvcache.radix_tree import RadixPrefixCache

Tokens = npt.NDArray[np.int32]
Result = TypeVar('Result')

NUM_PREFIXES, NUM_TOKENS, NUM_SHARED = 100, 2_000, 1_500
VOCABULARY = 32_000
NUM_PASSES = 5  # of what does not change the tree


class Tree(Protocol):
    """A prefix tree under test. It was made with all sequences and may keep them as it likes them best."""

    def insert(self, index: int) -> int:
        """Add a sequence; how many of its tokens were there."""
        ...

    def match(self, index: int) -> int:
        """How many tokens of the sequence are there."""
        ...


MakeTree = Callable[[Sequence[Tokens], int], Tree]  # sequences, block_tokens


class OurTree:
    """RadixPrefixCache, the check of the tokens included."""

    def __init__(self, sequences: Sequence[Tokens], block_tokens: int) -> None:
        self._sequences = sequences
        self._namespace = namespace(block_tokens)
        self._tree = RadixPrefixCache(LruPolicy())

    def insert(self, index: int) -> int:
        path = token_path(self._namespace, self._sequences[index])
        return (path.num_blocks - self._tree.insert(path)) * path.block_tokens

    def match(self, index: int) -> int:
        path = token_path(self._namespace, self._sequences[index])
        return self._tree.match(path) * path.block_tokens


class TrieTree:
    """What one writes first: nested dictionaries, one level per block."""

    def __init__(self, sequences: Sequence[Tokens], block_tokens: int) -> None:
        self._sequences = [tokens.tobytes() for tokens in sequences]
        self._width = 4 * block_tokens
        self._root: dict[bytes, dict] = {}  # type: ignore[type-arg]

    def insert(self, index: int) -> int:
        node, tokens, num_found = self._root, self._sequences[index], 0
        for start in range(0, len(tokens) // self._width * self._width, self._width):
            block = tokens[start : start + self._width]
            num_found += block in node
            node = node.setdefault(block, {})
        return num_found * self._width // 4

    def match(self, index: int) -> int:
        node, tokens = self._root, self._sequences[index]
        for start in range(0, len(tokens) // self._width * self._width, self._width):
            found = node.get(tokens[start : start + self._width])
            if found is None:
                return start // 4
            node = found
        return len(tokens) // self._width * self._width // 4


def namespace(block_tokens: int) -> KVNamespace:
    """Some model."""
    return KVNamespace(
        model='m',
        revision='r',
        dtype='float16',
        num_layers=2,
        num_kv_heads=2,
        head_dim=64,
        block_tokens=block_tokens,
    )


def sequences(num_sequences: int, seed: int) -> list[Tokens]:
    """`num_sequences` of 2,000 tokens; 100 different heads of 1,500 tokens take turns."""
    random = np.random.default_rng(seed)
    heads = random.integers(0, VOCABULARY, (NUM_PREFIXES, NUM_SHARED), dtype=np.int32)
    tails = random.integers(0, VOCABULARY, (num_sequences, NUM_TOKENS - NUM_SHARED), dtype=np.int32)
    return [np.concatenate([heads[index % NUM_PREFIXES], tail]) for index, tail in enumerate(tails)]


def measure(make: MakeTree, items: Sequence[Tokens], block_tokens: int) -> dict[str, float]:
    """CPU microseconds per sequence, tokens that were found, and the growth of the process in bytes per token."""
    heads = [tokens[:NUM_SHARED].copy() for tokens in items]
    tree = make([*items, *heads], block_tokens)
    gc.collect()
    gc.freeze()
    before_bytes = resident_bytes()
    insert_us, insert_hits = _timed(tree.insert, range(len(items)))
    grown_bytes = resident_bytes() - before_bytes
    match_us, match_hits = _median(tree.match, range(len(items)))
    head_us, head_hits = _median(tree.match, range(len(items), 2 * len(items)))
    return {
        'insert_us': insert_us,
        'insert_hits': insert_hits,
        'match_us': match_us,
        'match_hits': match_hits,
        'head_us': head_us,
        'head_hits': head_hits,
        'bytes_per_token': grown_bytes / (len(items) * NUM_TOKENS - insert_hits),
    }


def compare_us(items: Sequence[Tokens], num_tokens: int) -> float:
    """CPU microseconds that numpy needs to compare a sequence with another copy of it."""
    pairs = [(tokens[:num_tokens].copy(), tokens[:num_tokens].copy()) for tokens in items]
    return _median(lambda index: int(np.array_equal(*pairs[index])), range(len(items)))[0]


def run_rounds(trees: dict[str, MakeTree], request: dict[str, object]) -> list[dict[str, object]]:
    """Every tree at every block size, one after the other, as often as asked; the limit is called numpy."""
    items = sequences(int(str(request['num_sequences'])), int(str(request['seed'])))
    sizes = request['block_tokens']
    assert isinstance(sizes, list)
    runs: list[dict[str, object]] = []
    for number in range(int(str(request['rounds']))):
        for size in sizes:
            for name, make in trees.items():
                print(f'round {number + 1}, blocks of {size}, {name} …', file=sys.stderr, flush=True)
                runs.append({'tree': name, 'block_tokens': size, **in_child(measure, make, items, size)})
            for what, num_tokens in (('match_us', NUM_TOKENS), ('head_us', NUM_SHARED)):
                limit_us = in_child(compare_us, items, num_tokens)
                runs.append({'tree': 'numpy', 'block_tokens': size, what: limit_us})
    return runs


def in_child(call: Callable[..., Result], *arguments: object) -> Result:
    """The result of a call in a fork of this process."""
    with ProcessPoolExecutor(max_workers=1, mp_context=get_context('fork')) as pool:
        return pool.submit(call, *arguments).result()


def resident_bytes() -> int:
    """Memory of this process."""
    return int(Path('/proc/self/statm').read_text().split()[1]) * resource.getpagesize()


def _median(call: Callable[[int], int], indices: range) -> tuple[float, int]:
    """The median of several passes that change nothing."""
    passes = sorted(_timed(call, indices) for _ in range(NUM_PASSES))
    return passes[NUM_PASSES // 2]


def _timed(call: Callable[[int], int], indices: range) -> tuple[float, int]:
    start_s = time.thread_time()
    total = sum(map(call, indices))
    return (time.thread_time() - start_s) * 1e6 / len(indices), total
