"""A tier below memory: a store, the tree of what it holds, and one thread that writes behind.

The tier above locks a path, hands it over as a `Transfer` and goes on; what is missing here is then encoded and copied,
parents before children, so that no block is ever here without its prefix. What leaves goes to the tier below, if that
one takes it. The queue is bounded; what does not fit stays with the giver.
"""

from collections.abc import Sequence
import contextlib
from dataclasses import dataclass, field
import logging
import threading

import numpy as np

from kv_agent_ros.errors import StoreError
from kv_agent_ros.kvcache.block import BlockLayout, EventKind, Tier, TierUsage
from kv_agent_ros.kvcache.codec import CodecBook, ExactBook
from kv_agent_ros.kvcache.eviction import EvictionPolicy, LruPolicy
from kv_agent_ros.kvcache.path import TokenPath
from kv_agent_ros.kvcache.radix_tree import PathLock, RadixPrefixCache
from kv_agent_ros.kvcache.storage.base import BlockRecord, BlockStore, ByteArray, PutResult
from kv_agent_ros.kvcache.storage.encoding import decoded, encoding
from kv_agent_ros.kvcache.storage.found_paths import find_paths
from kv_agent_ros.kvcache.storage.sweep import Sharing, Sweep
from kv_agent_ros.kvcache.storage.transfer import LoadedBlock, ReadBlock, TierChange, Transfer, TransferResult
from kv_agent_ros.kvcache.worker import Worker
from kv_agent_ros.kvcache.write_policy import WritePolicy

__all__ = ['WRITE_ALL', 'BackingTier', 'Sharing', 'TierOptions']

_log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True, slots=True)
class TierOptions:
    """What a tier does with blocks."""

    sharing: Sharing = Sharing.OWN

    write_policy: WritePolicy = WritePolicy.WRITE_THROUGH
    eviction: EvictionPolicy = field(default_factory=LruPolicy)
    codecs: CodecBook = field(default_factory=ExactBook)
    max_queued_transfers: int = 64


WRITE_ALL = TierOptions()


