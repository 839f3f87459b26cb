"""The nodes of the radix tree: runs of blocks, cut in two and joined again."""

from collections.abc import Iterator

import numpy as np

from kv_agent_ros.kvcache.path import BlockTokens


class Node:
    """A run of blocks below `parent`; children by the tokens of their first block.

    A doomed node is no longer matched and goes with its last lock.
    """

    __slots__ = ('children', 'is_doomed', 'is_queued', 'keys', 'last_used', 'num_locks', 'parent', 'tokens')

    def __init__(self, parent: 'Node | None', tokens: BlockTokens, keys: list[bytes], last_used: int) -> None:
        self.parent = parent  # None: a root, or removed
        self.tokens = tokens
        self.keys = keys
        self.children: dict[bytes, Node] = {}
        self.num_locks = 0
        self.last_used = last_used
        self.is_doomed = False
        self.is_queued = False  # for eviction

    @property
    def is_evictable(self) -> bool:
        return self.parent is not None and not self.children and not self.num_locks

    def num_equal(self, blocks: BlockTokens) -> int:
        """How many blocks of the run are the first ones of `blocks`."""
        size = min(len(self.tokens), len(blocks))
        is_equal = (self.tokens[:size] == blocks[:size]).all(axis=1)
        return size if is_equal.all() else int(is_equal.argmin())

    def path(self) -> Iterator['Node']:
        """This node, its parent, and so on, the root included."""
        step: Node | None = self
        while step is not None:
            yield step
            step = step.parent

    def path_keys(self, num_in_node: int) -> tuple[bytes, ...]:
        """Keys from the first block of the path to block `num_in_node` (exclusive) of this run."""
        runs = [step.keys for step in self.path()]
        runs[0] = runs[0][:num_in_node]
        return tuple(key for run in reversed(runs) for key in run)

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
        parent.children[self.tokens[0].tobytes()] = self

    def split(self, num_upper: int) -> 'Node':
        """Cut the run in two; this stays the lower part, so that locks on its end stay true. Returns the upper part."""
        upper = Node(self.parent, self.tokens[:num_upper], self.keys[:num_upper], self.last_used)
        upper.num_locks = self.num_locks
        upper.is_doomed = self.is_doomed
        if self.parent is not None:
            upper.hang_on(self.parent)
        self.tokens, self.keys = self.tokens[num_upper:], self.keys[num_upper:]
        self.hang_on(upper)
        return upper

    def join_path(self) -> None:
        """Undo splits along the path, where no lock, branch or difference in use tells two runs apart."""
        step: Node | None = self
        while step is not None:
            runs = [step]
            for above in list(step.path())[1:]:
                if not _is_one_run(runs[-1], above):
                    break
                runs.append(above)
            top = runs[-1].parent
            if len(runs) > 1 and top is not None:
                step.tokens = np.concatenate([run.tokens for run in reversed(runs)])
                step.keys = [key for run in reversed(runs) for key in run.keys]
                step.hang_on(top)
                for run in runs[1:]:
                    run.parent = None
            step = top


def _is_one_run(node: Node, parent: Node) -> bool:
    if parent.parent is None or len(parent.children) > 1 or node.num_locks or parent.num_locks:
        return False
    return node.last_used == parent.last_used
