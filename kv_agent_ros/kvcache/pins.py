"""Sessions whose prefix must stay in DRAM for a while.

A pin is a lock that ends by itself; all pins together may hold a part of the tier only, so that a robot that pins
everything cannot stop the others. Guarded by the `KVCacheManager`.
"""

from dataclasses import dataclass

from kv_agent_ros.kvcache.block import SessionKey
from kv_agent_ros.kvcache.dram_tier import DramTier
from kv_agent_ros.kvcache.path import TokenPath
from kv_agent_ros.kvcache.radix_tree import PathLock
from kv_agent_ros.kvcache.storage.host import aligned_bytes

_MAX_FRACTION = 0.5  # of the tier's capacity


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class _Pin:
    lock: PathLock
    expires_s: float
    num_bytes: int


class PinBoard:
    """At most one pin per session."""

    def __init__(self, dram: DramTier) -> None:
        self._dram = dram
        self._pins: dict[SessionKey, _Pin] = {}

    def pin(self, session: SessionKey, path: TokenPath, expires_s: float) -> int:
        """Pin the path's cached prefix, cut where the allowance ends; returns the number of blocks.

        Blocks that two sessions pin count twice against the allowance.
        """
        self.unpin(session)
        allowance_bytes = int(self._dram.capacity_bytes * _MAX_FRACTION) - sum(p.num_bytes for p in self._pins.values())
        block_bytes = aligned_bytes(path.block_bytes)
        lock = self._dram.hold(path.head(max(0, allowance_bytes) // max(1, block_bytes)))
        if not lock.num_blocks:
            self._dram.unlock(lock)
            return 0
        num_bytes = lock.num_blocks * block_bytes
        self._pins[session] = _Pin(lock=lock, expires_s=expires_s, num_bytes=num_bytes)
        return lock.num_blocks

    def extend(self, session: SessionKey, path: TokenPath) -> None:
        """The session's prefix has grown: a pinned session pins the new one, until the same time."""
        if session in self._pins:
            self.pin(session, path, self._pins[session].expires_s)

    def unpin(self, session: SessionKey) -> None:
        """End the session's pin, if it has one."""
        if session in self._pins:
            self._dram.unlock(self._pins.pop(session).lock)

    def end_expired(self, at_s: float) -> None:
        """End the pins whose time is over."""
        for session in [session for session, pin in self._pins.items() if pin.expires_s <= at_s]:
            self.unpin(session)

    def sessions(self) -> frozenset[SessionKey]:
        """Who has a pin."""
        return frozenset(self._pins)
