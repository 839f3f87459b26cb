"""Which prefixes a tier holds: one radix tree of token blocks per namespace.

An edge is a run of blocks, compared with numpy at once; children are found by the tokens of their first block. The tree
knows keys, locks and the order of use; it has never heard of bytes, tiers or sessions. It is not thread-safe: its owner
guards it. After RadixAttention (arXiv 2312.07104), with tail blocks instead of whole nodes as the unit of eviction.
"""

from collections.abc import Iterator, Sequence
import heapq
import itertools

import numpy as np

from kv_agent_ros.errors import StoreError
from kv_agent_ros.kvcache.eviction import EvictionPolicy, Rank
from kv_agent_ros.kvcache.path import BlockTokens

_MAX_STALE_ENTRIES = 1024  # of removed nodes in the eviction queue, beyond one per block, before it is rebuilt


class _Node:
    """A run of blocks below `parent`. A doomed node is no longer matched and goes with its last lock."""

    __slots__ = ('children', 'is_doomed', 'is_queued', 'keys', 'last_used', 'num_locks', 'parent', 'tokens')

    def __init__(self, parent: '_Node | None', tokens: BlockTokens, keys: list[bytes], last_used: int) -> None:
        self.parent = parent  # None: a root, or removed
        self.tokens = tokens
        self.keys = keys
        self.children: dict[bytes, _Node] = {}
        self.num_locks = 0
        self.last_used = last_used
        self.is_doomed = False
        self.is_queued = False


class PathLock:
    """Keeps a prefix in the tree until `RadixPrefixCache.unlock()`; `keys` from the first block to the last."""

    __slots__ = ('_node', 'is_released', 'keys')

    def __init__(self, keys: tuple[bytes, ...], node: _Node) -> None:
        self.keys = keys
        self.is_released = False
        self._node = node


