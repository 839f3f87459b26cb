"""The rights that were given out and when they end."""

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass

from kv_agent_ros.kvcache.block import BlockSlot, SessionKey
from kv_agent_ros.kvcache.path import TokenPath
from kv_agent_ros.kvcache.radix_tree import PathLock


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class HeldLease:
    """A locked prefix of `path`, and for a writer the slots of the blocks that follow it."""

    session: SessionKey
    path: TokenPath
    lock: PathLock
    slots: tuple[BlockSlot, ...] = ()


class LeaseBook:
    """Leases by id; all live equally long, so that the oldest ends first. Guarded by its owner."""

    def __init__(self, *, timeout_s: float, make_id: Callable[[], str]) -> None:
        self._timeout_s = timeout_s
        self._make_id = make_id
        self._leases: OrderedDict[str, tuple[float, HeldLease]] = OrderedDict()
        self.num_expired = 0

    def __len__(self) -> int:
        return len(self._leases)

    def open(self, lease: HeldLease, at_s: float) -> str:
        """Enter a lease; its id, which nobody can guess."""
        lease_id = self._make_id()
        self._leases[lease_id] = (at_s + self._timeout_s, lease)
        return lease_id

    def take(self, lease_id: str) -> HeldLease | None:
        """Remove and return a lease; None when it has ended already."""
        return self._leases.pop(lease_id, (0.0, None))[1]

    def take_expired(self, at_s: float) -> list[HeldLease]:
        """Remove and return what timed out."""
        expired = []
        while self._leases and next(iter(self._leases.values()))[0] <= at_s:
            expired.append(self._leases.popitem(last=False)[1][1])
        self.num_expired += len(expired)
        return expired

    def take_writers(self) -> list[HeldLease]:
        """Remove and return the leases that hold slots to write."""
        writers = [lease_id for lease_id, (_, lease) in self._leases.items() if lease.slots]
        return [self._leases.pop(lease_id)[1] for lease_id in writers]