class BackingTier:
    """One lower tier. Thread-safe; calls `Transfer.read` and `Transfer.done` without holding its lock.

    Those of the tiers `below` whose policy is WRITE_BACK get what leaves this one.
    """

    def __init__(
        self,
        *,
        tier: Tier,
        store: BlockStore,
        options: TierOptions = WRITE_ALL,
        below: 'Sequence[BackingTier]' = (),
    ) -> None:
        self.tier = tier
        self.write_policy = options.write_policy
        self._store = store
        self._options = options
        self._below = tuple(lower for lower in below if lower.write_policy is WritePolicy.WRITE_BACK)
        self._tree = RadixPrefixCache(options.eviction)
        self._lock = threading.Lock()  # guards the tree and the books
        self._writing = threading.Lock()  # one writer at a time; taken before the lock, and before those of tiers below
        self._locks: set[PathLock] = set()
        self._worker = Worker(name=f'kv-{tier.value}', work=self._transfer, max_queued=options.max_queued_transfers)
        self._sweep = Sweep(
            name=f'kv-{tier.value}-sweep', store=store, sharing=options.sharing, lock=self._lock, writing=self._writing
        )
        self._changes: list[TierChange] = []
        self._num_hits = self._num_evictions = self._num_errors = 0
        self._read_bytes = self._written_bytes = 0

    @classmethod
    def open(
        cls,
        *,
        tier: Tier,
        store: BlockStore,
        options: TierOptions = WRITE_ALL,
        below: 'Sequence[BackingTier]' = (),
    ) -> 'BackingTier':
        """A tier that knows again what its store holds; blocks without their prefix are deleted."""
        opened = cls(tier=tier, store=store, options=options, below=below)
        opened._rebuild()
        return opened

    @property
    def is_shared(self) -> bool:
        """Whether discover() can find something."""
        return self._options.sharing is Sharing.SHARED

    def discover(self, path: TokenPath) -> None:
        """Learn which blocks of the path others have put into a shared store. May touch the device."""
        with self._lock:
            num_known, epoch = self._tree.match(path), self._sweep.epoch
        if not self.is_shared or num_known == path.num_blocks or not self.sweep(0.0):
            return
        end = num_known + self._store.find(path.keys()[num_known:])
        with self._lock:
            if epoch == self._sweep.epoch and end > num_known:
                self._show(path.head(end))

    def match(self, path: TokenPath) -> int:
        """Number of blocks in the longest prefix of the path that is here; changes nothing."""
        with self._lock:
            return self._tree.match(path)

    def lock(self, path: TokenPath) -> PathLock:
        """Lock the longest prefix of the path that is here and count one use of it."""
        with self._lock:
            lock = self._tree.lock(path)
            self._locks.add(lock)
        return lock

    def unlock(self, lock: PathLock) -> None:
        """End a lock; idempotent."""
        with self._lock:
            self._locks.discard(lock)
            self._forget(self._tree.unlock(lock))
        self.sweep(0.0)

    def load(self, key: bytes, layout: BlockLayout, out: ByteArray) -> LoadedBlock | None:
        """Fill `out` with a locked block, verified and decoded.

        None when it cannot be had now; it is lost when has() denies it too, then call cut().
        """
        try:
            record = self._store.get(key, out)
            if record is None:
                return None
            loaded = decoded(self._options.codecs, record, layout, out)
        except (StoreError, OSError) as error:
            _log.warning('%s tier: block %s cannot be read (%s)', self.tier.value, key.hex()[:12], error)
            with self._lock:
                self._num_errors += 1
            if isinstance(error, StoreError):
                self._delete([key])
            return None
        with self._lock:
            self._num_hits += 1
            self._read_bytes += record.length_bytes
        return loaded

    def cut(self, path: TokenPath, num_kept: int) -> None:
        """Forget block number `num_kept` of this path and everything after it; sweep() frees what they occupy."""
        with self._lock:
            self._forget(self._tree.cut(path, num_kept))

    def has(self, key: bytes) -> bool:
        """Whether the bytes of this block are here."""
        with self._lock:
            return not self._sweep.has(key) and self._store.size_bytes(key) > 0

    def sizes(self, keys: tuple[bytes, ...]) -> list[int]:
        """What each of these blocks occupies."""
        return [self._store.size_bytes(key) for key in keys]

    def take_changes(self) -> list[TierChange]:
        """What came and what left since the last call, in order; clear() is not told."""
        with self._lock:
            changes, self._changes = self._changes, []
        return changes

    def submit(self, transfer: Transfer) -> bool:
        """Queue a transfer; False when the queue is full, and then `done` is never called."""
        with self._lock:
            epoch = self._sweep.epoch
        is_queued = self._worker.submit((transfer, epoch))
        if not is_queued:
            with self._lock:
                self._num_errors += 1
        return is_queued

    def flush(self, timeout_s: float) -> bool:
        """Wait until everything queued is written or deleted; False when that takes longer."""
        return self._worker.flush(timeout_s) and self._sweep.flush(timeout_s)

    def clear(self) -> tuple[Transfer, ...]:
        """Forget everything; returns the transfers that were dropped, whose `done` is never called.

        Does not touch the device: sweep() does.
        """
        with self._lock:
            self._changes = []
            self._sweep.begin(self._tree.clear())
        return tuple(transfer for transfer, _ in self._worker.drop())

    def sweep(self, timeout_s: float) -> bool:
        """Delete what was forgotten; False when that takes longer, and then it goes on behind.

        Until it has ended nothing is written here and nothing of others found.
        """
        return self._sweep.wait(timeout_s)

    def usage(self) -> TierUsage:
        """The books; errors count lost workers and refused transfers too."""
        store = self._store.usage()
        with self._lock:
            locked = {key for lock in self._locks for key in lock.keys}
            num_errors = store.num_errors + self._num_errors + self._worker.num_deaths
            num_hits, num_evictions = self._num_hits, self._num_evictions
            read_bytes, written_bytes = self._read_bytes, self._written_bytes
            num_blocks = store.num_blocks if self.is_shared else self._tree.num_blocks  # without what is to be deleted
        return TierUsage(
            tier=self.tier,
            capacity_bytes=store.capacity_bytes,
            used_bytes=store.used_bytes,
            evictable_bytes=max(0, store.used_bytes - sum(self._store.size_bytes(key) for key in locked)),
            num_blocks=num_blocks,
            num_hits=num_hits,
            num_evictions=num_evictions,
            num_errors=num_errors,
            read_bytes=read_bytes,
            written_bytes=written_bytes,
            is_degraded=store.is_degraded,
        )

    @property
    def is_degraded(self) -> bool:
        """Whether the store fails or hangs now; then everything in it is a miss."""
        return self._store.usage().is_degraded

    @property
    def num_corrupt(self) -> int:
        """Blocks that did not have their checksum, here or when they came from above."""
        return self._store.usage().num_corrupt

    def close(self, timeout_s: float) -> bool:
        """Write what is queued, stop, close the store; False when the queue could not be written in time."""
        is_flushed = self._worker.close(timeout_s)
        self._sweep.close(timeout_s)
        self._store.close()
        return is_flushed

    def check_integrity(self) -> None:
        """Raise StoreError when the tree contradicts itself."""
        with self._lock:
            self._tree.check_integrity()

    def _transfer(self, job: tuple[Transfer, int]) -> None:
        transfer, epoch = job
        result = TransferResult()
        try:
            with self._writing:
                self._write(transfer.path, transfer.keys, encoding(transfer, self._options.codecs), epoch, result)
        finally:
            transfer.done(transfer, result)

    def _absorb(self, path: TokenPath, read: ReadBlock, epoch: int) -> None:
        """Take what leaves the tier above, in the bytes that it was stored in there."""
        with self._writing:
            self._write(path, path.keys(), read, epoch, TransferResult())

    def _write(
        self, path: TokenPath, keys: tuple[bytes, ...], read: ReadBlock, epoch: int, result: TransferResult
    ) -> None:
        """Copy what is missing of a path, as far as `read` gives blocks and there is room."""
        if not self._sweep.run() or epoch != self._sweep.epoch:
            return
        with self._lock:
            held = self._tree.hold(path)
            self._locks.add(held)
        result.num_present, result.last = held.num_blocks, PutResult.STORED
        try:
            for key in keys[held.num_blocks :]:
                result.last = PutResult.FAILED
                record, value = read(key)
                if not self.is_shared and self._store.size_bytes(key):
                    self._store.delete(key)  # forgotten, and only kept for one who reads it
                result.last = self._put(record, value)
                if result.last is not PutResult.STORED:
                    break
                result.num_present += 1
                self._written_bytes += record.length_bytes
        finally:
            self._admit(path, keys, held, epoch, result)

    def _admit(
        self, path: TokenPath, keys: tuple[bytes, ...], held: PathLock, epoch: int, result: TransferResult
    ) -> None:
        """Show what was written in the tree; what cannot be shown any more is deleted."""
        end = result.num_present
        with self._lock:
            num_shown = self._show(path.head(end)) if epoch == self._sweep.epoch else 0
            self._sweep.keep(keys[held.num_blocks : num_shown])  # cut meanwhile, and put again
            self._locks.discard(held)
            gone = self._tree.unlock(held)
            self._note_removed(gone)
        self._delete([*gone, *keys[max(held.num_blocks, num_shown) : end]])

    def _show(self, path: TokenPath) -> int:
        """Serve blocks that are in the store; how much of the path is served now. A cut block may be in the way."""
        num_added = self._tree.insert(path)
        if num_added:
            added = path.keys()[path.num_blocks - num_added :]
            self._changes.append(TierChange(kind=EventKind.STORED, tier=self.tier, keys=added, path=path))
        return self._tree.match(path)

    def _put(self, record: BlockRecord, value: ByteArray) -> PutResult:
        while (result := self._store.put(record, value)) is PutResult.FULL and self._evict_one():
            pass
        return result

    def _evict_one(self) -> bool:
        with self._lock:
            path = self._tree.victim()
            epochs = [lower._sweep.epoch for lower in self._below]  # a clear() after this one reaches them after us
        if not path.num_blocks:
            return False
        for lower, epoch in zip(self._below, epochs, strict=True):
            self._pass_down(path, lower, epoch)
        with self._lock:
            gone = self._tree.cut(path, path.num_blocks - 1)
            self._num_evictions += 1
            self._note_removed(gone)
        self._delete(gone)
        return True

    def _pass_down(self, path: TokenPath, lower: 'BackingTier', epoch: int) -> None:
        with contextlib.suppress(StoreError):  # it cannot be read: lost here, and not below either
            lower._absorb(path, self._read_stored, epoch)

    def _read_stored(self, key: bytes) -> tuple[BlockRecord, ByteArray]:
        buffer = np.empty(self._store.size_bytes(key), dtype=np.uint8)
        record = self._store.get(key, buffer)
        if record is None:
            raise StoreError(f'{self.tier.value} tier: block {key.hex()[:12]} cannot be read')
        return record, buffer[: record.length_bytes]

    def _forget(self, keys: Sequence[bytes]) -> None:
        self._note_removed(keys)
        self._sweep.forget(keys)

    def _note_removed(self, keys: Sequence[bytes]) -> None:
        if keys:
            self._changes.append(TierChange(kind=EventKind.REMOVED, tier=self.tier, keys=tuple(keys)))

    def _delete(self, keys: Sequence[bytes]) -> None:
        for key in keys:
            self._store.delete(key)

    def _rebuild(self) -> None:
        paths, orphans = find_paths(list(self._store.records()))
        for path in paths:  # longest unused first, so that the tree learns the order of use
            self._show(path)
        if orphans and not self.is_shared:  # there, others may be about to write the prefix
            _log.warning('%s tier: %d blocks without their prefix deleted', self.tier.value, len(orphans))
            self._delete(orphans)
        while (usage := self._store.usage()).used_bytes > usage.capacity_bytes and self._evict_one():
            pass
        _log.info('%s tier: %d blocks found', self.tier.value, self._tree.num_blocks)
