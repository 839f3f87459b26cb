"""One tree for models whose layers need different things of a prefix: full attention, windows, recurrent states.

The radix tree holds the blocks of full attention, a `PartTable` per further component says which have their part. A
match ends at the deepest boundary that all components accept. When a block leaves, its parts go too; parts alone leave
in this order: spare, with the tails of the tree, those of branch points. Not thread-safe: its owner guards it.
"""

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
import sys

from kv_agent_ros.errors import StoreError
from kv_agent_ros.kvcache.component_parts import PartTable
from kv_agent_ros.kvcache.components import FULL, Component, Part, deepest_boundary
from kv_agent_ros.kvcache.eviction import BlockUse, EvictionPolicy, Rank
from kv_agent_ros.kvcache.path import TokenPath
from kv_agent_ros.kvcache.radix_tree import PathLock, RadixPrefixCache

_FIRST = -sys.maxsize  # below every rank of a policy


@dataclass(kw_only=True, slots=True)
class _Place:
    parent_key: bytes  # b'' for the first block of a path
    index: int
    num_children: int  # 0: an end, 2 or more: a branch point; both want their spans


class ComponentLock:
    """Holds a prefix of `num_blocks` blocks and, per component, the parts that a continuation needs."""

    def __init__(self, path: TokenPath, path_lock: PathLock, held: dict[str, tuple[Part, ...]]) -> None:
        self.num_blocks = path_lock.num_blocks
        self.path = path.head(self.num_blocks)
        self._path_lock = path_lock
        self._held = held  # without the components that are released

    def parts(self, component: Component) -> tuple[Part, ...]:
        """What is held of one component, first block first."""
        if component.name == FULL:
            return tuple(_parts(component, self.path.keys(), range(self.num_blocks)))
        return self._held.get(component.name, ())