class RadixPrefixCache:
    """Longest-prefix match, insertion, locks by handle and tail-first eviction over token blocks.

    `root` is a namespace digest; all `blocks` of one root have the same width.
    """

    def __init__(self, policy: EvictionPolicy) -> None:
        self._policy = policy
        self._roots: dict[bytes, _Node] = {}
        self._queue: list[tuple[Rank, int, _Node]] = []  # at most one entry per node, possibly with an old, lower rank
        self._sequence = itertools.count()
        self._tick = 0
        self._num_blocks = 0
        self._num_locked_blocks = 0

    @property
    def num_blocks(self) -> int:
        return self._num_blocks

    @property
    def num_evictable_blocks(self) -> int:
        """Blocks that no lock holds; evict() can remove all of them."""
        return self._num_blocks - self._num_locked_blocks

    def match(self, root: bytes, blocks: BlockTokens) -> tuple[bytes, ...]:
        """Keys of the longest cached prefix of `blocks`; changes nothing."""
        node, num_in_node, _ = self._walk(root, blocks)
        return _path_keys(node, num_in_node)

    def lock(self, root: bytes, blocks: BlockTokens) -> PathLock:
        """Lock the longest cached prefix of `blocks` and mark it as used now."""
        node, num_in_node, _ = self._walk(root, blocks)
        if num_in_node < len(node.keys):
            node = self._split(node, num_in_node)
        lock = PathLock(_path_keys(node, len(node.keys)), node)
        self._touch(node)
        for step in _path(node):
            step.num_locks += 1
            if step.num_locks == 1:
                self._num_locked_blocks += len(step.keys)
        return lock

    def unlock(self, lock: PathLock) -> list[bytes]:
        """End a lock; idempotent. Returns the keys of cut blocks that left the tree with their last lock."""
        if lock.is_released:
            return []
        lock.is_released = True
        removed: list[bytes] = []
        for node in list(_path(lock._node)):
            node.num_locks -= 1
            if node.num_locks:
                continue
            self._num_locked_blocks -= len(node.keys)
            if node.is_doomed:
                removed += self._remove_subtree(node)
            else:
                self._enqueue(node)
        if not lock._node.is_doomed:
            self._join_path(lock._node)
        return removed

    def insert(self, root: bytes, blocks: BlockTokens, keys: Sequence[bytes]) -> list[bytes]:
        """Add the blocks that are not there yet, mark the path as used now; returns the keys that were added.

        Nothing is added where a cut block with a living lock is in the way.
        """
        if len(keys) != len(blocks):
            raise StoreError(f'insert: expected one key per block, got {len(keys)} keys for {len(blocks)} blocks')
        if root not in self._roots:
            self._roots[root] = _Node(None, blocks[:0], [], self._tick)
        node, num_in_node, num_matched = self._walk(root, blocks)
        added = list(keys[num_matched:])
        if added and num_in_node < len(node.keys):
            node = self._split(node, num_in_node)
        if added and blocks[num_matched].tobytes() in node.children:
            return []
        if added:
            child = _Node(node, np.array(blocks[num_matched:], dtype=np.int32), added.copy(), self._tick)
            node.children[blocks[num_matched].tobytes()] = child
            self._num_blocks += len(added)
            node = child
        self._touch(node)
        self._enqueue(node)
        return added

    def evict(self, num_blocks: int) -> list[bytes]:
        """Remove up to `num_blocks` unlocked blocks, tails first, in the policy's order; returns their keys."""
        removed: list[bytes] = []
        while len(removed) < num_blocks and self._queue:
            rank, _, node = heapq.heappop(self._queue)
            node.is_queued = False
            if not _is_evictable(node):
                continue
            if self._rank(node) == rank:
                removed.append(self._remove_tail(node))
            self._enqueue(node)
        return removed

    def cut(self, root: bytes, blocks: BlockTokens, num_kept: int) -> list[bytes]:
        """Forget block number `num_kept` of this path and everything after it; returns the keys that left now.

        Locked blocks are never matched again and leave when their last lock ends.
        """
        node, num_in_node, num_matched = self._walk(root, blocks[: num_kept + 1])
        if num_matched <= num_kept:
            return []
        if num_in_node > 1:
            self._split(node, num_in_node - 1)
        return self._doom(node)

    def clear(self) -> list[bytes]:
        """Forget every block, as cut() does; returns the keys that left now."""
        children = [child for root in self._roots.values() for child in root.children.values()]
        return [key for child in children for key in self._doom(child)]

    def reorder(self) -> None:
        """Ask the policy again about everything, after something lowered its ranks."""
        self._queue = []
        for node in self._nodes():
            node.is_queued = False
            self._enqueue(node)

    def all_keys(self) -> Iterator[bytes]:
        """Every block's key, in no particular order."""
        return (key for node in self._nodes() for key in node.keys)

    def locked_keys(self) -> Iterator[bytes]:
        """Keys of the blocks under a lock, in no particular order."""
        return (key for node in self._nodes() if node.num_locks for key in node.keys)

    def check_integrity(self) -> None:
        """Raise StoreError when the tree contradicts itself."""
        queued = {id(entry[2]) for entry in self._queue}
        num_blocks = num_locked = 0
        for node in self._nodes():
            num_blocks += len(node.keys)
            num_locked += len(node.keys) if node.num_locks else 0
            parent = node.parent
            _require(
                parent is not None and parent.children.get(node.tokens[0].tobytes()) is node,
                'child not under its parent',
            )
            _require(len(node.keys) == len(node.tokens) > 0, 'a run without blocks or with keys of other blocks')
            _require(node.num_locks >= sum(child.num_locks for child in node.children.values()), 'locks lost on a path')
            _require(parent is not None and parent.last_used >= node.last_used, 'a child used later than its parent')
            _require(node.is_queued == (id(node) in queued), 'queue flag differs from the queue')
            _require(node.is_queued or not _is_evictable(node), 'an evictable leaf is not in the queue')
            _require(not node.is_doomed or node.num_locks > 0, 'a cut block without a lock')
        keys = list(self.all_keys())
        _require(len(keys) == len(set(keys)), 'one key in two places')
        _require(
            (num_blocks, num_locked) == (self._num_blocks, self._num_locked_blocks), 'counters differ from the tree'
        )

    def _walk(self, root: bytes, blocks: BlockTokens) -> tuple[_Node, int, int]:
        """The deepest node that a prefix of `blocks` reaches, how many of its blocks match, how many match in all."""
        node = self._roots.get(root)
        if node is None:
            return _Node(None, blocks[:0], [], 0), 0, 0
        num_matched = 0
        while num_matched < len(blocks):
            child = node.children.get(blocks[num_matched].tobytes())
            if child is None or child.is_doomed:
                break
            num_equal = _num_equal(child.tokens, blocks[num_matched:])
            num_matched += num_equal
            if num_equal < len(child.keys):
                return child, num_equal, num_matched
            node = child
        return node, len(node.keys), num_matched

    def _split(self, node: _Node, num_upper: int) -> _Node:
        """Cut a run in two; `node` stays the lower part, so that locks on its end stay true. Returns the upper part."""
        upper = _Node(node.parent, node.tokens[:num_upper], node.keys[:num_upper], node.last_used)
        upper.num_locks = node.num_locks
        upper.is_doomed = node.is_doomed
        assert node.parent is not None
        node.parent.children[node.tokens[0].tobytes()] = upper
        node.parent, node.tokens, node.keys = upper, node.tokens[num_upper:], node.keys[num_upper:]
        upper.children[node.tokens[0].tobytes()] = node
        return upper

    def _join_path(self, node: _Node) -> None:
        """Undo splits: an unlocked only child used at the same time as its parent is one run with it."""
        step: _Node | None = node
        while step is not None:
            runs = [step]
            while _is_one_run(runs[-1], runs[-1].parent):
                runs.extend(itertools.islice(_path(runs[-1]), 1, 2))
            top = runs[-1].parent
            if len(runs) > 1 and top is not None:
                step.tokens = np.concatenate([run.tokens for run in reversed(runs)])
                step.keys = [key for run in reversed(runs) for key in run.keys]
                step.parent = top
                top.children[step.tokens[0].tobytes()] = step
                for run in runs[1:]:
                    run.parent = None
            step = top

    def _touch(self, node: _Node) -> None:
        self._tick += 1
        for step in _path(node):
            step.last_used = self._tick

    def _rank(self, node: _Node) -> Rank:
        return self._policy.rank(node.keys[-1], node.last_used)

    def _enqueue(self, node: _Node) -> None:
        if not node.is_queued and _is_evictable(node):
            node.is_queued = True
            heapq.heappush(self._queue, (self._rank(node), next(self._sequence), node))
            if len(self._queue) > 2 * self._num_blocks + _MAX_STALE_ENTRIES:
                self.reorder()

    def _remove_tail(self, node: _Node) -> bytes:
        if len(node.keys) == 1:
            parent = node.parent
            (key,) = self._remove_subtree(node)
            if parent is not None:
                self._enqueue(parent)
            return key
        node.tokens = node.tokens[:-1]
        self._num_blocks -= 1
        return node.keys.pop()

    def _remove_subtree(self, node: _Node) -> list[bytes]:
        """Take an unlocked node and all below it out of the tree."""
        assert node.parent is not None
        del node.parent.children[node.tokens[0].tobytes()]
        removed: list[bytes] = []
        for gone in list(_subtree(node)):
            removed += gone.keys
            gone.parent = None
            gone.children = {}
        self._num_blocks -= len(removed)
        return removed

    def _doom(self, node: _Node) -> list[bytes]:
        removed: list[bytes] = []
        parent = node.parent
        for step in list(_subtree(node)):
            if step.num_locks:
                step.is_doomed = True
            elif step.parent is not None:
                removed += self._remove_subtree(step)
        if parent is not None:
            self._enqueue(parent)
        return removed

    def _nodes(self) -> Iterator[_Node]:
        for root in self._roots.values():
            for child in root.children.values():
                yield from _subtree(child)


