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
from kv_agent_ros.kvcache.path import TokenPath
from kv_agent_ros.kvcache.radix_node import Node

_MAX_STALE_ENTRIES = 1024  # of removed nodes in the eviction queue, beyond one per block, before it is rebuilt


class PathLock:
    """Keeps a prefix in the tree until `RadixPrefixCache.unlock()`; `keys` from the first block to the last."""

    __slots__ = ('_node', 'is_released', 'keys')

    def __init__(self, keys: tuple[bytes, ...], node: Node) -> None:
        self.keys = keys
        self.is_released = False
        self._node = node


class RadixPrefixCache:
    """Longest-prefix match, insertion, locks by handle and tail-first eviction over token blocks.

    A lock holds every block from the root down; a block under a lock, or with blocks after it, is never evicted.
    """

    def __init__(self, policy: EvictionPolicy) -> None:
        self._policy = policy
        self._roots: dict[bytes, Node] = {}
        self._queue: list[tuple[Rank, int, Node]] = []  # at most one entry per node, possibly with an old, lower rank
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

    def match(self, path: TokenPath) -> tuple[bytes, ...]:
        """Keys of the longest cached prefix of the path; changes nothing."""
        node, num_in_node, _ = self._walk(path)
        return node.path_keys(num_in_node)

    def lock(self, path: TokenPath) -> PathLock:
        """Lock the longest cached prefix of the path and mark it as used now."""
        node, num_in_node, _ = self._walk(path)
        if num_in_node < len(node.keys):
            node = node.split(num_in_node)
        lock = PathLock(node.path_keys(len(node.keys)), node)
        self._touch(node)
        for step in node.path():
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
        for node in list(lock._node.path()):
            node.num_locks -= 1
            if node.num_locks:
                continue
            self._num_locked_blocks -= len(node.keys)
            if node.is_doomed:
                removed += self._remove_subtree(node)
            else:
                self._enqueue(node)
        if not lock._node.is_doomed:
            lock._node.join_path()
        return removed

    def insert(self, path: TokenPath, keys: Sequence[bytes]) -> list[bytes]:
        """Add the blocks that are not there yet, mark the path as used now; returns the keys that were added.

        Nothing is added where a cut block with a living lock is in the way.
        """
        blocks = path.blocks
        if len(keys) != len(blocks):
            raise StoreError(f'insert: expected one key per block, got {len(keys)} keys for {len(blocks)} blocks')
        if path.root not in self._roots:
            self._roots[path.root] = Node(None, blocks[:0], [], self._tick)
        node, num_in_node, num_matched = self._walk(path)
        added = list(keys[num_matched:])
        if num_in_node < len(node.keys):
            node = node.split(num_in_node)
        if added and blocks[num_matched].tobytes() in node.children:
            return []
        if added:
            child = Node(node, np.array(blocks[num_matched:], dtype=np.int32), added.copy(), self._tick)
            child.hang_on(node)
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
            if not node.is_evictable:
                continue
            if self._rank(node) == rank:
                removed.append(self._remove_tail(node))
            self._enqueue(node)
        return removed

    def cut(self, path: TokenPath, num_kept: int) -> list[bytes]:
        """Forget block number `num_kept` of this path and everything after it; returns the keys that left now.

        Locked blocks are never matched again and leave when their last lock ends.
        """
        node, num_in_node, num_matched = self._walk(path.head(num_kept + 1))
        if num_matched <= num_kept:
            return []
        if num_in_node > 1:
            node.split(num_in_node - 1)
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
            _require(node.is_queued or not node.is_evictable, 'an evictable leaf is not in the queue')
            _require(not node.is_doomed or node.num_locks > 0, 'a cut block without a lock')
        keys = list(self.all_keys())
        _require(len(keys) == len(set(keys)), 'one key in two places')
        _require(
            (num_blocks, num_locked) == (self._num_blocks, self._num_locked_blocks), 'counters differ from the tree'
        )

    def _walk(self, path: TokenPath) -> tuple[Node, int, int]:
        """The deepest node that a prefix of the path reaches, how many of its blocks match, how many match in all."""
        blocks = path.blocks
        node = self._roots.get(path.root)
        if node is None:
            return Node(None, blocks[:0], [], 0), 0, 0
        num_matched = 0
        while num_matched < len(blocks):
            child = node.children.get(blocks[num_matched].tobytes())
            if child is None or child.is_doomed:
                break
            num_equal = child.num_equal(blocks[num_matched:])
            num_matched += num_equal
            if num_equal < len(child.keys):
                return child, num_equal, num_matched
            node = child
        return node, len(node.keys), num_matched

    def _touch(self, node: Node) -> None:
        self._tick += 1
        for step in node.path():
            step.last_used = self._tick

    def _rank(self, node: Node) -> Rank:
        return self._policy.rank(node.keys[-1], node.last_used)

    def _enqueue(self, node: Node) -> None:
        if not node.is_queued and node.is_evictable:
            node.is_queued = True
            heapq.heappush(self._queue, (self._rank(node), next(self._sequence), node))
            if len(self._queue) > 2 * self._num_blocks + _MAX_STALE_ENTRIES:
                self.reorder()

    def _remove_tail(self, node: Node) -> bytes:
        if len(node.keys) == 1:
            parent = node.parent
            (key,) = self._remove_subtree(node)
            if parent is not None:
                self._enqueue(parent)
            return key
        node.tokens = node.tokens[:-1]
        self._num_blocks -= 1
        return node.keys.pop()

    def _remove_subtree(self, node: Node) -> list[bytes]:
        """Take an unlocked node and all below it out of the tree."""
        assert node.parent is not None
        del node.parent.children[node.tokens[0].tobytes()]
        removed: list[bytes] = []
        for gone in list(node.subtree()):
            removed += gone.keys
            gone.parent = None
            gone.children = {}
        self._num_blocks -= len(removed)
        return removed

    def _doom(self, node: Node) -> list[bytes]:
        removed: list[bytes] = []
        parent = node.parent
        for step in list(node.subtree()):
            if step.num_locks:
                step.is_doomed = True
            elif step.parent is not None:
                removed += self._remove_subtree(step)
        if parent is not None:
            self._enqueue(parent)
        return removed

    def _nodes(self) -> Iterator[Node]:
        for root in self._roots.values():
            for child in root.children.values():
                yield from child.subtree()


def _require(is_true: bool, message: str) -> None:
    if not is_true:
        raise StoreError(f'radix tree: {message}; this is a bug, please report it')
