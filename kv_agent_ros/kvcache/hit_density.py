"""The default eviction policy: blocks that promise the fewest hits for the time they would still stay go first.

For blocks used so and so often it learns, while the cache works, how the chance of another use depends on the age: a
life table, with evicted blocks that ghosts remember counted in. A block is worth its hit density, the best ratio of
expected hits to expected ticks over all times it could be kept for. That is the index of Gittins (1979), estimated as
in LHD (NSDI '18). Nothing is set to fit a workload; before anything is learnt the order is that of LRU.
"""

from collections import Counter

import numpy as np
import numpy.typing as npt

from kv_agent_ros.kvcache.eviction import BlockUse, PastUse, Rank

Group = tuple[int, int]  # whether a path ended with it, number of uses on a logarithmic scale
Floats = npt.NDArray[np.float64]

_NOBODY: Counter[Group] = Counter()
_EDGES = (1, *(step << power for power in range(15) for step in (2, 3)))  # ticks; two per octave: 1, 2, 3, 4, 6 …
_NUM_AGES = len(_EDGES)
_NUM_COUNTS = 12  # of uses, two per octave
_REFRESH_TICKS = 64
_DECAY = 0.5 ** (_REFRESH_TICKS / 16384)  # what was seen 16,384 ticks ago counts half
_PRIOR_CHANCE = 0.05  # of another use before a block is half as old again, at any age: density falls as 1/age
_PRIOR_BLOCKS = 50.0  # seen blocks that weigh as much as the prior, and as what was learnt for fewer uses
_LEVELS_PER_OCTAVE = 4.0  # densities that differ by less are alike: then recency decides


class HitDensityPolicy:
    """Lowest hit density first, least recently used first among the like. Must observe the tree that it ranks for."""

    def __init__(self) -> None:
        shape = (2, _NUM_COUNTS, _NUM_AGES)  # by: path ended with it, number of uses, age
        self._hits = np.zeros(shape)  # blocks used again at this age
        self._at_risk = np.zeros(shape)  # blocks that reached this age unused
        self._waiting: dict[int, Counter[Group]] = {}  # blocks not used again, by tick of their last use
        self._num_ripe = [0] * _NUM_AGES  # ticks whose blocks have been counted as at risk
        self._now = self._refreshed = 0
        self._levels = _levels(self._hits, self._at_risk)

    def rank(self, use: BlockUse) -> Rank:
        is_end, count = _group(use.num_uses, use.is_end)
        return (self._levels[is_end][count][_age(use.now - use.last_used)], use.last_used)

    def used(self, before: PastUse, after: PastUse, num_blocks: int) -> None:
        """See UseObserver."""
        self._advance(after.last_used)
        if before.num_uses:
            is_hit = after.num_uses > before.num_uses
            for group, number in _groups(before, num_blocks):
                self._leave(before.last_used, group, number, is_hit)
        waiting = self._waiting.setdefault(after.last_used, Counter())
        for group, number in _groups(after, num_blocks):
            waiting[group] += number

    def _leave(self, last_used: int, group: Group, number: int, is_hit: bool) -> None:
        waiting = self._waiting.get(last_used)
        if waiting is None:
            return
        waiting[group] -= number
        if is_hit:
            self._hits[(*group, _age(self._now - last_used))] += number

    def _advance(self, now: int) -> None:
        """Count what has reached another age by now as at risk; learn from it every so often."""
        self._now = now
        for age, edge in enumerate(_EDGES):
            for last_used in range(self._num_ripe[age], now - edge + 1):
                for group, number in self._waiting.get(last_used, _NOBODY).items():
                    self._at_risk[(*group, age)] += number
                if edge == _EDGES[-1]:
                    self._waiting.pop(last_used, None)
            self._num_ripe[age] = max(self._num_ripe[age], now - edge + 1)
        if now - self._refreshed >= _REFRESH_TICKS:
            self._refreshed = now
            self._levels = _levels(self._hits, self._at_risk)
            self._hits *= _DECAY
            self._at_risk *= _DECAY


def _group(num_uses: int, is_end: bool) -> Group:
    octave = num_uses.bit_length() - 1
    return int(is_end), min(_NUM_COUNTS - 1, 2 * octave + (num_uses * num_uses >> (2 * octave) > 1))


def _groups(past: PastUse, num_blocks: int) -> tuple[tuple[Group, int], ...]:
    """Groups of so many blocks in a row, the last of which may be the end of a path."""
    inner = (_group(past.num_uses, False), num_blocks - past.is_end)
    return (inner, (_group(past.num_uses, True), 1)) if past.is_end else (inner,)


def _age(ticks: int) -> int:
    """Index of the last edge that is not above `ticks`."""
    octave = max(1, ticks).bit_length() - 1
    return min(_NUM_AGES - 1, max(0, 2 * octave - 1 + (2 * ticks >= 3 << octave)))


def _levels(hits: Floats, at_risk: Floats) -> list[list[list[int]]]:
    """Hit density on a logarithmic scale by path end, number of uses and age."""
    chance = np.empty_like(hits)
    prior = (hits.sum((0, 1)) + _PRIOR_BLOCKS * _PRIOR_CHANCE) / (at_risk.sum((0, 1)) + _PRIOR_BLOCKS)
    for is_end in range(hits.shape[0]):
        known = prior
        for count in range(hits.shape[1]):
            known = (hits[is_end, count] + _PRIOR_BLOCKS * known) / (at_risk[is_end, count] + _PRIOR_BLOCKS)
            chance[is_end, count] = known
    density = _best_density(np.clip(chance, 1e-9, 0.999))
    levels: list[list[list[int]]] = np.floor(_LEVELS_PER_OCTAVE * np.log2(density)).astype(int).tolist()
    return levels


def _best_density(chance: Floats) -> Floats:
    """Most hits per tick that a block of an age can bring in the time until any later age; chances by (…, age)."""
    left = np.cumprod(1 - chance, axis=-1)
    before = left / (1 - chance)
    hits = np.cumsum(before - left, axis=-1)
    ticks = np.cumsum((before + left) / 2 * np.diff(_EDGES, append=2 * _EDGES[-1]), axis=-1)
    start_hits, start_ticks = hits - (before - left), np.roll(ticks, 1, axis=-1)
    start_ticks[..., 0] = 0
    gained = hits[..., None, :] - start_hits[..., :, None]
    spent = ticks[..., None, :] - start_ticks[..., :, None]
    is_later = np.triu(np.ones((_NUM_AGES, _NUM_AGES), bool))
    densities: Floats = np.where(is_later, gained / np.where(is_later, spent, 1), 0)
    return np.asarray(densities.max(axis=-1))
