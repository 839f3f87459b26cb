"""The DRAM tier: shared-memory slots, the tree of what they hold, and eviction to make room.

Not thread-safe: the `KVCacheManager` guards it.
"""

from collections.abc import Sequence

from kv_agent_ros.errors import StoreError
from kv_agent_ros.kvcache.block import BlockSlot, Tier, TierUsage
from kv_agent_ros.kvcache.eviction import EvictionPolicy
from kv_agent_ros.kvcache.path import TokenPath
from kv_agent_ros.kvcache.radix_tree import PathLock, RadixPrefixCache
from kv_agent_ros.kvcache.storage.base import BlockRecord, ByteArray
from kv_agent_ros.kvcache.storage.host import HostStore


class DramTier:
    """Blocks that engines can map. Along every path it holds a prefix: heads come first and leave last."""

    def __init__(self, *, store: HostStore, policy: EvictionPolicy) -> None:
        self._store = store
        self._tree = RadixPrefixCache(policy)
        self._reserved: dict[int, BlockSlot] = {}  # offset -> slot that is being written
        self._removed: list[bytes] = []
        self._num_locks = 0
        self._num_hits = self._num_evictions = 0

    @property
    def capacity_bytes(self) -> int:
        return self._store.usage().capacity_bytes

    @property
    def used_bytes(self) -> int:
        return self._store.usage().used_bytes

    @property
    def num_locks(self) -> int:
        """Locks that are not released: leases, pins, transfers."""
        return self._num_locks

    def lock(self, path: TokenPath) -> PathLock:
        """Lock the longest prefix of the path that is here and count one use of it."""
        self._num_locks += 1
        return self._tree.lock(path)

    def hold(self, path: TokenPath) -> PathLock:
        """Lock the longest prefix of the path that is here, without a use of it."""
        self._num_locks += 1
        return self._tree.hold(path)

    def unlock(self, lock: PathLock) -> None:
        """End a lock; idempotent."""
        self._num_locks -= not lock.is_released
        self._drop(self._tree.unlock(lock))

    def count_hits(self, num_blocks: int) -> None:
        self._num_hits += num_blocks

    def has(self, key: bytes) -> bool:
        return self._store.size_bytes(key) > 0

    def all_keys(self) -> tuple[bytes, ...]:
        """All blocks, in no particular order."""
        return tuple(self._tree.all_keys())

    def slot(self, key: bytes) -> BlockSlot:
        """Where a locked block is."""
        return self._store.slot(key)

    def read(self, key: bytes) -> tuple[BlockRecord, ByteArray]:
        """A locked block and its bytes in place."""
        return self._store.record(key), self._store.view(self._store.slot(key))

    def view(self, slot: BlockSlot) -> ByteArray:
        """The bytes of a reserved slot, writable."""
        return self._store.view(slot)

    def reserve(self, keys: Sequence[bytes], block_bytes: int) -> tuple[BlockSlot, ...]:
        """Slots for these blocks, fewer where nothing more can be evicted."""
        slots = []
        for key in keys if block_bytes <= self.capacity_bytes else ():
            slot = self._store.reserve(key, block_bytes)
            while slot is None and self.evict(1):
                slot = self._store.reserve(key, block_bytes)
            if slot is None:
                break
            self._reserved[slot.offset_bytes] = slot
            slots.append(slot)
        return tuple(slots)

    def cancel(self, slots: Sequence[BlockSlot]) -> None:
        """Give reserved slots back."""
        for slot in slots:
            del self._reserved[slot.offset_bytes]
            self._store.cancel(slot)

    def publish(self, path: TokenPath, slots: Sequence[BlockSlot], checksums: Sequence[bytes]) -> tuple[bytes, ...]:
        """Serve written slots as the last blocks of `path`, one checksum each; slots that are left over are given back.

        Returns the keys that were not here before.
        """
        keys = path.keys()
        added = keys[len(keys) - self._tree.insert(path) :]
        added_keys = set(added)
        first = len(keys) - len(checksums)
        parents = (path.root, *keys)
        for index, slot, digest in zip(range(first, len(keys)), slots, checksums, strict=False):
            if slot.block_key in added_keys:
                record = BlockRecord(
                    key=slot.block_key,
                    parent_key=parents[index],
                    root=path.root,
                    tokens=path.block(index),
                    length_bytes=slot.length_bytes,
                    checksum=digest,
                )
                del self._reserved[slot.offset_bytes]
                self._store.publish(slot, record)
        self.cancel([slot for slot in slots if slot.offset_bytes in self._reserved])
        return added

    def evict(self, num_blocks: int) -> int:
        """Evict unlocked blocks, tails first; returns how many there were."""
        keys = self._tree.evict(num_blocks)
        self._num_evictions += len(keys)
        self._drop(keys)
        return len(keys)

    def cut(self, path: TokenPath, num_kept: int) -> None:
        """Forget block number `num_kept` of the path and everything after it."""
        self._drop(self._tree.cut(path, num_kept))

    def clear(self) -> None:
        """Forget everything; locked blocks keep their slots until their last lock ends."""
        self._drop(self._tree.clear())

    def reorder(self) -> None:
        """Some blocks are worth less now: ask the policy again."""
        self._tree.reorder()

    def take_removed(self) -> tuple[bytes, ...]:
        """Keys of the blocks that left since the last call."""
        removed, self._removed = tuple(self._removed), []
        return removed

    def usage(self) -> TierUsage:
        """The books; slots being written are used and not evictable."""
        store = self._store.usage()
        locked = set(self._tree.locked_keys())
        return TierUsage(
            tier=Tier.DRAM,
            capacity_bytes=store.capacity_bytes,
            used_bytes=store.used_bytes,
            evictable_bytes=sum(self._store.size_bytes(key) for key in self._tree.all_keys() if key not in locked),
            num_blocks=store.num_blocks,
            num_hits=self._num_hits,
            num_evictions=self._num_evictions,
            num_errors=store.num_errors,
        )

    def close(self) -> None:
        """Free the shared memory; idempotent."""
        self._store.close()

    def check_integrity(self) -> None:
        """Raise StoreError when tree, store and reserved slots do not add up."""
        self._tree.check_integrity()
        self._store.check_integrity(tuple(self._reserved))
        here = {record.key for record in self._store.records()}
        if here != set(self._tree.all_keys()):
            raise StoreError('DRAM tier: tree and store hold different blocks; this is a bug')

    def _drop(self, keys: Sequence[bytes]) -> None:
        for key in keys:
            self._store.delete(key)
        self._removed += keys
