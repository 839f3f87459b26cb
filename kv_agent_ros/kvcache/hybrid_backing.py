"""A place below the memory of a hybrid model: one BlockStore for the parts of all components, and the tree of them.

A prefix goes down and comes up as a whole: it counts as here, or there, when every part that its end needs has landed
and has its checksum. Not thread-safe, and as slow as its store: its owner decides who waits.
"""

from collections import defaultdict
from collections.abc import Iterable, Sequence

from kv_agent_ros.kvcache.components import Component, Part, component_key, component_tag
from kv_agent_ros.kvcache.eviction import EvictionPolicy
from kv_agent_ros.kvcache.hybrid_tier import HybridTier
from kv_agent_ros.kvcache.path import TOKEN_BYTES, TokenPath
from kv_agent_ros.kvcache.storage.base import BlockRecord, BlockStore, ByteArray, PutResult
from kv_agent_ros.kvcache.unified import UnifiedPrefixCache


class HybridBacking:
    """Copies prefixes from a HybridTier down to a store and back up."""

    def __init__(self, *, components: Sequence[Component], store: BlockStore, policy: EvictionPolicy) -> None:
        self.cache = UnifiedPrefixCache(components=components, policy=policy)
        self._store = store

    @classmethod
    def open(cls, *, components: Sequence[Component], store: BlockStore, policy: EvictionPolicy) -> 'HybridBacking':
        """One that knows again what its store holds; parts that complete no boundary are deleted."""
        opened = cls(components=components, store=store, policy=policy)
        opened._rebuild()
        return opened

    def save(self, path: TokenPath, tier: HybridTier) -> int:
        """Copy down what an engine could continue of the path; returns how many blocks can be loaded from here."""
        source = tier.cache.hold(path.head(tier.cache.match(path)))
        held = self.cache.hold(source.path)
        written: defaultdict[str, set[int]] = defaultdict(set)
        stored: list[Part] = []
        for part in (part for component in tier.cache.components for part in source.parts(component)):
            if not self.cache.has(part) and self._put(part, *tier.stored(part)) is PutResult.STORED:
                written[part.component.name].add(part.index)
                stored.append(part)
        self.cache.insert(source.path, written)
        self.cache.unlock(held)
        tier.unlock(source)
        self._delete(part for part in stored if not self.cache.has(part))
        self._settle()
        return self.cache.match(path)

    def load(self, path: TokenPath, tier: HybridTier) -> int:
        """Copy up what is here of the path and has its checksums; returns how many blocks `tier` can continue then."""
        while not self._copy_up(path, tier):
            pass  # what was lost is forgotten: the next boundary is before it
        return tier.cache.match(path)

    def clear(self) -> None:
        """Forget everything."""
        self.cache.clear()
        self._settle()

    def _copy_up(self, path: TokenPath, tier: HybridTier) -> bool:
        """Whether all parts up to the deepest boundary were still in the store."""
        found = self.cache.lock(path)
        write = tier.reserve(
            found.path, {c.name: [part.index for part in found.parts(c)] for c in self.cache.components}
        )
        checksums: dict[Part, bytes] = {}
        lost: list[int] = []
        for part in write.slots:
            record = self._store.get(part.key, tier.view(write, part))
            if record is None:
                lost.append(part.index)
            else:
                checksums[part] = record.checksum
        tier.publish(write, checksums)
        if lost:
            self.cache.cut(path, min(lost))
        self.cache.unlock(found)
        self._settle()
        return not lost

    def _put(self, part: Part, record: BlockRecord, value: ByteArray) -> PutResult:
        while True:
            result = self._store.put(record, value)
            if result is not PutResult.FULL or not self._make_room(part.component):
                return result

    def _make_room(self, component: Component) -> bool:
        """Whether something left: one part of this component, or of another when it has none to give."""
        others = (other for other in self.cache.components if other is not component)
        is_freed = any(self.cache.evict(victim, 1) for victim in (component, *others))
        self._settle()
        return is_freed

    def _settle(self) -> None:
        self._delete(self.cache.take_removed())

    def _delete(self, parts: Iterable[Part]) -> None:
        for part in parts:
            self._store.delete(part.key)

    def _rebuild(self) -> None:
        records = list(self._store.records())
        keys = {record.key for record in records}
        tags = {component_tag(component) for component in self.cache.components}
        blocks = {record.key: record for record in records if record.tokens not in tags}
        parents = {block.parent_key for block in blocks.values()}
        for block in blocks.values():  # longest unused first, so that the tree learns the order of use
            if block.key not in parents:
                self._insert_path(keys, blocks, block)
        known = {part.key for component in self.cache.components for part in self.cache.parts(component)}
        for key in keys - known:
            self._store.delete(key)

    def _insert_path(self, keys: set[bytes], blocks: dict[bytes, BlockRecord], leaf: BlockRecord) -> None:
        run = [leaf]
        while run[-1].parent_key in blocks:
            run.append(blocks[run[-1].parent_key])
        if run[-1].parent_key != leaf.root:
            return
        run.reverse()
        tokens = b''.join(block.tokens for block in run)
        path = TokenPath(root=leaf.root, tokens=tokens, block_tokens=len(leaf.tokens) // TOKEN_BYTES)
        present = {
            component.name: [i for i, block in enumerate(run) if component_key(block.key, component) in keys]
            for component in self.cache.components
        }
        self.cache.insert(path, present)
