"""The rights that were given out, when they end, and the slots of writers that did not end them.

A writer that is late may still write: its slots rest for as long again as its lease lasted before they are used anew.
What it overwrites after that shows as a wrong checksum, never as wrong text.
"""

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
    generation: int  # of the session
    path: TokenPath
    lock: PathLock
    slots: tuple[BlockSlot, ...] = ()


class LeaseBook:
    """Leases by id; all live equally long, so that the oldest ends first. Guarded by its owner."""

    def __init__(self, *, timeout_s: float, make_id: Callable[[], str]) -> None:
        self._timeout_s = timeout_s
        self._make_id = make_id
        self._leases: OrderedDict[str, tuple[float, HeldLease]] = OrderedDict()
        self._resting: dict[str, tuple[float, tuple[BlockSlot, ...]]] = {}
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
        """Remove and return what timed out; the slots rest."""
        expired = []
        while self._leases and next(iter(self._leases.values()))[0] <= at_s:
            lease_id, (ended_s, lease) = self._leases.popitem(last=False)
            self._rest(lease_id, lease, ended_s)
            expired.append(lease)
        self.num_expired += len(expired)
        return expired

    def take_writers(self, at_s: float) -> list[HeldLease]:
        """Remove and return the leases that hold slots to write; the slots rest."""
        writers = {lease_id: lease for lease_id, (_, lease) in self._leases.items() if lease.slots}
        for lease_id, lease in writers.items():
            del self._leases[lease_id]
            self._rest(lease_id, lease, at_s)
        return list(writers.values())

    def take_rested(self, at_s: float) -> list[BlockSlot]:
        """Remove and return the slots that nobody is expected to write any more."""
        rested: list[BlockSlot] = []
        while self._resting and next(iter(self._resting.values()))[0] <= at_s:  # they rest equally long, too
            rested += self.take_back(next(iter(self._resting)))
        return rested

    def take_back(self, lease_id: str) -> tuple[BlockSlot, ...]:
        """The slots of a writer that says, after its lease has ended, that it is done."""
        return self._resting.pop(lease_id, (0.0, ()))[1]

    def _rest(self, lease_id: str, lease: HeldLease, since_s: float) -> None:
        if lease.slots:
            self._resting[lease_id] = (since_s + self._timeout_s, lease.slots)