class UnifiedPrefixCache:
    """A RadixPrefixCache whose matches, locks and evictions know the components of a hybrid model.

    `components` are full attention and any others. Match: O(path + components * blocks) at most, usually one span each.
    """

    def __init__(self, *, components: Sequence[Component], policy: EvictionPolicy, num_ghosts: int = 0) -> None:
        """`num_ghosts` evicted blocks are remembered for the policy."""
        self.components = tuple(components)
        names = [component.name for component in components]
        if names.count(FULL) != 1 or len(set(names)) != len(names):
            raise StoreError(f'components: expected one {FULL!r} and different names, got {names}')
        self._full = next(component for component in components if component.name == FULL)
        # The shortest span first: it usually decides, and is the cheapest to ask.
        others = [component for component in components if component.name != FULL]
        self._partial = tuple(sorted(others, key=lambda component: component.span_blocks))
        self._tables = {component.name: PartTable() for component in self._partial}
        self._tree = RadixPrefixCache(_UselessTailsFirst(policy, self), num_ghosts)
        self._places: dict[bytes, _Place] = {}
        self._locks: set[ComponentLock] = set()
        self._removed: list[Part] = []

    @property
    def num_locks(self) -> int:
        """Locks with anything left to release."""
        return len(self._locks)

    def num_parts(self, component: Component) -> int:
        return self._tree.num_blocks if component.name == FULL else len(self._tables[component.name])

    def num_evictable_parts(self, component: Component) -> int:
        """Parts that no lock holds; evict() can remove all of them."""
        if component.name == FULL:
            return self._tree.num_evictable_blocks
        return self.num_parts(component) - self._tables[component.name].num_locked

    def has(self, part: Part) -> bool:
        """Whether the part is here; it may be of a block that no match reaches."""
        return self._has(part.component, part.block_key)

    def parts(self, component: Component) -> Iterator[Part]:
        """Every part of one component, in no particular order."""
        for key, place in self._places.items():
            if self._has(component, key):
                yield Part(component=component, block_key=key, index=place.index)

    def match(self, path: TokenPath) -> int:
        """Blocks in the longest prefix of the path that every component can continue; changes nothing."""
        num_blocks = self._tree.match(path)
        keys = path.keys() if self._partial else ()
        return deepest_boundary(num_blocks, self._partial, lambda component, index: self._has(component, keys[index]))

    def is_boundary(self, key: bytes) -> bool:
        """Whether a match could end after this block."""
        return all(
            self._has(component, step) for component in self._partial for step in self._span(key, component.span_blocks)
        )

    def lock(self, path: TokenPath) -> ComponentLock:
        """Lock what match() finds, with the parts to load, and count one use of it."""
        path = path.head(self.match(path))
        return self._hold(path, self._tree.lock(path))

    def hold(self, path: TokenPath) -> ComponentLock:
        """Lock what is here of the path and of the parts that its end needs, for a writer that adds the rest."""
        return self._hold(path, self._tree.hold(path))

    def unlock(self, lock: ComponentLock) -> None:
        """End a lock; idempotent."""
        for component in self._partial:
            self.unlock_component(lock, component)
        self._locks.discard(lock)
        self._forget(self._tree.unlock(lock._path_lock))

    def unlock_component(self, lock: ComponentLock, component: Component) -> None:
        """End a lock's hold on one component, for instance when the state was copied; idempotent."""
        if component.name == FULL:
            raise StoreError('unlock_component: expected a component beside full attention; unlock() ends that')
        parts = lock._held.pop(component.name, ())
        self._tables[component.name].unlock(part.block_key for part in parts)

    def insert(self, path: TokenPath, written: Mapping[str, Collection[int]]) -> tuple[Part, ...]:
        """Publish what was `written` (component name -> block numbers), up to the deepest boundary that it completes.

        Returns the parts that were not here before; what lies beyond that boundary is not published.
        """
        keys = path.keys()
        num_matched = self._tree.match(path)

        def is_there(component: Component, index: int) -> bool:
            is_here = index < num_matched and self._has(component, keys[index])
            return is_here or index in written.get(component.name, ())

        end = deepest_boundary(path.num_blocks, (*self._partial, self._full), is_there)
        if num_matched < end and keys[num_matched] in self._places:  # a cut block under a lock is in the way
            return ()
        num_old = min(num_matched, end)
        self._hang(keys[:end], num_old)
        added = list(_parts(self._full, keys, range(num_old, end)))
        for component in self._partial:
            indexes = sorted(index for index in written.get(component.name, ()) if index < end)
            for part in _parts(component, keys, indexes):
                if not self.has(part):
                    self._tables[component.name].add(part.block_key)
                    added.append(part)
        self._tree.insert(path.head(end))  # last: it asks the policy, which asks for the parts
        return tuple(added)

    def evict(self, component: Component, num_parts: int) -> int:
        """Evict up to `num_parts` parts that no lock holds; returns how many of this component left."""
        if component.name == FULL:
            return self._evict_tails(component, num_parts)
        table = self._tables[component.name]
        num_evicted = 0
        while num_evicted < num_parts:
            key = table.pop_spare()
            if not key and self.num_evictable_parts(self._full):
                num_evicted += self._evict_tails(component, 1)
                continue
            if not (key := key or table.pop_wanted()):
                break
            self._note_removed(component, key)
            num_evicted += 1
        return num_evicted

    def cut(self, path: TokenPath, num_kept: int) -> None:
        """Forget block number `num_kept` of the path and everything after it; locked blocks leave with their lock."""
        self._forget(self._tree.cut(path, num_kept))

    def clear(self) -> None:
        """Forget everything, as cut() does."""
        self._forget(self._tree.clear())

    def reorder(self) -> None:
        """Ask the policy again about everything, after something lowered its ranks."""
        self._tree.reorder()

    def take_removed(self) -> tuple[Part, ...]:
        """Parts that left since the last call; their bytes may be freed."""
        removed, self._removed = tuple(self._removed), []
        return removed

    def check_integrity(self) -> None:
        """Raise StoreError when tree, places and parts contradict each other."""
        self._tree.check_integrity()
        if set(self._tree.all_keys()) != set(self._places):
            raise StoreError('unified cache: tree and places hold different blocks; this is a bug')
        children = Counter(place.parent_key for place in self._places.values() if place.parent_key)
        if any(place.num_children != children[key] for key, place in self._places.items()):
            raise StoreError('unified cache: a wrong number of children; this is a bug')
        for component in self._partial:
            table = self._tables[component.name]
            if not table.keys() <= set(self._places):
                raise StoreError('unified cache: a part without its block; this is a bug')
            ends = [key for key, place in self._places.items() if place.num_children != 1]
            wants = Counter(step for key in ends for step in self._span(key, component.span_blocks))
            locks = Counter(part.block_key for lock in self._locks for part in lock._held.get(component.name, ()))
            table.check_integrity(wants, locks)

    def _has(self, component: Component, key: bytes) -> bool:
        return key in (self._places if component.name == FULL else self._tables[component.name])

    def _hold(self, path: TokenPath, path_lock: PathLock) -> ComponentLock:
        keys = path.keys()
        held: dict[str, tuple[Part, ...]] = {}
        for component in self._partial:
            indexes = [index for index in component.needed(path.num_blocks) if index < path_lock.num_blocks]
            held[component.name] = tuple(part for part in _parts(component, keys, indexes) if self.has(part))
            self._tables[component.name].lock(part.block_key for part in held[component.name])
        lock = ComponentLock(path, path_lock, held)
        self._locks.add(lock)
        return lock

    def _evict_tails(self, component: Component, num_blocks: int) -> int:
        num_before = self.num_parts(component)
        self._forget(self._tree.evict(num_blocks))
        return num_before - self.num_parts(component)

    def _hang(self, keys: Sequence[bytes], num_old: int) -> None:
        """The blocks after the first `num_old` are new, in one run."""
        if num_old == len(keys):
            return
        if num_old:
            self._count_child(keys[num_old - 1], 1)
        for index in range(num_old, len(keys)):
            parent_key = keys[index - 1] if index else b''
            self._places[keys[index]] = _Place(parent_key=parent_key, index=index, num_children=1)
        self._count_child(keys[-1], -1)

    def _forget(self, keys: Collection[bytes]) -> None:
        """Blocks that left the tree take their parts along."""
        for key in keys:
            if self._places[key].num_children != 1:
                self._want(key, -1)
        for key in keys:
            for component in self._partial:
                if self._tables[component.name].drop(key):
                    self._note_removed(component, key)
            self._note_removed(self._full, key)
        parent_keys = [self._places.pop(key).parent_key for key in keys]
        for parent_key in parent_keys:
            if parent_key in self._places:
                self._count_child(parent_key, -1)

    def _count_child(self, key: bytes, change: int) -> None:
        place = self._places[key]
        was_live, place.num_children = place.num_children != 1, place.num_children + change
        self._want(key, (place.num_children != 1) - was_live)

    def _want(self, key: bytes, change: int) -> None:
        for component in self._partial if change else ():
            table = self._tables[component.name]
            span = self._span(key, component.span_blocks)
            if change > 0:
                table.want(span)
            else:
                table.unwant(span)

    def _span(self, key: bytes, num_blocks: int) -> list[bytes]:
        """The block and those before it, `num_blocks` in all or as many as there are."""
        span: list[bytes] = []
        while key and len(span) < num_blocks:
            span.append(key)
            key = self._places[key].parent_key
        return span

    def _note_removed(self, component: Component, key: bytes) -> None:
        self._removed.append(Part(component=component, block_key=key, index=self._places[key].index))


class _UselessTailsFirst:
    """Blocks at which no match can end go before all others: only tails are asked about, so nothing is behind them."""

    def __init__(self, policy: EvictionPolicy, cache: UnifiedPrefixCache) -> None:
        self._policy = policy
        self._cache = cache

    def rank(self, use: BlockUse) -> Rank:
        return self._policy.rank(use) if self._cache.is_boundary(use.key) else (_FIRST, use.last_used)


def _parts(component: Component, keys: Sequence[bytes], indexes: Iterable[int]) -> Iterable[Part]:
    return (Part(component=component, block_key=keys[index], index=index) for index in indexes)
