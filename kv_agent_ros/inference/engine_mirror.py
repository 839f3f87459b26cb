"""What an engine has cached, as its events tell it: a copy of its index without the tensors.

Knows no sockets. Blocks whose parent was never told are kept apart until it is, so that a prefix is never said to be
longer than what is known from its first token on.
"""

from collections import Counter, OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

import numpy as np

from kv_agent_ros.kvcache.block import Tier, TokenArray
from kv_agent_ros.kvcache.event_wire import AllCleared, BlocksRemoved, BlocksStored, WireEvent

MAX_BLOCKS = 1 << 21  # about a gigabyte here; no engine has so many, but one whose removals are missed seems to
MAX_SESSIONS = 1024  # the longest silent ones are forgotten

Owner = tuple[str, str]  # whose a prefix is: cache salt and LoRA adapter
Parent = int | Owner  # a block's hash, or the owner of a prefix's first block


class MirrorState(Enum):
    """How far the mirror can be trusted."""

    WAITING = 'waiting'
    """Nothing was heard of the engine yet."""
    SYNCED = 'synced'
    """Every event since the engine's start, or since it was cleared, has been applied."""
    DEGRADED = 'degraded'
    """Events are missing: what it says is cached may be gone, and more may be cached than it says."""


@dataclass(frozen=True, kw_only=True, slots=True)
class MirrorStats:
    """The mirror's books."""

    state: MirrorState
    num_blocks: int  # reachable from the first token on
    num_orphans: int  # blocks whose parent is not known
    blocks_by_tier: dict[Tier, int]
    num_events: int
    num_resyncs: int  # how often events were missing
    names_sessions: bool  # whether the engine says which session stored a block
    blocks_by_session: dict[str, int]  # of the prefix that a session stored last, from its first token on


@dataclass(slots=True)
class _Block:
    parent: Parent
    tokens: bytes
    tiers: set[Tier]


