"""A tier below DRAM: a store, the tree of what it holds, and one thread that writes behind.

The tier above locks a path, hands it over as a `Transfer` and goes on; what is missing here is then copied, parents
before children, so that no block is ever here without its prefix. The queue is bounded: what does not fit is not
stored here, and counted.
"""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
import logging
import threading

from kv_agent_ros.kvcache.block import Tier, TierUsage
from kv_agent_ros.kvcache.eviction import LruPolicy
from kv_agent_ros.kvcache.path import TOKEN_BYTES, TokenPath
from kv_agent_ros.kvcache.radix_tree import PathLock, RadixPrefixCache
from kv_agent_ros.kvcache.storage.base import BlockRecord, BlockStore, ByteArray, PutResult

_log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True, slots=True)
class TransferResult:
    """What a transfer did: blocks that arrived, blocks that made room, and how far the path is here now."""

    stored: tuple[bytes, ...] = ()
    evicted: tuple[bytes, ...] = ()
    num_present: int = 0
    last: PutResult = PutResult.STORED


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Transfer:
    """A path to be copied down. The giver keeps its bytes in place until `done` is called, once, by any thread."""

    path: TokenPath
    keys: tuple[bytes, ...]
    read: Callable[[bytes], tuple[BlockRecord, ByteArray]]
    done: Callable[['Transfer', TransferResult], None]
    lock: PathLock  # the giver's


