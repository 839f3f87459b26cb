"""The memory of a hybrid model: one store per component, the unified tree of what they hold, and room for more.

Every store is as large as its component may become, so that no component can push out another. Published bytes leave
by copy only: an engine that goes on from a state never writes the snapshot. Not thread-safe: its owner guards it.
"""

from collections import Counter, defaultdict
from collections.abc import Collection, Mapping
from dataclasses import dataclass

import numpy as np

from kv_agent_ros.errors import StoreError
from kv_agent_ros.kvcache.block import BlockSlot, Tier, TierUsage
from kv_agent_ros.kvcache.components import FULL, Component, Part, component_tag
from kv_agent_ros.kvcache.eviction import EvictionPolicy
from kv_agent_ros.kvcache.path import TokenPath
from kv_agent_ros.kvcache.storage.base import BlockRecord, ByteArray, checksum
from kv_agent_ros.kvcache.storage.host import HostStore, aligned_bytes
from kv_agent_ros.kvcache.unified import ComponentLock, UnifiedPrefixCache


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class HybridWrite:
    """Slots to fill for parts of `path` that are not here yet; what is here of the path stays until it ends."""

    path: TokenPath
    lock: ComponentLock
    slots: dict[Part, BlockSlot]


class HybridTier:
    """Parts of blocks in memory: lock a prefix, read its parts; reserve slots, write them, publish them together."""

    def __init__(
        self, *, components: Collection[Component], stores: Mapping[str, HostStore], policy: EvictionPolicy
    ) -> None:
        """`stores` by component name."""
        if {component.name for component in components} != set(stores):
            raise StoreError(f'stores: expected one per component, got {sorted(stores)}')
        self.cache = UnifiedPrefixCache(components=tuple(components), policy=policy)
        self._stores = dict(stores)
        self._writes: set[HybridWrite] = set()
        self._num_hits: Counter[Component] = Counter()
        self._num_evictions: Counter[Component] = Counter()

    def lock(self, path: TokenPath) -> ComponentLock:
        """Lock the longest prefix of the path from which an engine can continue."""
        lock = self.cache.lock(path)
        for component in self.cache.components:
            self._num_hits[component] += len(lock.parts(component))
        return lock

    def unlock(self, lock: ComponentLock) -> None:
        """End a lock; idempotent."""
        self.cache.unlock(lock)
        self._settle()

    def read(self, part: Part, out: ByteArray) -> bool:
        """Copy a locked part; False when it does not have its checksum: unlock, then cut() the path there."""
        record, value = self.stored(part)
        np.copyto(out, value)
        return checksum(out) == record.checksum

    def slot(self, part: Part) -> BlockSlot:
        """Where a locked part is, for an engine in another process; it copies, verifies and never writes."""
        return self._stores[part.component.name].slot(part.key)

    def stored(self, part: Part) -> tuple[BlockRecord, ByteArray]:
        """A locked part and its bytes in place, which cannot be written."""
        store = self._stores[part.component.name]
        value = store.view(store.slot(part.key)).view()
        value.flags.writeable = False
        return store.record(part.key), value

    def reserve(self, path: TokenPath, wanted: Mapping[str, Collection[int]]) -> HybridWrite:
        """Slots for the parts (component name -> block numbers) that are not here; fewer where nothing can be evicted.

        Full attention comes first, from the head; what the others get comes from the end, which needs it.
        """
        write = HybridWrite(path=path, lock=self.cache.hold(path), slots={})
        self._writes.add(write)
        keys = path.keys()
        for component in sorted(self.cache.components, key=lambda component: component.name != FULL):
            for index in sorted(wanted.get(component.name, ()), reverse=component.name != FULL):
                part = Part(component=component, block_key=keys[index], index=index)
                if self.cache.has(part):
                    continue
                slot = self._allocate(part)
                if slot is None:
                    break
                write.slots[part] = slot
        return write

    def view(self, write: HybridWrite, part: Part) -> ByteArray:
        """The bytes of a reserved slot, writable."""
        return self._stores[part.component.name].view(write.slots[part])

    def publish(self, write: HybridWrite, checksums: Mapping[Part, bytes]) -> int:
        """Serve the parts that have a checksum, as far as they complete a boundary; returns where it is, in blocks.

        Slots that are left over are given back. A write that has ended publishes nothing.
        """
        if write not in self._writes:
            return 0
        written: defaultdict[str, set[int]] = defaultdict(set)
        for part in checksums.keys() & write.slots.keys():
            written[part.component.name].add(part.index)
        for part in self.cache.insert(write.path, written):
            record = _record(write.path, part, checksums[part])
            self._stores[part.component.name].publish(write.slots.pop(part), record)
        visible = self.cache.match(write.path)
        self.cancel(write)
        return visible

    def cancel(self, write: HybridWrite) -> None:
        """Give the slots back; idempotent."""
        if write in self._writes:
            self._writes.remove(write)
            for part, slot in write.slots.items():
                self._stores[part.component.name].cancel(slot)
            self.unlock(write.lock)

    def evict(self, component: Component, num_parts: int) -> int:
        """Evict parts that no lock holds; returns how many of this component there were."""
        num_evicted = self.cache.evict(component, num_parts)
        for part in self._settle():
            self._num_evictions[part.component] += 1
        return num_evicted

    def cut(self, path: TokenPath, num_kept: int) -> None:
        """Forget block number `num_kept` of the path and everything after it."""
        self.cache.cut(path, num_kept)
        self._settle()

    def usage(self, component: Component) -> TierUsage:
        """One component's books; slots being written are used and not evictable."""
        store = self._stores[component.name].usage()
        part_bytes = aligned_bytes(component.layout.num_bytes)
        return TierUsage(
            tier=Tier.DRAM,
            capacity_bytes=store.capacity_bytes,
            used_bytes=store.used_bytes,
            evictable_bytes=self.cache.num_evictable_parts(component) * part_bytes,
            num_blocks=store.num_blocks,
            num_hits=self._num_hits[component],
            num_evictions=self._num_evictions[component],
            num_errors=store.num_errors,
        )

    def close(self) -> None:
        """Free the shared memory; idempotent."""
        for store in self._stores.values():
            store.close()

    def check_integrity(self) -> None:
        """Raise StoreError when tree, stores and reserved slots do not add up."""
        self.cache.check_integrity()
        for component in self.cache.components:
            store = self._stores[component.name]
            reserved = [
                slot.offset_bytes
                for write in self._writes
                for part, slot in write.slots.items()
                if part.component is component
            ]
            store.check_integrity(reserved)
            if store.usage().num_blocks != self.cache.num_parts(component):
                raise StoreError(f'hybrid tier: tree and store hold different {component.name} parts; this is a bug')

    def _allocate(self, part: Part) -> BlockSlot | None:
        store = self._stores[part.component.name]
        num_bytes = part.component.layout.num_bytes
        slot = store.reserve(part.key, num_bytes)
        while slot is None and self.evict(part.component, 1):
            slot = store.reserve(part.key, num_bytes)
        return slot

    def _settle(self) -> tuple[Part, ...]:
        removed = self.cache.take_removed()
        for part in removed:
            self._stores[part.component.name].delete(part.key)
        return removed


def _record(path: TokenPath, part: Part, digest: bytes) -> BlockRecord:
    before = path.keys()[part.index - 1] if part.index else path.root
    is_block = part.component.name == FULL
    return BlockRecord(
        key=part.key,
        parent_key=before if is_block else part.block_key,
        root=path.root,
        tokens=path.block(part.index) if is_block else component_tag(part.component),
        length_bytes=part.component.layout.num_bytes,
        checksum=digest,
    )