class EngineMirror:
    """One engine's index. Not thread-safe: its owner guards it."""

    def __init__(self, max_blocks: int = MAX_BLOCKS) -> None:
        self._max_blocks = max_blocks
        self._blocks: dict[int, _Block] = {}
        self._children: dict[Parent, dict[bytes, set[int]]] = {}
        self._tips: OrderedDict[str, int] = OrderedDict()  # by session, the last block that it stored and that is left
        self._sessions_at: dict[int, set[str]] = {}  # the same, by block
        self._names_sessions = False
        self._reachable: dict[int, int] = {}  # from a prefix's first block on, with the blocks up to each
        self._num_by_tier: Counter[Tier] = Counter()  # of those
        self._state = MirrorState.WAITING
        self._block_tokens = 1
        self._num_events = 0
        self._num_resyncs = 0

    @property
    def state(self) -> MirrorState:
        return self._state

    def apply(self, event: WireEvent) -> bool:
        """One change, in the engine's order; False when all others had to be forgotten for it."""
        self._num_events += 1
        match event:
            case AllCleared():
                self.clear()
                self.mark_synced()
            case BlocksRemoved():
                for block_hash in event.block_hashes:
                    self._remove(block_hash, event.tier)
            case BlocksStored():
                return self._store(event)
        return True

    def clear(self) -> None:
        """Forget every block: the engine has started anew."""
        for index in (self._blocks, self._children, self._tips, self._sessions_at, self._num_by_tier):
            index.clear()
        self._reachable.clear()

    def mark_synced(self) -> None:
        """Nothing is missing."""
        self._state = MirrorState.SYNCED

    def mark_degraded(self) -> None:
        """Events were missed."""
        self._num_resyncs += self._state is not MirrorState.DEGRADED
        self._state = MirrorState.DEGRADED

    def matched_tokens(self, tokens: TokenArray | Sequence[int], cache_salt: str, adapter: str = '') -> int:
        """How many tokens from the first on the engine holds in some tier for that tenant and LoRA adapter."""
        array = np.ascontiguousarray(tokens, dtype='<i4')
        size, matched = self._block_tokens, 0
        candidates: set[Parent] = {(cache_salt, adapter)}
        while matched + size <= len(array):
            run = array[matched : matched + size].tobytes()
            candidates = {child for one in candidates for child in self._children.get(one, {}).get(run, ())}
            if not candidates:
                break
            matched += size
        return matched

    def stats(self) -> MirrorStats:
        """The books now."""
        return MirrorStats(
            state=self._state,
            num_blocks=len(self._reachable),
            num_orphans=len(self._blocks) - len(self._reachable),
            blocks_by_tier={tier: number for tier, number in self._num_by_tier.items() if number},
            num_events=self._num_events,
            num_resyncs=self._num_resyncs,
            names_sessions=self._names_sessions,
            blocks_by_session={
                name: self._reachable[tip] for name, tip in self._tips.items() if tip in self._reachable
            },
        )

    def check_integrity(self) -> None:
        """Raise AssertionError where the two indices do not say the same."""
        linked = {child for runs in self._children.values() for run in runs.values() for child in run}
        assert linked == set(self._blocks), 'children: expected exactly the known blocks'
        for block_hash, block in self._blocks.items():
            assert block.tiers, f'block {block_hash}: expected a tier, got none'
            assert block_hash in self._children[block.parent][block.tokens], f'block {block_hash}: not under its parent'
        found = self._found_from_the_first()
        assert set(self._reachable) == found, 'reachable: expected what a walk from the first finds'
        for each in found:
            parent = self._blocks[each].parent
            before = 0 if isinstance(parent, tuple) else self._reachable[parent]
            assert self._reachable[each] == before + 1, f'block {each}: expected one more than its parent has before it'
        tiers = Counter(tier for each in self._reachable for tier in self._blocks[each].tiers)
        assert tiers == +self._num_by_tier, 'tiers: expected the counts of the reachable blocks'
        tips = {(name, tip) for tip, names in self._sessions_at.items() for name in names}
        assert tips == set(self._tips.items()), 'sessions: expected the same by name and by block'
        assert set(self._tips.values()) <= set(self._blocks), 'sessions: expected known blocks'

    def _store(self, event: BlocksStored) -> bool:
        has_room = len(self._blocks) + len(event.block_hashes) <= self._max_blocks
        if not has_room:
            self.clear()
            self.mark_degraded()
        self._block_tokens = event.block_tokens
        tokens = np.asarray(event.token_ids, dtype='<i4').tobytes()
        size = 4 * event.block_tokens
        parent: Parent = event.parent_hash or (event.cache_salt, event.adapter)
        for number, block_hash in enumerate(event.block_hashes):
            run = tokens[number * size : (number + 1) * size]
            known = self._blocks.get(block_hash)
            if known is not None and (known.parent, known.tokens) == (parent, run):
                self._num_by_tier[event.tier] += block_hash in self._reachable and event.tier not in known.tiers
                known.tiers.add(event.tier)
            else:
                self._forget(block_hash)
                self._blocks[block_hash] = _Block(parent=parent, tokens=run, tiers={event.tier})
                self._children.setdefault(parent, {}).setdefault(run, set()).add(block_hash)
                if isinstance(parent, tuple) or parent in self._reachable:
                    self._reach(block_hash)
            parent = block_hash
        if event.session_id and event.block_hashes:
            self._set_tip(event.session_id, event.block_hashes[-1])
        return has_room

    def _remove(self, block_hash: int, tier: Tier) -> None:
        block = self._blocks.get(block_hash)
        if block is None:
            return  # removed before we listened, or told twice
        if tier in block.tiers:
            self._num_by_tier[tier] -= block_hash in self._reachable
            block.tiers.discard(tier)
        if not block.tiers:
            self._forget(block_hash)

    def _forget(self, block_hash: int) -> None:
        block = self._blocks.get(block_hash)
        if block is None:
            return
        if block_hash in self._reachable:
            self._cut_off(block_hash)
        del self._blocks[block_hash]
        runs = self._children[block.parent]
        runs[block.tokens].discard(block_hash)
        if not runs[block.tokens]:
            del runs[block.tokens]
        if not runs:
            del self._children[block.parent]
        for name in self._sessions_at.pop(block_hash, set()):
            if isinstance(block.parent, int) and block.parent in self._blocks:
                self._tips[name] = block.parent  # and is no less silent for it
                self._sessions_at.setdefault(block.parent, set()).add(name)
            else:
                del self._tips[name]

    def _set_tip(self, name: str, block_hash: int) -> None:
        self._names_sessions = True
        if name in self._tips:
            self._leave(name, self._tips.pop(name))
        self._tips[name] = block_hash
        self._sessions_at.setdefault(block_hash, set()).add(name)
        if len(self._tips) > MAX_SESSIONS:
            self._leave(*self._tips.popitem(last=False))

    def _leave(self, name: str, block_hash: int) -> None:
        self._sessions_at[block_hash].discard(name)
        if not self._sessions_at[block_hash]:
            del self._sessions_at[block_hash]

    def _reach(self, block_hash: int) -> None:
        """It is known from its prefix's first block on, and so is what is known behind it."""
        for each in self._subtree(block_hash):
            block = self._blocks[each]
            self._reachable[each] = 1 if isinstance(block.parent, tuple) else self._reachable[block.parent] + 1
            self._num_by_tier.update(block.tiers)

    def _cut_off(self, block_hash: int) -> None:
        """It is about to go, and what is behind it cannot be reached any more."""
        for each in self._subtree(block_hash):
            del self._reachable[each]
            self._num_by_tier.subtract(self._blocks[each].tiers)

    def _subtree(self, *first: Parent) -> list[int]:
        """The known blocks among these and behind them, parents first."""
        found: list[int] = []
        queue = list(first)
        while queue:
            at = queue.pop()
            if isinstance(at, int):
                found.append(at)
            queue.extend(child for run in self._children.get(at, {}).values() for child in run)
        return found

    def _found_from_the_first(self) -> set[int]:
        return set(self._subtree(*(parent for parent in self._children if isinstance(parent, tuple))))