class BackingTier:
    """One lower tier. Thread-safe; calls `Transfer.read` and `Transfer.done` without holding its lock."""

    def __init__(self, *, tier: Tier, store: BlockStore, max_queued_transfers: int = 64) -> None:
        self.tier = tier
        self._store = store
        self._max_queued_transfers = max_queued_transfers
        self._tree = RadixPrefixCache(LruPolicy())
        self._changed = threading.Condition()
        self._queue: deque[Transfer] = deque()
        self._worker = threading.Thread(target=self._work, name=f'kv-{tier.value}', daemon=True)
        self._num_running = 0
        self._epoch = 0
        self._is_closing = False
        self._num_hits = self._num_evictions = self._num_errors = 0

    @classmethod
    def open(cls, *, tier: Tier, store: BlockStore, max_queued_transfers: int = 64) -> 'BackingTier':
        """A tier that knows again what its store holds; blocks without their prefix are deleted."""
        opened = cls(tier=tier, store=store, max_queued_transfers=max_queued_transfers)
        opened._rebuild()
        return opened

    def lock(self, path: TokenPath) -> PathLock:
        """Lock the longest prefix of the path that is here and count one use of it."""
        with self._changed:
            return self._tree.lock(path)

    def unlock(self, lock: PathLock) -> None:
        """End a lock; idempotent."""
        with self._changed:
            gone = self._tree.unlock(lock)
        self._delete(gone)

    def load(self, key: bytes, out: ByteArray) -> BlockRecord | None:
        """Fill `out` with a locked block's verified bytes; None when they are lost, then call cut()."""
        record = self._store.get(key, out)
        with self._changed:
            self._num_hits += record is not None
        return record

    def cut(self, path: TokenPath, num_kept: int) -> None:
        """Forget block number `num_kept` of this path and everything after it."""
        with self._changed:
            gone = self._tree.cut(path, num_kept)
        self._delete(gone)

    def has(self, key: bytes) -> bool:
        """Whether the bytes of this block are here."""
        return self._store.size_bytes(key) > 0

    def submit(self, transfer: Transfer) -> bool:
        """Queue a transfer; False when the queue is full, and then `done` is never called."""
        with self._changed:
            if self._is_closing or len(self._queue) >= self._max_queued_transfers:
                self._num_errors += 1
                return False
            self._queue.append(transfer)
            self._changed.notify_all()
            if not self._worker.is_alive():
                self._start_worker()
        return True

    def flush(self, timeout_s: float) -> bool:
        """Wait until everything queued is written; False when that takes longer."""
        with self._changed:
            return self._changed.wait_for(lambda: not self._queue and not self._num_running, timeout_s)

    def clear(self) -> tuple[Transfer, ...]:
        """Forget everything; returns the transfers that were dropped, whose `done` is never called."""
        with self._changed:
            self._epoch += 1
            dropped = tuple(self._queue)
            self._queue.clear()
            gone = self._tree.clear()
            self._changed.notify_all()
        self._delete(gone)
        return dropped

    def usage(self) -> TierUsage:
        """The books; errors count lost workers and refused transfers too."""
        store = self._store.usage()
        with self._changed:
            locked_bytes = sum(self._store.size_bytes(key) for key in self._tree.locked_keys())
            return TierUsage(
                tier=self.tier,
                capacity_bytes=store.capacity_bytes,
                used_bytes=store.used_bytes,
                evictable_bytes=max(0, store.used_bytes - locked_bytes),
                num_blocks=store.num_blocks,
                num_hits=self._num_hits,
                num_evictions=self._num_evictions,
                num_errors=store.num_errors + self._num_errors,
            )

    @property
    def num_corrupt(self) -> int:
        """Blocks that did not have their checksum, here or when they came from above."""
        return self._store.usage().num_corrupt

    def close(self, timeout_s: float) -> bool:
        """Write what is queued, stop, close the store; False when the queue could not be written in time."""
        is_flushed = self.flush(timeout_s)
        with self._changed:
            self._is_closing = True
            self._changed.notify_all()
            is_started = self._worker.ident is not None
        if is_started:
            self._worker.join(timeout_s)
        self._store.close()
        return is_flushed

    def check_integrity(self) -> None:
        """Raise StoreError when the tree contradicts itself."""
        with self._changed:
            self._tree.check_integrity()

    def _start_worker(self) -> None:
        if self._worker.ident is not None:  # it ran and is dead: a defect, but not the end of the tier
            self._num_errors += 1
            self._worker = threading.Thread(target=self._work, name=self._worker.name, daemon=True)
        self._worker.start()

    def _work(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._queue or self._is_closing)
                if not self._queue:
                    return
                transfer = self._queue.popleft()
                self._num_running += 1
                epoch = self._epoch
            result = TransferResult(last=PutResult.FAILED)
            try:
                result = self._write(transfer, epoch)
            finally:
                self._finish(transfer, result)

    def _finish(self, transfer: Transfer, result: TransferResult) -> None:
        try:
            transfer.done(transfer, result)
        finally:
            with self._changed:
                self._num_running -= 1
                self._changed.notify_all()

    def _write(self, transfer: Transfer, epoch: int) -> TransferResult:
        with self._changed:
            held = self._tree.hold(transfer.path)
        stored: list[bytes] = []
        evicted: list[bytes] = []
        last = PutResult.STORED
        for key in transfer.keys[held.num_blocks :]:
            last = self._put(*transfer.read(key), evicted)
            if last is not PutResult.STORED:
                break
            stored.append(key)
        end = held.num_blocks + len(stored)
        with self._changed:
            num_added = self._tree.insert(transfer.path.head(end)) if epoch == self._epoch else 0
            gone = self._tree.unlock(held)
        added = transfer.keys[end - num_added : end]
        self._delete(gone + [key for key in stored if key not in added])
        return TransferResult(stored=added, evicted=tuple(evicted), num_present=end, last=last)

    def _put(self, record: BlockRecord, value: ByteArray, evicted: list[bytes]) -> PutResult:
        while True:
            result = self._store.put(record, value)
            if result is not PutResult.FULL:
                return result
            victims = self._evict_one()
            if not victims:
                return result
            evicted += victims

    def _evict_one(self) -> list[bytes]:
        with self._changed:
            victims = self._tree.evict(1)
            self._num_evictions += len(victims)
        self._delete(victims)
        return victims

    def _delete(self, keys: list[bytes]) -> None:
        for key in keys:
            self._store.delete(key)

    def _rebuild(self) -> None:
        records = list(self._store.records())
        by_key = {record.key: record for record in records}
        parents = {record.parent_key for record in records}
        reached: set[bytes] = set()
        for record in records:  # longest unused first, so that the tree learns the order of use
            if record.key not in parents:
                reached.update(self._insert_path(by_key, record))
        orphans = [record.key for record in records if record.key not in reached]
        if orphans:
            _log.warning('%s tier: %d blocks without their prefix deleted', self.tier.value, len(orphans))
        self._delete(orphans)
        while (usage := self._store.usage()).used_bytes > usage.capacity_bytes and self._evict_one():
            pass
        _log.info('%s tier: %d blocks found', self.tier.value, self._tree.num_blocks)

    def _insert_path(self, by_key: dict[bytes, BlockRecord], leaf: BlockRecord) -> tuple[bytes, ...]:
        """Insert the path that ends at `leaf`, or its longest prefix that is complete; returns its keys."""
        path = [leaf]
        while path[-1].parent_key in by_key:
            path.append(by_key[path[-1].parent_key])
        if path[-1].parent_key != leaf.root:
            return ()
        path.reverse()
        keys = tuple(record.key for record in path)
        tokens = b''.join(record.tokens for record in path)
        self._tree.insert(TokenPath(root=leaf.root, tokens=tokens, block_tokens=len(leaf.tokens) // TOKEN_BYTES))
        return keys
