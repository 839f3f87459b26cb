"""The default eviction policy: blocks that promise the fewest hits for the time they would still stay go first.

For blocks used so and so often it learns, while the cache works, how the chance of another use depends on the age: a
life table, with evicted blocks that ghosts remember counted in. A block is worth its hit density, the best ratio of
expected hits to expected ticks over all times it could be kept for: the index of Gittins (1979), as in LHD (NSDI '18).
Before anything is learnt the order is that of LRU with ages divided by the number of uses. The constants were chosen
on Mooncake's conversation trace, two of LMCache's agent traces and generated workloads; others may want others.
"""

from bisect import bisect_right

import numpy as np
import numpy.typing as npt

from kv_agent_ros.kvcache.eviction import BlockUse, PastUse, Rank

Group = tuple[int, int]  # whether a path ended with it, number of uses as an index into _COUNTS
Floats = npt.NDArray[np.float64]

_AGES = (1, *(step << power for power in range(15) for step in (2, 3)))  # ticks; two per octave: 1, 2, 3, 4, 6 …
_COUNTS = (1, *(step << power for power in range(6) for step in (2, 3)))  # of uses
_REFRESH_TICKS = 64
_DECAY = 0.5 ** (_REFRESH_TICKS / 16384)  # what was seen 16,384 ticks ago counts half
_PRIOR_CHANCE = 0.05  # of another use before a block is half as old again, at any age: density falls as 1/age
_PRIOR_BLOCKS = 50.0  # seen blocks that weigh as much as what is expected before: from the age before, from fewer uses
_LEVELS_PER_OCTAVE = 4.0  # densities that differ by less are alike: then recency decides

_MAX_AGE = _AGES[-1]
_EDGES = np.array(_AGES)
_WIDTHS = np.diff(_AGES, append=2 * _MAX_AGE)


class HitDensityPolicy:
    """Lowest hit density first, least recently used first among the like. Must observe the tree that it ranks for."""

    def __init__(self) -> None:
        shape = (len(_AGES), 2, len(_COUNTS))  # by: age, path ended with it, number of uses
        self._hits = np.zeros(shape)  # blocks used again at this age
        self._at_risk = np.zeros(shape)  # blocks that reached this age unused
        self._waiting = np.zeros((_MAX_AGE + 1, *shape[1:]), np.float32)  # not used again, by tick of their last use
        self._now = self._refreshed = 0
        self._levels = _levels(self._hits, self._at_risk)

    def rank(self, use: BlockUse) -> Rank:
        is_end, count = _group(use.num_uses, use.is_end)
        return (self._levels[_age(use.now - use.last_used)][is_end][count], use.last_used)

    def used(self, before: PastUse, after: PastUse, num_blocks: int) -> None:
        """See UseObserver."""
        self._advance(after.last_used)
        age = self._now - before.last_used
        if before.num_uses and age <= _MAX_AGE:
            is_hit = after.num_uses > before.num_uses
            for group, number in _groups(before, num_blocks):
                self._waiting[(before.last_used % len(self._waiting), *group)] -= number
                if is_hit:
                    self._hits[(_age(age), *group)] += number
        for group, number in _groups(after, num_blocks):
            self._waiting[(self._now % len(self._waiting), *group)] += number

    def _advance(self, now: int) -> None:
        """Count what has reached another age by now as at risk; learn from it every so often."""
        for tick in range(self._now + 1, now + 1):
            self._at_risk += self._waiting[(tick - _EDGES) % len(self._waiting)]
            self._waiting[(tick - _MAX_AGE) % len(self._waiting)] = 0
        self._now = now
        if now - self._refreshed >= _REFRESH_TICKS:
            self._refreshed = now
            self._levels = _levels(self._hits, self._at_risk)
            self._hits *= _DECAY
            self._at_risk *= _DECAY


def _group(num_uses: int, is_end: bool) -> Group:
    return int(is_end), bisect_right(_COUNTS, num_uses) - 1


def _groups(past: PastUse, num_blocks: int) -> tuple[tuple[Group, int], ...]:
    """Groups of so many blocks in a row, the last of which may be the end of a path."""
    inner = (_group(past.num_uses, False), num_blocks - past.is_end)
    return (inner, (_group(past.num_uses, True), 1)) if past.is_end else (inner,)


def _age(ticks: int) -> int:
    """Index of the last of _AGES that is not above `ticks`."""
    return max(0, bisect_right(_AGES, ticks) - 1)


def _levels(hits: Floats, at_risk: Floats) -> list[list[list[int]]]:
    """Hit density on a logarithmic scale by age, path end and number of uses."""
    chance = np.empty_like(hits)
    known = np.repeat(_overall(hits.sum((1, 2)), at_risk.sum((1, 2)))[:, None], 2, axis=1)
    for index, count in enumerate(_COUNTS):
        more_uses = count / _COUNTS[max(0, index - 1)]
        expected = 1 - (1 - np.minimum(known, 1)) ** more_uses
        known = (hits[..., index] + _PRIOR_BLOCKS * expected) / (at_risk[..., index] + _PRIOR_BLOCKS)
        chance[..., index] = known
    density = _best_density(np.clip(chance, 1e-9, 0.999))
    levels: list[list[list[int]]] = np.floor(_LEVELS_PER_OCTAVE * np.log2(density)).astype(int).tolist()
    return levels


def _overall(hits: Floats, at_risk: Floats) -> Floats:
    """Chance by age over all groups; where nothing is known about an age, that of the age before, as in LRU."""
    chances: list[float] = []
    known = _PRIOR_CHANCE
    for num_hits, num_at_risk in zip(hits, at_risk, strict=True):
        known = (num_hits + _PRIOR_BLOCKS * known) / (num_at_risk + _PRIOR_BLOCKS)
        chances.append(known)
    return np.array(chances)


def _best_density(chance: Floats) -> Floats:
    """Most hits per tick that a block of an age can bring in the time until any later age; chances by (age, …)."""
    best = np.empty_like(chance)
    for start, _ in enumerate(_AGES):
        left = np.cumprod(1 - chance[start:], axis=0)
        before = left / (1 - chance[start:])
        ticks = np.cumsum((before + left) / 2 * _WIDTHS[start:, None, None], axis=0)
        best[start] = ((1 - left) / ticks).max(axis=0)
    return best
