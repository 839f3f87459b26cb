"""Seeded faults of the simulated home: injected ones by count, random ones by rate, the same for the same seed.

Each kind and robot has its own stream of random numbers, so one robot's steps do not change another's luck.
"""

from collections import Counter
from collections.abc import Mapping
from enum import Enum
import zlib

import numpy as np

from kv_agent_ros.errors import BadRequestError

ANY_TARGET = '*'


class FaultKind(Enum):
    """What can go wrong."""

    SLIP = 'slip'
    """A pick or place fails at the end; target: the object."""
    BLOCKED_PATH = 'blocked_path'
    """Something stands in a doorway for one step; target: the door or its hallway."""
    MISSED_DETECTION = 'missed_detection'
    """A robot does not see an object from one find or inspect until its next step; target: the object."""


class Faults:
    """Says when a fault strikes; not thread-safe."""

    def __init__(self, rates: Mapping[FaultKind, float], seed: int) -> None:
        for kind, rate in rates.items():
            if not 0.0 <= rate <= 1.0:
                raise BadRequestError(f'rate of {kind.value}: expected 0..1, got {rate}')
        self._rates = dict(rates)
        self._seed = seed
        self._injected: Counter[tuple[FaultKind, str]] = Counter()
        self._streams: dict[tuple[FaultKind, str], np.random.Generator] = {}

    def inject(self, kind: FaultKind, target: str, count: int) -> None:
        """Let the next `count` occasions of that target (or of ANY_TARGET) fail. Raises BadRequestError."""
        if isinstance(count, bool) or count < 1:
            raise BadRequestError(f'count: expected at least 1, got {count!r}')
        self._injected[kind, target] += count

    def clear(self) -> None:
        """Forget what was injected and has not struck yet; rates stay."""
        self._injected.clear()

    def strikes(self, kind: FaultKind, robot_id: str, *targets: str) -> bool:
        """Whether the fault happens on this occasion; `targets` are the names under which it may be injected."""
        by_chance = bool(self._stream(kind, robot_id).random() < self._rates.get(kind, 0.0))
        for target in (*targets, ANY_TARGET):
            if self._injected[kind, target] > 0:
                self._injected[kind, target] -= 1
                return True
        return by_chance

    def _stream(self, kind: FaultKind, robot_id: str) -> np.random.Generator:
        key = (kind, robot_id)
        if key not in self._streams:
            words = [zlib.crc32(word.encode()) for word in (kind.value, robot_id)]
            self._streams[key] = np.random.default_rng([self._seed, *words])
        return self._streams[key]
