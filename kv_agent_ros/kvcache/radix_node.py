"""The nodes of the radix tree: runs of blocks as bytes, cut in two where paths part or locks end."""

from collections.abc import Iterator
from functools import partial

import numpy as np

from kv_agent_ros.kvcache.eviction import BlockUse, PastUse
from kv_agent_ros.kvcache.path import TOKEN_BYTES, TokenPath, chain_keys


class Node:
    """A run of blocks below `parent`; children by the tokens of their first block.

    Every block of a run has the same history of use. A doomed node is no longer matched and goes with its last lock.
    """

    __slots__ = (
        '_keys',
        'children',
        'depth',
        'first_used',
        'is_doomed',
        'is_end',
        'is_queued',
        'last_used',
        'num_locks',
        'num_uses',
        'parent',
        'priority',
        'tokens',
        'width',
    )

    def __init__(self, parent: 'Node | None', tokens: bytes, width: int) -> None:
        self.parent = parent  # None: a root, or removed
        self.tokens = tokens
        self.width = width  # bytes of one block's tokens
        self.depth: int = 0 if parent is None else parent.depth + parent.num_blocks  # blocks before the run
        self.children: dict[bytes, Node] = {}
        self.num_locks = 0
        self.first_used = self.last_used = self.num_uses = self.priority = 0
        self.is_doomed = False
        self.is_end = False  # the path that used it last ended with it
        self.is_queued = False  # for eviction
        self._keys: list[bytes] = []  # empty until somebody asks

    @property
    def num_blocks(self) -> int:
        return len(self.tokens) // self.width

    @property
    def is_evictable(self) -> bool:
        return self.parent is not None and not self.children and not self.num_locks

    def use(self, now: int, num_after: int = 0) -> BlockUse:
        """What is known about the last block, or the one that has so many of the run after it."""
        return BlockUse(
            last_used=self.last_used,
            first_used=self.first_used,
            num_uses=self.num_uses,
            depth=self.depth + self.num_blocks - 1 - num_after,
            priority=self.priority,
            is_end=self.is_end and not num_after,
            now=now,
            find_key=partial(self.key, -1 - num_after),
        )

    def past(self) -> PastUse:
        """What is to be remembered of the last block."""
        return PastUse(self.num_uses, self.last_used, self.is_end)

    def num_equal(self, tokens: bytes, start: int) -> int:
        """How many blocks of the run are those of `tokens` from byte `start` on."""
        size = min(len(self.tokens), len(tokens) - start)
        if self.tokens.startswith(tokens[start : start + size]):
            return size // self.width
        run = np.frombuffer(self.tokens, np.int32, size // TOKEN_BYTES)
        other = np.frombuffer(tokens, np.int32, size // TOKEN_BYTES, start)
        return int((run != other).argmax()) * TOKEN_BYTES // self.width

    def path(self) -> Iterator['Node']:
        """This node, its parent, and so on, the root included."""
        step: Node | None = self
        while step is not None:
            yield step
            step = step.parent

    def learn_keys(self, path: TokenPath) -> None:
        """Take the keys from the path that the run is on, if it was asked for them."""
        self._keys = list(path.hashed_keys[self.depth : self.depth + self.num_blocks])

    def block_keys(self) -> list[bytes]:
        """The blocks' keys, hashed with those before them at the first call."""
        unhashed = []
        step = self
        while step.parent is not None and not step._keys:
            unhashed.append(step)
            step = step.parent
        for run in reversed(unhashed):
            assert run.parent is not None
            run._keys = chain_keys(run.parent._keys[-1], run.tokens, run.width)
        return self._keys

    def key(self, index: int) -> bytes:
        """Key of one block of the run; -1 is the last."""
        return self.block_keys()[index]

    def path_keys(self) -> tuple[bytes, ...]:
        """Keys from the first block of the path to the last of this run."""
        self.block_keys()
        runs = [step._keys for step in self.path() if step.parent is not None]
        return tuple(key for run in reversed(runs) for key in run)

    def token_path(self) -> TokenPath:
        """The path from the first block to the last of this run; its layout is not known here."""
        runs = list(self.path())
        tokens = b''.join(run.tokens for run in reversed(runs))
        return TokenPath(root=runs[-1]._keys[0], tokens=tokens, block_tokens=self.width // TOKEN_BYTES)

    def subtree(self) -> Iterator['Node']:
        """This node and everything below, parents before children."""
        stack = [self]
        while stack:
            step = stack.pop()
            stack.extend(step.children.values())
            yield step

    def hang_on(self, parent: 'Node') -> None:
        """Become a child of `parent`, in place of the one that starts with the same block."""
        self.parent = parent
        parent.children[self.tokens[: self.width]] = self

    def split(self, num_upper: int) -> 'Node':
        """Cut the run in two; this stays the lower part, so that locks on its end stay true. Returns the upper part."""
        assert self.parent is not None
        cut = num_upper * self.width
        upper = Node(self.parent, self.tokens[:cut], self.width)
        upper.num_locks = self.num_locks
        upper.first_used, upper.last_used = self.first_used, self.last_used
        upper.num_uses, upper.priority = self.num_uses, self.priority
        upper._keys, self._keys = self._keys[:num_upper], self._keys[num_upper:]
        upper.hang_on(self.parent)
        self.tokens = self.tokens[cut:]
        self.depth += num_upper
        self.hang_on(upper)
        return upper

    def drop_last(self, num_blocks: int) -> list[bytes]:
        """Forget the last blocks of a longer run; returns their keys, first to last."""
        dropped = self.block_keys()[-num_blocks:]
        self.tokens = self.tokens[: -self.width * num_blocks]
        del self._keys[-num_blocks:]
        self.is_end = False
        return dropped


def root_node(digest: bytes, width: int) -> Node:
    """The node above all paths of a namespace; its only key is the namespace digest."""
    root = Node(None, b'', width)
    root._keys = [digest]
    return root