def _num_equal(run: BlockTokens, blocks: BlockTokens) -> int:
    size = min(len(run), len(blocks))
    equal = (run[:size] == blocks[:size]).all(axis=1)
    return size if equal.all() else int(equal.argmin())


def _path(node: _Node) -> Iterator[_Node]:
    """The node, its parent, and so on, the root included."""
    step: _Node | None = node
    while step is not None:
        yield step
        step = step.parent


def _path_keys(node: _Node, num_in_node: int) -> tuple[bytes, ...]:
    runs = [step.keys for step in _path(node)]
    runs[0] = runs[0][:num_in_node]
    return tuple(key for run in reversed(runs) for key in run)


def _subtree(node: _Node) -> Iterator[_Node]:
    stack = [node]
    while stack:
        step = stack.pop()
        stack.extend(step.children.values())
        yield step


def _is_evictable(node: _Node) -> bool:
    return node.parent is not None and not node.children and not node.num_locks


def _is_one_run(node: _Node, parent: _Node | None) -> bool:
    """Whether a node and its parent can be one run without losing a lock, an order of use or a branch."""
    if parent is None or parent.parent is None or len(parent.children) > 1:
        return False
    return not (node.num_locks or parent.num_locks) and node.last_used == parent.last_used


def _require(is_true: bool, message: str) -> None:
    if not is_true:
        raise StoreError(f'radix tree: {message}; this is a bug, please report it')
