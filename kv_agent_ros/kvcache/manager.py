"""The front door to a machine's KV blocks: leases on prefixes, over shared memory first and lower tiers after.

It knows tokens, sessions and leases; it has never heard of models or ROS. `CacheBooks` is what its lock guards,
`Promoter`, `Demoter` and `Prefetcher` move blocks between the tiers.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
import math
import secrets
import time

from kv_agent_ros.errors import BadRequestError
from kv_agent_ros.kvcache.base import Prefetched, PrefetchPolicy, PrefixMatch
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
from kv_agent_ros.kvcache.books import CacheBooks
from kv_agent_ros.kvcache.cost_model import CostModel
from kv_agent_ros.kvcache.demotion import Demoter
from kv_agent_ros.kvcache.dram_tier import DramTier
from kv_agent_ros.kvcache.events import EventListener, ignore_event
from kv_agent_ros.kvcache.leases import HeldLease, LeaseBook
from kv_agent_ros.kvcache.path import TokenPath, token_path
from kv_agent_ros.kvcache.prefetch import Prefetcher
from kv_agent_ros.kvcache.promotion import HeldPrefix, Promoter
from kv_agent_ros.kvcache.session_index import SessionIndex
from kv_agent_ros.kvcache.storage.tiered import BackingTier
from kv_agent_ros.kvcache.write_policy import WHEN_FULL, Watermarks

_CHECKSUM_BYTES = 16
_SWEEP_S = 10.0  # that one tier has to delete what was forgotten; then it goes on behind


class KVCacheManager:
    """A PrefixCache over one DRAM tier and the tiers behind it, in order of speed. Thread-safe.

    `tenant` replaces what callers write into their namespace. `listener` is called in order of sequence and never
    under the lock; it must not raise. `prefill_tokens_per_s` is believed of engines until they were measured. An
    acquire() begins to load no further block after `max_load_s`.
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
        max_load_s: float = math.inf,
        watermarks: Watermarks = WHEN_FULL,
        prefill_tokens_per_s: float = 0.0,
        clock: Callable[[], float] = time.monotonic,
        timer: Callable[[], float] = time.perf_counter,
        make_id: Callable[[], str] = lambda: secrets.token_hex(16),
        listener: EventListener = ignore_event,
    ) -> None:
        self._tenant = tenant
        self._max_pin_s = max_pin_s
        self._max_load_s = max_load_s
        self._clock = clock
        self._dram = dram
        self._sessions = sessions
        self._backing = tuple(backing)
        self._leases = LeaseBook(timeout_s=lease_timeout_s, make_id=make_id)
        self._costs = CostModel(prefill_tokens_per_s=prefill_tokens_per_s, clock=clock)
        self._books = CacheBooks(
            dram=dram,
            sessions=sessions,
            backing=backing,
            leases=self._leases,
            costs=self._costs,
            clock=clock,
            listener=listener,
        )
        self._demoter = Demoter(books=self._books, watermarks=watermarks)
        self._promoter = Promoter(books=self._books, demoter=self._demoter, timer=timer)
        self._prefetcher = Prefetcher(books=self._books, promoter=self._promoter)
        self._prompt_tokens = self._cached_tokens = self._num_discarded = 0
        self._saved_compute_s = 0.0

    def match(self, namespace: KVNamespace, tokens: TokenArray) -> PrefixMatch:
        """How much of a prompt acquire() would serve now, and from which tiers, if memory has room; changes nothing."""
        path = self._path(namespace, tokens[: max(0, len(tokens) - 1)])
        with self._books.owned():
            num_held = self._dram.match(path)
        ends = [(Tier.DRAM, num_held), *self._promoter.plan(path, num_held)]
        starts = [0, *(end for _, end in ends)]
        return PrefixMatch(
            sources=tuple(
                (tier, (end - start) * path.block_tokens)
                for (tier, end), start in zip(ends, starts, strict=False)
                if end > start
            )
        )

    def acquire(self, namespace: KVNamespace, session: SessionKey, tokens: TokenArray) -> PrefixLease:
        """See PrefixCache. Blocks of lower tiers are promoted as far as DRAM has room and as it pays."""
        path = self._path(namespace, tokens[: max(0, len(tokens) - 1)])
        with self._books.owned():
            generation = self._sessions.begin(session)
            lock = self._dram.lock(path)
            num_hits = lock.num_blocks
            held = HeldPrefix(path=path, epoch=self._books.epoch, lock=lock, sources=[(Tier.DRAM, num_hits)])
            self._dram.count_hits(num_hits)
            self._demoter.note_hit(path.head(num_hits))
        is_granted = False
        try:
            self._promoter.promote(held, self._max_load_s)
            with self._books.owned():
                lease = self._grant(session, generation, held, len(tokens))
                is_granted = True
        finally:
            if not is_granted:
                with self._books.owned():
                    self._dram.unlock(held.lock)
        return lease

    def reserve(self, namespace: KVNamespace, session: SessionKey, tokens: TokenArray) -> WriteLease:
        """See PrefixCache."""
        path = self._path(namespace, tokens)
        keys = path.keys()
        with self._books.owned():
            generation = self._sessions.join(session)
            lock = self._dram.hold(path)
            slots = self._dram.reserve(keys[lock.num_blocks :], path.block_bytes, self._demoter.make_room)
            lease = HeldLease(session=session, generation=generation, path=path, lock=lock, slots=slots)
            lease_id = self._leases.open(lease, self._clock())
        first_token = lock.num_blocks * namespace.block_tokens
        return WriteLease(lease_id=lease_id, first_token=first_token, slots=slots)

    def commit(self, lease_id: str, checksums: Sequence[bytes]) -> int:
        """See PrefixCache. Raises BadRequestError for checksums of a wrong size."""
        if any(len(digest) != _CHECKSUM_BYTES for digest in checksums):
            raise BadRequestError(
                f'checksums: expected {_CHECKSUM_BYTES} bytes each, got {[len(c) for c in checksums]}'
            )
        with self._books.owned():
            lease = self._leases.take(lease_id)
            if lease is None:
                self._dram.cancel(self._leases.take_back(lease_id))
                return 0
            return self._publish(lease, checksums[: len(lease.slots)])

    def release(self, lease_id: str) -> None:
        """See PrefixCache."""
        with self._books.owned():
            self._end_lease(lease_id)

    def discard(self, lease_id: str, num_good_blocks: int) -> None:
        """See PrefixCache. A block that does have its checksum stays, whatever its reader says."""
        with self._books.owned():
            lease = self._leases.take(lease_id)
            if lease is None:
                self._end_lease(lease_id)
                return
            accused = lease.lock.keys[num_good_blocks:][:1] if num_good_blocks >= 0 else ()
            if not all(self._dram.is_intact(key) for key in accused):
                self._num_discarded += 1
                self._dram.cut(lease.path, num_good_blocks)
                for tier in self._backing:
                    tier.cut(lease.path, num_good_blocks)
            self._books.end_lease(lease)
        for tier in self._backing:
            tier.sweep(_SWEEP_S)

    def prefetch(
        self,
        namespace: KVNamespace,
        session: SessionKey,
        tokens: TokenArray,
        policy: PrefetchPolicy,
        timeout_s: float,
    ) -> Prefetched:
        """See PrefixCache. Raises BadRequestError for an impossible time."""
        if len(tokens):
            path = self._path(namespace, tokens)
        else:  # and then the namespace does not matter
            with self._books.owned():
                path = self._sessions.prefix(session)
        return self._prefetcher.prefetch(path, session, policy, timeout_s)

    def fork(self, source: SessionKey, session: SessionKey) -> int:
        """See PrefixCache."""
        with self._books.owned():
            return self._sessions.fork(source, session)

    def pin(self, session: SessionKey, duration_s: float) -> int:
        """See PrefixCache. Pins the prefix used last, for `max_pin_s` at most; all pins hold half of DRAM at most."""
        if not 0 < duration_s < math.inf:
            raise BadRequestError(f'duration_s: expected seconds > 0, got {duration_s!r}')
        with self._books.owned():
            until_s = self._clock() + min(duration_s, self._max_pin_s)
            return self._books.pins.pin(session, self._sessions.prefix(session), until_s)

    def end_session(self, session: SessionKey) -> int:
        """See PrefixCache. Turns that began before refer to nothing any more when they end."""
        with self._books.owned():
            return self._books.end_session(session)

    def evict(self, num_bytes: int) -> int:
        """Free at least `num_bytes` of DRAM, if unlocked blocks allow it; returns the bytes that were freed.

        Blocks that must be copied down first leave a little later.
        """
        with self._books.owned():
            before = self._dram.used_bytes
            while before - self._dram.used_bytes < num_bytes and self._demoter.retire():
                pass
            return before - self._dram.used_bytes

    def clear(self) -> None:
        """Forget every block of every tier, for instance after a change of weights.

        Write leases end unpublished; readers keep their bytes until they release.
        """
        with self._books.owned():
            self._books.epoch += 1
            for lease in self._leases.take_writers(self._clock()):
                self._dram.unlock(lease.lock)
            self._prefetcher.clear()
            self._demoter.clear()
            self._dram.clear()
            self._books.note_cleared()
        for tier in self._backing:
            tier.sweep(_SWEEP_S)

    def stats(self) -> CacheStats:
        """See PrefixCache. Costs the same however many blocks there are."""
        backing = tuple(tier.usage() for tier in self._backing)
        num_corrupt = sum(tier.num_corrupt for tier in self._backing)
        with self._books.owned():
            return CacheStats(
                tiers=(self._dram.usage(), *backing),
                sessions=self._sessions.usages(self._books.pins.sessions()),
                num_blocks=self._books.num_blocks,
                num_leases=len(self._leases),
                num_expired_leases=self._leases.num_expired,
                prompt_tokens=self._prompt_tokens,
                cached_tokens=self._cached_tokens,
                num_checksum_failures=self._num_discarded + num_corrupt,
                num_prefetched_blocks=self._prefetcher.num_blocks,
                saved_compute_s=self._saved_compute_s,
                load_s=self._promoter.load_s,
            )

    def flush(self, timeout_s: float) -> bool:
        """Wait until the lower tiers have what their policies let survive; False when that takes longer."""
        return self._prefetcher.flush(timeout_s) and self._demoter.flush(timeout_s)

    def close(self, timeout_s: float = 10.0) -> None:
        """Write what should survive, then free the shared memory; idempotent."""
        self._prefetcher.close(timeout_s)
        self._demoter.flush(timeout_s)
        for tier in self._backing:
            tier.close(timeout_s)
        self._dram.close()

    def __enter__(self) -> 'KVCacheManager':
        return self

    def __exit__(self, *exc_details: object) -> None:
        self.close()

    def check_integrity(self) -> None:
        """Raise StoreError when the books of any tier do not add up."""
        with self._books.owned():
            self._dram.check_integrity()
            self._sessions.check_integrity()
        for tier in self._backing:
            tier.check_integrity()

    @property
    def num_locks(self) -> int:
        """Living locks on DRAM: leases, pins and queued transfers. 0 when nothing leaks and nobody works."""
        return self._dram.num_locks

    @property
    def num_reserved_slots(self) -> int:
        """Slots of DRAM that are being written, or rest after a late writer. 0 when nothing leaks and nobody works."""
        return self._dram.num_reserved_slots

    def _path(self, namespace: KVNamespace, tokens: TokenArray) -> TokenPath:
        return token_path(replace(namespace, tenant=self._tenant), tokens)

    def _grant(self, session: SessionKey, generation: int, held: HeldPrefix, num_prompt_tokens: int) -> PrefixLease:
        if held.epoch != self._books.epoch:  # cleared meanwhile: what is locked is not valid any more
            before, held.lock = held.lock, self._dram.hold(held.path)
            self._dram.unlock(before)
        keys = held.lock.keys
        matched_tokens = len(keys) * held.path.block_tokens
        self._prompt_tokens += num_prompt_tokens
        self._cached_tokens += matched_tokens
        self._saved_compute_s += self._costs.compute_s(held.path.root, matched_tokens)
        self._sessions.refer(session, generation, held.path.head(len(keys)), keys)
        self._sessions.count(session, num_prompt_tokens, matched_tokens)
        self._sessions.start_clock(session, matched_tokens, self._clock())
        lease = HeldLease(session=session, generation=generation, path=held.path, lock=held.lock)
        lease_id = self._leases.open(lease, self._clock())
        return PrefixLease(lease_id=lease_id, matched_tokens=matched_tokens, slots=self._slots(held))

    def _slots(self, held: HeldPrefix) -> tuple[BlockSlot, ...]:
        """Where the blocks are, with the tiers that they came from."""
        keys = held.lock.keys
        slots = [self._dram.slot(key) for key in keys]
        start = 0
        for tier, end in held.sources:
            if tier is not Tier.DRAM:
                slots[start:end] = [replace(slot, tier=tier) for slot in slots[start:end]]
            start = end
        return tuple(slots)

    def _publish(self, lease: HeldLease, checksums: Sequence[bytes]) -> int:
        num_held = lease.lock.num_blocks
        path = lease.path.head(num_held + len(checksums))
        added = self._dram.publish(path, lease.slots, checksums)
        self._dram.unlock(lease.lock)
        self._books.note_stored(EventKind.STORED, path, len(added), Tier.DRAM, lease.session)
        visible = self._dram.hold(path)
        path = path.head(visible.num_blocks)
        self._note_turn(lease)
        if self._sessions.refer(lease.session, lease.generation, path, visible.keys):
            self._books.pins.extend(lease.session, path)
        if added:
            self._demoter.note_commit(path)
        self._dram.unlock(visible)
        self._demoter.keep_watermarks()
        return max(0, visible.num_blocks - num_held)

    def _note_turn(self, lease: HeldLease) -> None:
        """What an engine publishes it has computed since it was told what is cached."""
        num_tokens = lease.path.num_blocks * lease.path.block_tokens
        at_s = self._clock()
        self._costs.note_turn(lease.path.root, *self._sessions.read_clock(lease.session, num_tokens, at_s))
        self._sessions.start_clock(lease.session, num_tokens, at_s)

    def _end_lease(self, lease_id: str) -> None:
        lease = self._leases.take(lease_id)
        if lease is None:
            self._dram.cancel(self._leases.take_back(lease_id))
        else:
            self._books.end_lease(lease)
