"""The DRAM tier: shared-memory slots, the tree of what they hold, and eviction to make room.

Not thread-safe: `CacheBooks` guards it.
"""

from collections.abc import Callable, Sequence

from kv_agent_ros.errors import StoreError
from kv_agent_ros.kvcache.block import BlockLayout, BlockSlot, Tier, TierUsage
from kv_agent_ros.kvcache.eviction import EvictionPolicy, UseObserver
from kv_agent_ros.kvcache.path import TokenPath
from kv_agent_ros.kvcache.radix_tree import PathLock, RadixPrefixCache
from kv_agent_ros.kvcache.storage.base import BlockRecord, ByteArray, checksum
from kv_agent_ros.kvcache.storage.host import HostStore, aligned_bytes


class DramTier:
    """Blocks that engines can map. Along every path it holds a prefix: heads come first and leave last.

    `num_ghosts` evicted blocks are remembered for the policy.
    """

    def __init__(
        self,
        *,
        store: HostStore,
        policy: EvictionPolicy,
        num_ghosts: int = 0,
        observers: Sequence[UseObserver] = (),
    ) -> None:
        self._store = store
        self._tree = RadixPrefixCache(policy, num_ghosts, observers)
        self._layouts: dict[bytes, BlockLayout] = {}  # by namespace digest
        self._reserved: dict[int, BlockSlot] = {}  # offset -> slot that is being written
        self._locks: dict[PathLock, int] = {}  # with what one of its blocks occupies
        self._removed: list[bytes] = []
        self._reserved_bytes = self._locked_bytes = 0
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
        return len(self._locks)

    @property
    def num_reserved_slots(self) -> int:
        """Slots that are being written, or rest after their writer was late."""
        return len(self._reserved)

    def match(self, path: TokenPath) -> int:
        """Number of blocks in the longest prefix of the path that is here; changes nothing."""
        return self._tree.match(path)

    def lock(self, path: TokenPath) -> PathLock:
        """Lock the longest prefix of the path that is here and count one use of it."""
        num_locked = self._num_locked
        return self._track(self._tree.lock(path), path, num_locked)

    def hold(self, path: TokenPath) -> PathLock:
        """Lock the longest prefix of the path that is here, without a use of it."""
        num_locked = self._num_locked
        return self._track(self._tree.hold(path), path, num_locked)

    def unlock(self, lock: PathLock) -> None:
        """End a lock; idempotent."""
        num_locked = self._num_locked
        self._drop(self._tree.unlock(lock))
        self._locked_bytes += (self._num_locked - num_locked) * self._locks.pop(lock, 0)

    def count_hits(self, num_blocks: int) -> None:
        self._num_hits += num_blocks

    def has(self, key: bytes) -> bool:
        return self._store.size_bytes(key) > 0

    def slot(self, key: bytes) -> BlockSlot:
        """Where a locked block is."""
        return self._store.slot(key)

    def read(self, key: bytes) -> tuple[BlockRecord, ByteArray]:
        """A locked block and its bytes in place."""
        return self._store.record(key), self._store.view(self._store.slot(key))

    def is_intact(self, key: bytes) -> bool:
        """Whether a locked block has its checksum."""
        record, value = self.read(key)
        return checksum(value) == record.checksum

    def view(self, slot: BlockSlot) -> ByteArray:
        """The bytes of a reserved slot, writable."""
        return self._store.view(slot)

    def reserve(self, keys: Sequence[bytes], block_bytes: int, make_room: Callable[[], bool]) -> tuple[BlockSlot, ...]:
        """Slots for these blocks, fewer where `make_room` frees nothing more."""
        slots = []
        for key in keys if block_bytes <= self.capacity_bytes else ():
            slot = self._store.reserve(key, block_bytes)
            while slot is None and make_room():
                slot = self._store.reserve(key, block_bytes)
            if slot is None:
                break
            self._reserved[slot.offset_bytes] = slot
            self._reserved_bytes += aligned_bytes(block_bytes)
            slots.append(slot)
        return tuple(slots)

    def cancel(self, slots: Sequence[BlockSlot]) -> None:
        """Give reserved slots back."""
        for slot in slots:
            self._unreserve(slot)
            self._store.cancel(slot)

    def publish(self, path: TokenPath, slots: Sequence[BlockSlot], checksums: Sequence[bytes]) -> tuple[bytes, ...]:
        """Serve written slots as the last blocks of `path`, one checksum each; slots that are left over are given back.

        Returns the keys that were not here before.
        """
        self._layouts[path.root] = path.layout
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
                    bits=slot.bits,
                )
                self._unreserve(slot)
                self._store.publish(slot, record)
        self.cancel([slot for slot in slots if slot.offset_bytes in self._reserved])
        return added

    def victim_key(self) -> bytes:
        """Key of the block that evict() would remove first; empty when it could remove nothing."""
        return self._tree.victim_key()

    def victim(self) -> TokenPath:
        """The path that ends with this block."""
        return self._with_layout(self._tree.victim())

    def leaves(self) -> list[TokenPath]:
        """The paths to the blocks that have none after them."""
        paths = [path for path in self._tree.leaves() if self._tree.match(path) == path.num_blocks]  # not the cut ones
        return [self._with_layout(path) for path in paths]

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
        return TierUsage(
            tier=Tier.DRAM,
            capacity_bytes=store.capacity_bytes,
            used_bytes=store.used_bytes,
            evictable_bytes=store.used_bytes - self._reserved_bytes - self._locked_bytes,
            num_blocks=store.num_blocks,
            num_hits=self._num_hits,
            num_evictions=self._num_evictions,
            num_errors=store.num_errors,
        )

    def close(self) -> None:
        """Free the shared memory; idempotent."""
        self._store.close()

    def check_integrity(self) -> None:
        """Raise StoreError when tree, store, locks and reserved slots do not add up."""
        self._tree.check_integrity()
        self._store.check_integrity(tuple(self._reserved))
        here = {record.key for record in self._store.records()}
        if here != set(self._tree.all_keys()):
            raise StoreError('DRAM tier: tree and store hold different blocks; this is a bug')
        locked_bytes = sum(self._store.size_bytes(key) for key in self._tree.locked_keys())
        reserved_bytes = sum(aligned_bytes(slot.length_bytes) for slot in self._reserved.values())
        if (locked_bytes, reserved_bytes) != (self._locked_bytes, self._reserved_bytes):
            raise StoreError(
                f'DRAM tier: expected {locked_bytes} B locked and {reserved_bytes} B reserved, '
                f'counted {self._locked_bytes} and {self._reserved_bytes}; this is a bug'
            )

    @property
    def _num_locked(self) -> int:
        return self._tree.num_blocks - self._tree.num_evictable_blocks

    def _track(self, lock: PathLock, path: TokenPath, num_locked_before: int) -> PathLock:
        self._locks[lock] = aligned_bytes(path.block_bytes)
        self._locked_bytes += (self._num_locked - num_locked_before) * self._locks[lock]
        return lock

    def _unreserve(self, slot: BlockSlot) -> None:
        del self._reserved[slot.offset_bytes]
        self._reserved_bytes -= aligned_bytes(slot.length_bytes)

    def _with_layout(self, path: TokenPath) -> TokenPath:
        if not path.num_blocks:
            return path
        layout = self._layouts[path.root]
        return TokenPath(root=path.root, tokens=path.tokens, block_tokens=path.block_tokens, layout=layout)

    def _drop(self, keys: Sequence[bytes]) -> None:
        for key in keys:
            self._store.delete(key)
        self._removed += keys
