"""Which blocks have their part of one component, who wants it, and which part goes first.

A boundary that is the end of a path or a branch point wants the parts in its span; a lock holds them. Parts that nobody
wants are spare: a shorter match could use them, so they stay until room is needed. Knows keys, neither trees nor bytes.
"""

from collections import Counter, OrderedDict
from collections.abc import Iterable

from kv_agent_ros.errors import StoreError


class PartTable:
    """The parts of one component by block key, longest unused first. A block without an entry is a tombstone."""

    def __init__(self) -> None:
        self._wants: Counter[bytes] = Counter()  # of ends and branch points, also for parts that are not here
        self._locks: Counter[bytes] = Counter()
        self._spare: OrderedDict[bytes, None] = OrderedDict()
        self._wanted: OrderedDict[bytes, None] = OrderedDict()

    def __len__(self) -> int:
        return len(self._spare) + len(self._wanted) + len(self._locks)

    def __contains__(self, key: bytes) -> bool:
        return key in self._wanted or key in self._spare or key in self._locks

    @property
    def num_locked(self) -> int:
        return len(self._locks)

    def add(self, key: bytes) -> None:
        """The block's part is here now."""
        if key not in self._locks:
            self._file(key)

    def drop(self, key: bytes) -> bool:
        """The block is leaving; whether its part was here. It must not be locked."""
        if key in self._locks:
            raise StoreError(f'component parts: block {key.hex()[:12]} leaves while it is locked; this is a bug')
        return self._take(key)

    def want(self, keys: Iterable[bytes]) -> None:
        """An end or branch point needs these parts."""
        for key in keys:
            self._wants[key] += 1
            if key in self._spare:
                del self._spare[key]
                self._wanted[key] = None

    def unwant(self, keys: Iterable[bytes]) -> None:
        """It does not any more."""
        for key in keys:
            if _release(self._wants, key) and key in self._wanted:
                del self._wanted[key]
                self._spare[key] = None

    def lock(self, keys: Iterable[bytes]) -> None:
        """Hold parts that are here."""
        for key in keys:
            if key not in self:
                raise StoreError(f'component parts: block {key.hex()[:12]} has none to lock; this is a bug')
            self._take(key)
            self._locks[key] += 1

    def unlock(self, keys: Iterable[bytes]) -> None:
        """Let go of them; with their last lock they count as used now."""
        for key in keys:
            if _release(self._locks, key):
                self._file(key)

    def pop_spare(self) -> bytes:
        """Evict what nobody wants, longest unused first; the block's key, b'' when there is nothing."""
        return self._spare.popitem(last=False)[0] if self._spare else b''

    def pop_wanted(self) -> bytes:
        """Evict what ends or branch points want, longest unused first; b'' when there is nothing."""
        return self._wanted.popitem(last=False)[0] if self._wanted else b''

    def keys(self) -> set[bytes]:
        """The blocks whose part is here."""
        return {*self._spare, *self._wanted, *self._locks}

    def check_integrity(self, wants: Counter[bytes], locks: Counter[bytes]) -> None:
        """Raise StoreError unless ends, branch points and locks are exactly these and every part has one place."""
        if (wants, locks) != (self._wants, self._locks):
            raise StoreError('component parts: wants or locks differ from the tree; this is a bug')
        if len(self) != len(self.keys()):
            raise StoreError('component parts: one part in two places; this is a bug')
        if any(key in wants for key in self._spare) or any(key not in wants for key in self._wanted):
            raise StoreError('component parts: a part in the wrong queue; this is a bug')

    def _file(self, key: bytes) -> None:
        (self._wanted if key in self._wants else self._spare)[key] = None

    def _take(self, key: bytes) -> bool:
        for queue in (self._wanted, self._spare):
            if key in queue:
                del queue[key]
                return True
        return False


def _release(counts: Counter[bytes], key: bytes) -> bool:
    """Count one less; whether that was the last."""
    counts[key] -= 1
    if counts[key] < 0:
        raise StoreError(f'component parts: block {key.hex()[:12]} released more often than held; this is a bug')
    if counts[key]:
        return False
    del counts[key]
    return True
