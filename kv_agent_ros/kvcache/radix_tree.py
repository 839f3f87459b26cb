"""Which prefixes a tier holds: one radix tree of token blocks per namespace.

An edge is a run of blocks, compared as bytes at once; children are found by the tokens of their first block. The tree
knows tokens, locks and the order of use; it has never heard of bytes, tiers or sessions, and hashes keys only for those
who ask. It is not thread-safe: its owner guards it. After RadixAttention (arXiv 2312.07104), with tail blocks instead
of whole nodes as the unit of eviction.
"""

from collections.abc import Iterator, Sequence
import itertools

from kv_agent_ros.errors import StoreError
from kv_agent_ros.kvcache.eviction import NEVER_USED, EvictionPolicy, GhostList, PastUse, UseObserver
from kv_agent_ros.kvcache.eviction_queue import EvictionQueue
from kv_agent_ros.kvcache.path import TOKEN_BYTES, TokenPath
from kv_agent_ros.kvcache.radix_node import Node, root_node

_MAX_STALE_ENTRIES = 1024  # of removed nodes in the eviction queue, beyond one per block, before it is rebuilt
_MAX_RUN_BYTES = 1 << 15  # of tokens in one node, so that no operation copies more than this for one block


class PathLock:
    """Keeps a prefix of `num_blocks` blocks in the tree until `RadixPrefixCache.unlock()`."""

    __slots__ = ('_keys', '_node', 'is_released', 'num_blocks')

    def __init__(self, node: Node) -> None:
        self.num_blocks = node.depth + node.num_blocks
        self.is_released = False
        self._node = node
        self._keys: tuple[bytes, ...] = ()

    @property
    def keys(self) -> tuple[bytes, ...]:
        """From the first block to the last. The first call hashes, reads the tree and must come before unlock()."""
        if len(self._keys) < self.num_blocks:
            if self.is_released:
                raise StoreError('PathLock.keys: expected a first call before unlock(), got one after it')
            self._keys = self._node.path_keys()
        return self._keys


