"""The owner of a machine's KV blocks: leases on prefixes, over shared memory first and lower tiers after.

It knows tokens, sessions and tiers; it has never heard of models or ROS. Bytes do not pass through it, except when a
block is promoted or written behind. Lower tiers are read and written without holding the lock.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
import math
import secrets
import threading
import time

from kv_agent_ros.errors import BadRequestError
from kv_agent_ros.kvcache.block import (
    BlockSlot,
    CacheStats,
    EventKind,
    KVNamespace,
    PrefixLease,
    SessionKey,
    Tier,
    TokenArray,
    WriteLease,
)
from kv_agent_ros.kvcache.dram_tier import DramTier
from kv_agent_ros.kvcache.events import EventListener, EventLog, ignore_event
from kv_agent_ros.kvcache.leases import HeldLease, LeaseBook
from kv_agent_ros.kvcache.path import TokenPath, token_path
from kv_agent_ros.kvcache.pins import PinBoard
from kv_agent_ros.kvcache.radix_tree import PathLock
from kv_agent_ros.kvcache.session_index import SessionIndex
from kv_agent_ros.kvcache.storage.base import BlockRecord, ByteArray, PutResult
from kv_agent_ros.kvcache.storage.tiered import BackingTier, Transfer, TransferResult

_CHECKSUM_BYTES = 16


class KVCacheManager:
    """A PrefixCache over one DRAM tier and the tiers behind it, in order of speed. Thread-safe.

    `tenant` replaces what callers write into their namespace. `listener` is called in order of sequence and never
    under the lock; it must not raise.
    """

    def __init__(
        self,
        *,
        dram: DramTier,
        sessions: SessionIndex,
        backing: Sequence[BackingTier] = (),
        tenant: str = '',
        lease_timeout_s: float = 60.0,
        max_pin_s: float = 600.0,
        clock: Callable[[], float] = time.monotonic,
        make_id: Callable[[], str] = lambda: secrets.token_hex(16),
        listener: EventListener = ignore_event,
    ) -> None:
        self._dram = dram
        self._sessions = sessions
        self._pins = PinBoard(dram)
        self._backing = tuple(backing)
        self._tenant = tenant
        self._max_pin_s = max_pin_s
        self._clock = clock
        self._events = EventLog(listener)
        self._leases = LeaseBook(timeout_s=lease_timeout_s, make_id=make_id)
        self._lock = threading.Lock()
        self._epoch = 0
        self._prompt_tokens = self._cached_tokens = 0
        self._num_discarded = 0

    def acquire(self, namespace: KVNamespace, session: SessionKey, tokens: TokenArray) -> PrefixLease:
        """See PrefixCache. Blocks of lower tiers are promoted as far as DRAM has room; the prefix ends there."""
        path = self._path(namespace, tokens[: max(0, len(tokens) - 1)])
        with self._owned():
            epoch = self._epoch
            locks = [self._dram.lock(path)]
            self._dram.count_hits(locks[0].num_blocks)
            origin = dict.fromkeys(locks[0].keys, Tier.DRAM)
        try:
            for tier in self._backing:
                locks.append(self._promote(tier, path, locks[-1], epoch))
                promoted = path.keys()[len(origin) : locks[-1].num_blocks]
                origin |= dict.fromkeys(promoted, tier.tier)
            with self._owned():
                lease = HeldLease(session=session, path=path, lock=locks.pop())
                return self._grant(lease, origin, len(tokens))
        finally:
            with self._owned():
                for lock in locks:
                    self._dram.unlock(lock)

    def reserve(self, namespace: KVNamespace, session: SessionKey, tokens: TokenArray) -> WriteLease:
        """See PrefixCache."""
        path = self._path(namespace, tokens)
        keys = path.keys()
        with self._owned():
            lock = self._dram.hold(path)
            slots = self._dram.reserve(keys[lock.num_blocks :], path.block_bytes)
            lease = HeldLease(session=session, path=path, lock=lock, slots=slots)
            lease_id = self._leases.open(lease, self._clock())
        first_token = lock.num_blocks * namespace.block_tokens
        return WriteLease(lease_id=lease_id, first_token=first_token, slots=slots)

    def commit(self, lease_id: str, checksums: Sequence[bytes]) -> int:
        """See PrefixCache. Raises BadRequestError for checksums of a wrong size or too many of them."""
        if any(len(digest) != _CHECKSUM_BYTES for digest in checksums):
            raise BadRequestError(
                f'checksums: expected {_CHECKSUM_BYTES} bytes each, got {[len(c) for c in checksums]}'
            )
        with self._owned():
            lease = self._leases.take(lease_id)
            if lease is None:
                return 0
            return self._publish(lease, checksums[: len(lease.slots)])

    def release(self, lease_id: str) -> None:
        """See PrefixCache."""
        with self._owned():
            self._end_lease(self._leases.take(lease_id))

    def discard(self, lease_id: str, num_good_blocks: int) -> None:
        """End a read lease whose block number `num_good_blocks` does not have its checksum.

        That block and everything after it leave all tiers.
        """
        with self._owned():
            lease = self._leases.take(lease_id)
            if lease is None or not 0 <= num_good_blocks < lease.lock.num_blocks:
                return self._end_lease(lease)
            self._num_discarded += 1
            self._dram.cut(lease.path, num_good_blocks)
            for tier in self._backing:
                tier.cut(lease.path, num_good_blocks)
            return self._end_lease(lease)

    def pin(self, session: SessionKey, duration_s: float) -> int:
        """See PrefixCache. Pins the prefix used last, for `max_pin_s` at most; all pins hold half of DRAM at most."""
        if not 0 < duration_s < math.inf:
            raise BadRequestError(f'duration_s: expected seconds > 0, got {duration_s!r}')
        with self._owned():
            return self._pins.pin(
                session, self._sessions.prefix(session), self._clock() + min(duration_s, self._max_pin_s)
            )

    def end_session(self, session: SessionKey) -> int:
        """See PrefixCache."""
        with self._owned():
            return self._end_session(session)

    def evict(self, num_bytes: int) -> int:
        """Free at least `num_bytes` of DRAM, if unlocked blocks allow it; returns the bytes that were freed."""
        with self._owned():
            before = self._dram.used_bytes
            while before - self._dram.used_bytes < num_bytes and self._dram.evict(1):
                pass
            return before - self._dram.used_bytes

    def clear(self) -> None:
        """Forget every block of every tier, for instance after a change of weights.

        Write leases end unpublished; readers keep their bytes until they release.
        """
        with self._owned():
            self._epoch += 1
            for lease in self._leases.take_writers():
                self._end_lease(lease)
            for tier in self._backing:
                for transfer in tier.clear():
                    self._dram.unlock(transfer.lock)
            self._dram.clear()
            self._events.note(EventKind.CLEARED, ())

    def stats(self) -> CacheStats:
        """See PrefixCache."""
        backing = tuple(tier.usage() for tier in self._backing)
        with self._owned():
            only_here = sum(not any(tier.has(key) for tier in self._backing) for key in self._dram.all_keys())
            return CacheStats(
                tiers=(self._dram.usage(), *backing),
                sessions=self._sessions.usages(self._pins.sessions()),
                num_blocks=only_here + sum(usage.num_blocks for usage in backing),
                num_leases=len(self._leases),
                num_expired_leases=self._leases.num_expired,
                prompt_tokens=self._prompt_tokens,
                cached_tokens=self._cached_tokens,
                num_checksum_failures=self._num_discarded + sum(tier.num_corrupt for tier in self._backing),
            )

    def flush(self, timeout_s: float) -> bool:
        """Wait until the lower tiers have what was committed; False when that takes longer."""
        return all(tier.flush(timeout_s) for tier in self._backing)

    def close(self, timeout_s: float = 10.0) -> None:
        """Write what is queued, then free the shared memory; idempotent."""
        for tier in self._backing:
            tier.close(timeout_s)
        self._dram.close()

    def __enter__(self) -> 'KVCacheManager':
        return self

    def __exit__(self, *exc_details: object) -> None:
        self.close()

    def check_integrity(self) -> None:
        """Raise StoreError when the books of any tier do not add up."""
        with self._owned():
            self._dram.check_integrity()
            self._sessions.check_integrity()
        for tier in self._backing:
            tier.check_integrity()

    @property
    def num_locks(self) -> int:
        """Living locks on DRAM: leases, pins and queued transfers. 0 when nothing leaks and nobody works."""
        return self._dram.num_locks

    @contextmanager
    def _owned(self) -> Iterator[None]:
        """The lock, with what timed out ended before and what left the cache made known after."""
        with self._lock:
            at_s = self._clock()
            for lease in self._leases.take_expired(at_s):
                self._end_lease(lease)
            self._pins.end_expired(at_s)
            try:
                yield
            finally:
                self._settle()
        self._events.deliver()

    def _path(self, namespace: KVNamespace, tokens: TokenArray) -> TokenPath:
        return token_path(replace(namespace, tenant=self._tenant), tokens)

    def _grant(self, lease: HeldLease, origin: dict[bytes, Tier], num_prompt_tokens: int) -> PrefixLease:
        keys = lease.lock.keys
        matched_tokens = len(keys) * lease.path.block_tokens
        self._prompt_tokens += num_prompt_tokens
        self._cached_tokens += matched_tokens
        self._sessions.refer(lease.session, lease.path.head(len(keys)), keys)
        self._sessions.count(lease.session, num_prompt_tokens, matched_tokens)
        slots = tuple(_slot_from(self._dram.slot(key), origin[key]) for key in keys)
        lease_id = self._leases.open(lease, self._clock())
        return PrefixLease(lease_id=lease_id, matched_tokens=matched_tokens, slots=slots)

    def _promote(self, tier: BackingTier, path: TokenPath, held: PathLock, epoch: int) -> PathLock:
        """A lock on the prefix after what `tier` has beyond `held` was copied up, as far as there is room."""
        found = tier.lock(path)
        num_held = held.num_blocks
        try:
            with self._owned():
                slots = self._dram.reserve(path.keys()[num_held : found.num_blocks], path.block_bytes)
            checksums: list[bytes] = []
            try:
                self._load(tier, path, num_held, slots, checksums)
            finally:
                with self._owned():
                    if epoch != self._epoch:
                        checksums = []
                    end = path.head(num_held + len(checksums) if checksums else 0)
                    self._events.note(EventKind.MOVED, self._dram.publish(end, slots, checksums))
                    lock = self._dram.hold(path)
        finally:
            tier.unlock(found)
        return lock

    def _load(
        self, tier: BackingTier, path: TokenPath, num_held: int, slots: Sequence[BlockSlot], checksums: list[bytes]
    ) -> None:
        """Read the blocks after the first `num_held` until one is lost; `checksums` gets one entry for each."""
        for index, slot in enumerate(slots, num_held):
            record = tier.load(slot.block_key, self._dram.view(slot))
            if record is None:
                tier.cut(path, index)
                return
            checksums.append(record.checksum)

    def _publish(self, lease: HeldLease, checksums: Sequence[bytes]) -> int:
        num_held = lease.lock.num_blocks
        path = lease.path.head(num_held + len(checksums))
        added = self._dram.publish(path, lease.slots, checksums)
        self._dram.unlock(lease.lock)
        visible = self._dram.hold(path)
        path = path.head(visible.num_blocks)
        self._events.note(EventKind.STORED, added, Tier.DRAM, lease.session)
        self._sessions.refer(lease.session, path, visible.keys)
        self._pins.extend(lease.session, path)
        self._write_behind(path, visible.keys if added else ())
        self._dram.unlock(visible)
        return max(0, visible.num_blocks - num_held)

    def _write_behind(self, path: TokenPath, keys: tuple[bytes, ...]) -> None:
        for tier in self._backing if keys else ():
            lock = self._dram.hold(path)
            done = partial(self._end_transfer, tier)
            transfer = Transfer(path=path, keys=keys, lock=lock, read=self._read_locked, done=done)
            if not tier.submit(transfer):
                self._dram.unlock(lock)

    def _read_locked(self, key: bytes) -> tuple[BlockRecord, ByteArray]:
        with self._lock:
            return self._dram.read(key)

    def _end_transfer(self, tier: BackingTier, transfer: Transfer, result: TransferResult) -> None:
        with self._owned():
            self._events.note(EventKind.STORED, result.stored, tier.tier)
            self._events.note(EventKind.REMOVED, result.evicted, tier.tier)
            if result.last is PutResult.CORRUPT:
                self._dram.cut(transfer.path, result.num_present)
            self._dram.unlock(transfer.lock)
            self._forget(result.evicted)

    def _end_session(self, session: SessionKey) -> int:
        self._pins.unpin(session)
        num_blocks = self._sessions.end(session)
        if num_blocks:
            self._dram.reorder()
        return num_blocks

    def _end_lease(self, lease: HeldLease | None) -> None:
        if lease is not None:
            self._dram.cancel(lease.slots)
            self._dram.unlock(lease.lock)

    def _settle(self) -> None:
        for session in self._sessions.surplus():
            self._end_session(session)
        removed = self._dram.take_removed()
        self._events.note(EventKind.REMOVED, removed)
        self._forget(removed)

    def _forget(self, keys: Sequence[bytes]) -> None:
        """Sessions refer to a block as long as any tier has it."""
        gone = (key for key in keys if not self._dram.has(key) and not any(tier.has(key) for tier in self._backing))
        self._sessions.forget_blocks(gone)


def _slot_from(slot: BlockSlot, tier: Tier) -> BlockSlot:
    return slot if slot.tier is tier else replace(slot, tier=tier)
