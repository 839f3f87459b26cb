"""Whose last block goes first: a heap of leaves by the policy's rank.

Leaves are ranked when somebody evicts, not when they come; a rank that has risen meanwhile is noticed at the head, one
that has fallen when all are ranked again, once per an eighth of the queue's length of removals.
"""

from collections.abc import Iterable
import heapq
import itertools

from kv_agent_ros.kvcache.eviction import EvictionPolicy, Rank
from kv_agent_ros.kvcache.radix_node import Node


class EvictionQueue:
    """Each node at most once (`Node.is_queued`); nodes that cannot be evicted any more are passed over."""

    def __init__(self, policy: EvictionPolicy) -> None:
        self._policy = policy
        self._unranked: list[Node] = []
        self._heap: list[tuple[Rank, int, Node]] = []  # possibly with an old, lower rank
        self._sequence = itertools.count()
        self._num_taken = 0  # since all were ranked

    def __len__(self) -> int:
        return len(self._unranked) + len(self._heap)

    def push(self, node: Node) -> None:
        """Queue a node if it is a leaf that no lock holds."""
        if not node.is_queued and node.is_evictable:
            node.is_queued = True
            self._unranked.append(node)

    def first(self, now: int) -> Node | None:
        """The node whose last block goes next; None when nothing can go."""
        self._rank_all(now)
        while self._heap:
            rank, _, node = self._heap[0]
            if node.is_evictable and self._policy.rank(node.use(now)) == rank:
                return node
            self._pop()
            self.push(node)
            self._rank_all(now)
        return None

    def take(self, limit: int, now: int) -> tuple[Node, int] | None:
        """Remove the first node; with it how many blocks go from its end, up to `limit`, before another's turn."""
        self._num_taken += 1
        if 8 * self._num_taken > len(self):
            self._num_taken = 0
            self._unranked = self.nodes()
            self._heap = []
        node = self.first(now)
        if node is None:
            return None
        self._pop()
        most = min(limit, node.num_blocks)
        for number in range(1, most):
            if self._heap and self._heap[0][0] < self._policy.rank(node.use(now, number)):
                return node, number
        return node, most

    def rebuild(self, nodes: Iterable[Node]) -> None:
        """Ask the policy again about all nodes there are."""
        self._heap = []
        self._unranked = []
        for node in nodes:
            node.is_queued = False
            self.push(node)

    def nodes(self) -> list[Node]:
        """What is queued, in no particular order."""
        return [*self._unranked, *(entry[2] for entry in self._heap)]

    def _pop(self) -> None:
        heapq.heappop(self._heap)[2].is_queued = False

    def _rank_all(self, now: int) -> None:
        for node in self._unranked:
            node.is_queued = node.is_evictable
            if node.is_queued:
                heapq.heappush(self._heap, (self._policy.rank(node.use(now)), next(self._sequence), node))
        self._unranked.clear()
