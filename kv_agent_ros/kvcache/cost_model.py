"""Whether bringing blocks up from a slower tier is faster than computing them again.

Both sides are measured: what a tier takes for how many bytes (a line: latency and bandwidth, decoding included), and
what an engine takes for a token. A side that is not known yet never stands in the way of a load.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
import time

import numpy as np

from kv_agent_ros.kvcache.block import Tier

_DECAY = 0.8  # weight of what was known before, at each measurement
_PROBE_BLOCKS = 4


@dataclass(kw_only=True, slots=True)
class LoadLine:
    """Least squares of seconds over bytes, the latest measurements weighing most."""

    measured_s: float = 0.0  # time of the last measurement
    weight: float = 0.0
    size: float = 0.0  # weighted means from here on
    seconds: float = 0.0
    size_square: float = 0.0
    product: float = 0.0

    def add(self, num_bytes: int, seconds: float, at_s: float) -> None:
        """One measured load. One that no line through the mean allows, by far, says that the tier has become faster."""
        if 4.0 * seconds < self.seconds * min(1.0, num_bytes / max(1.0, self.size)):
            self.weight = 0.0
        self.weight = self.weight * _DECAY + 1.0
        share = 1.0 / self.weight
        self.size += share * (num_bytes - self.size)
        self.seconds += share * (seconds - self.seconds)
        self.size_square += share * (num_bytes**2 - self.size_square)
        self.product += share * (num_bytes * seconds - self.product)
        self.measured_s = at_s

    @property
    def s_per_byte(self) -> float:
        variance = self.size_square - self.size**2
        mean = self.seconds / max(1.0, self.size)
        if variance < 0.01 * self.size**2:  # all alike: no latency can be told from the bandwidth
            return mean
        slope = (self.product - self.size * self.seconds) / variance
        return min(max(slope, 0.0), mean)

    @property
    def latency_s(self) -> float:
        return max(0.0, self.seconds - self.s_per_byte * self.size)


class CostModel:
    """Measured speeds of engines and tiers. Not thread-safe: its owner guards it.

    `prefill_tokens_per_s` is what is believed of an engine before it was measured; 0 is unknown.
    """

    def __init__(
        self,
        *,
        prefill_tokens_per_s: float = 0.0,
        probe_period_s: float = 30.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._first_guess = prefill_tokens_per_s
        self._probe_period_s = probe_period_s
        self._clock = clock
        self._prefill: dict[bytes, float] = {}  # namespace digest -> tokens a second
        self._loads: dict[Tier, LoadLine] = {}

    def note_turn(self, root: bytes, num_tokens: int, seconds: float) -> None:
        """An engine computed so many tokens within this time, and perhaps did other things too.

        Therefore the speed is at least that: the estimate follows it up at once, and down slowly.
        """
        if num_tokens > 0 and seconds > 0.0:
            speed = num_tokens / seconds
            known = self._prefill.get(root, speed)
            self._prefill[root] = max(speed, _DECAY * known + (1.0 - _DECAY) * speed)

    def note_load(self, tier: Tier, num_bytes: int, seconds: float) -> None:
        """A tier brought so many stored bytes up within this time."""
        if num_bytes > 0 and seconds > 0.0:
            self._loads.setdefault(tier, LoadLine()).add(num_bytes, seconds, self._clock())

    def compute_s(self, root: bytes, num_tokens: int) -> float:
        """How long the engine takes for so many tokens; 0 while that is unknown."""
        speed = self._prefill.get(root, self._first_guess)
        return num_tokens / speed if speed > 0.0 else 0.0

    def num_worth_loading(self, root: bytes, tier: Tier, sizes: Sequence[int], block_tokens: int) -> int:
        """How many of the next blocks, `sizes` stored bytes each, to load before the engine computes the rest.

        After `probe_period_s` without a measurement a few are loaded in any case, so that a tier that has become
        faster is found out.
        """
        line = self._loads.get(tier)
        block_s = self.compute_s(root, block_tokens)
        if line is None or block_s == 0.0 or not sizes:
            return len(sizes)
        gains = np.cumsum(block_s - np.asarray(sizes) * line.s_per_byte) - line.latency_s
        best = int(gains.argmax())
        if gains[best] > 0.0:
            return best + 1
        is_stale = self._clock() - line.measured_s >= self._probe_period_s
        return min(_PROBE_BLOCKS, len(sizes)) if is_stale else 0