class RadixPrefixCache:
    """Longest-prefix match, insertion, locks by handle and tail-first eviction over token blocks.

    A lock holds every block from the root down; a block under a lock, or with blocks after it, is never evicted.
    """

    def __init__(self, policy: EvictionPolicy, num_ghosts: int = 0, observers: Sequence[UseObserver] = ()) -> None:
        """`num_ghosts` evicted blocks are remembered: one that comes back brings its number of uses."""
        self._observers = tuple(observers)
        self._queue = EvictionQueue(policy)
        self._num_ghosts = num_ghosts
        self._ghosts = GhostList(num_ghosts)
        self._roots: dict[bytes, Node] = {}
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

    def match(self, path: TokenPath) -> int:
        """Number of blocks in the longest cached prefix of the path; changes nothing."""
        return self._walk(path)[2]

    def lock(self, path: TokenPath) -> PathLock:
        """Lock the longest cached prefix of the path and count one use of it, now."""
        lock = self.hold(path)
        self._tick += 1
        self._use(lock._node, path, 1)
        return lock

    def hold(self, path: TokenPath) -> PathLock:
        """Lock the longest cached prefix of the path for bookkeeping, which is no use of it."""
        node, num_in_node, _ = self._walk(path)
        if num_in_node < node.num_blocks:
            node = node.split(num_in_node)
        for step in node.path():
            step.num_locks += 1
            if step.num_locks == 1:
                self._num_locked_blocks += step.num_blocks
        return PathLock(node)

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
            self._num_locked_blocks -= node.num_blocks
            if node.is_doomed:
                removed += self._remove_subtree(node)
            else:
                self._enqueue(node)
        return removed

    def insert(self, path: TokenPath, priority: int = 0) -> int:
        """Add the blocks that are not there yet, mark the path as used now; returns how many were added.

        They are the last ones of the path. Nothing is added where a cut block with a living lock is in the way.
        """
        width = path.block_tokens * TOKEN_BYTES
        root = self._roots.get(path.root)
        if root is None:
            root = self._roots[path.root] = root_node(path.root, width)
        if root.width != width:
            raise StoreError(f'insert: expected blocks of {root.width} bytes in this namespace, got {width}')
        node, num_in_node, num_matched = self._walk(path)
        if num_in_node < node.num_blocks:
            node = node.split(num_in_node)
        start = num_matched * width
        if path.tokens[start : start + width] in node.children:
            return 0
        self._tick += 1
        for end, past in self._runs(path, num_matched):
            node = Node(node, path.tokens[start : end * width], width)
            assert node.parent is not None
            node.hang_on(node.parent)
            node.first_used = self._tick
            node.num_uses, node.last_used, node.is_end = past.num_uses, past.last_used, past.is_end
            if path.hashed_keys:
                node.learn_keys(path)
            start = end * width
        num_added = path.num_blocks - num_matched
        self._num_blocks += num_added
        for step in node.path():
            if step.priority < priority:
                step.priority = priority
        self._use(node, path, 0)
        self._enqueue(node)
        return num_added

    def evict(self, num_blocks: int) -> list[bytes]:
        """Remove up to `num_blocks` unlocked blocks, tails first, in the policy's order; returns their keys."""
        removed: list[bytes] = []
        while len(removed) < num_blocks:
            found = self._queue.take(num_blocks - len(removed), self._tick)
            if found is None:
                break
            removed += self._remove_tail(*found)
            self._enqueue(found[0])
        return removed

    def victim(self) -> TokenPath:
        """The path whose last block evict() would remove first; empty when it could remove nothing."""
        node = self._queue.first(self._tick)
        return TokenPath() if node is None else node.token_path()

    def victim_key(self) -> bytes:
        """Key of the block that evict() would remove first; empty when it could remove nothing."""
        node = self._queue.first(self._tick)
        return b'' if node is None else node.key(-1)

    def leaves(self) -> Iterator[TokenPath]:
        """The paths to the blocks that have none after them."""
        return (node.token_path() for node in self._nodes() if not node.children)

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
        self._queue.rebuild(self._nodes())

    def all_keys(self) -> Iterator[bytes]:
        """Every block's key, in no particular order."""
        return (key for node in self._nodes() for key in node.block_keys())

    def locked_keys(self) -> Iterator[bytes]:
        """Keys of the blocks under a lock, in no particular order."""
        return (key for node in self._nodes() if node.num_locks for key in node.block_keys())

    def check_integrity(self) -> None:
        """Raise StoreError when the tree contradicts itself."""
        queued = {id(node) for node in self._queue.nodes()}
        num_blocks = num_locked = 0
        for node in self._nodes():
            num_blocks += node.num_blocks
            num_locked += node.num_blocks if node.num_locks else 0
            parent = node.parent
            assert parent is not None
            _require(parent.children.get(node.tokens[: node.width]) is node, 'child not under its parent')
            _require(node.num_blocks > 0 and not len(node.tokens) % node.width, 'a run that is not of whole blocks')
            _require(len(node._keys) in (0, node.num_blocks), 'a run with keys of other blocks')
            _require(node.depth == parent.depth + parent.num_blocks, 'depth differs from the path')
            _require(node.num_locks >= sum(child.num_locks for child in node.children.values()), 'locks lost on a path')
            _require(parent.last_used >= node.last_used >= node.first_used, 'a child used later than its parent')
            _require(parent.priority >= node.priority, 'a child of higher priority than its parent')
            _require(node.is_queued == (id(node) in queued), 'queue flag differs from the queue')
            _require(node.is_queued or not node.is_evictable, 'an evictable leaf is not in the queue')
            _require(not node.is_doomed or node.num_locks > 0, 'a cut block without a lock')
        _require(len(queued) == len(self._queue), 'one node twice in the queue')
        keys = list(self.all_keys())
        _require(len(keys) == len(set(keys)), 'one key in two places')
        _require(
            (num_blocks, num_locked) == (self._num_blocks, self._num_locked_blocks), 'counters differ from the tree'
        )

    def _walk(self, path: TokenPath) -> tuple[Node, int, int]:
        """The deepest node that a prefix of the path reaches, how many of its blocks match, how many match in all."""
        tokens, width = path.tokens, path.block_tokens * TOKEN_BYTES
        node = self._roots.get(path.root)
        if node is None:
            return root_node(path.root, width), 0, 0
        start = 0
        while start < len(tokens):
            child = node.children.get(tokens[start : start + width])
            if child is None or child.is_doomed:
                break
            if not tokens.startswith(child.tokens, start):
                num_equal = child.num_equal(tokens, start)
                return child, num_equal, start // width + num_equal
            start += len(child.tokens)
            node = child
        return node, node.num_blocks, start // width

    def _runs(self, path: TokenPath, start: int) -> list[tuple[int, PastUse]]:
        """Where the runs of the blocks from `start` on end, and what is remembered of theirs."""
        size, num_blocks = max(1, _MAX_RUN_BYTES // (path.block_tokens * TOKEN_BYTES)), path.num_blocks
        if not len(self._ghosts):
            return [(min(end, num_blocks), NEVER_USED) for end in range(start + size, num_blocks + size, size)]
        pasts = [self._ghosts.take(key) for key in path.keys()[start:]]
        return [
            (end, before)
            for end, (before, after) in enumerate(itertools.pairwise([*pasts, NEVER_USED]), start + 1)
            if before != after or not (end - start) % size or end == num_blocks
        ]

    def _use(self, node: Node, path: TokenPath, num_more: int) -> None:
        """The path, which is in the tree down to `node`, is used now; blocks that are already old, `num_more` times."""
        is_end = node.depth + node.num_blocks == path.num_blocks
        for step in node.path():
            before = step.past() if self._observers else NEVER_USED
            step.last_used = self._tick
            step.num_uses += 1 if step.first_used == self._tick else num_more
            step.is_end, is_end = is_end, False
            for observer in self._observers if step.parent is not None else ():
                observer.used(before, step.past(), step.num_blocks)

    def _enqueue(self, node: Node) -> None:
        self._queue.push(node)
        if len(self._queue) > 2 * self._num_blocks + _MAX_STALE_ENTRIES:
            self.reorder()

    def _remove_tail(self, node: Node, num_blocks: int) -> list[bytes]:
        past = node.past()
        if num_blocks < node.num_blocks:
            removed = node.drop_last(num_blocks)
            self._num_blocks -= num_blocks
        else:
            parent = node.parent
            removed = self._remove_subtree(node)
            if parent is not None:
                self._enqueue(parent)
        removed.reverse()
        for key in removed if self._num_ghosts else ():
            self._ghosts.remember(key, past)
            past = PastUse(past.num_uses, past.last_used) if past.is_end else past
        return removed

    def _remove_subtree(self, node: Node) -> list[bytes]:
        """Take an unlocked node and all below it out of the tree."""
        assert node.parent is not None
        gone = list(node.subtree())
        removed = [key for step in gone for key in step.block_keys()]
        del node.parent.children[node.tokens[: node.width]]
        for step in gone:
            step.parent = None
            step.children = {}
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
