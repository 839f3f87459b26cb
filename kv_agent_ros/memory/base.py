"""What the robots remember: tasks, scenes and reusable sub-plans, found again by meaning in Chinese or English."""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Protocol

import numpy as np
import numpy.typing as npt

SHARED = ''  # the scope that every robot reads


class MemoryKind(Enum):
    """What a record is about."""

    TASK = 'task'
    """A whole task: instruction, plan, outcome."""
    SCENE = 'scene'
    """What was where."""
    SUBPLAN = 'subplan'
    """A piece of plan that worked."""


@dataclass(frozen=True, kw_only=True, slots=True)
class MemoryRecord:
    """One memory. `text` is what is searched; `payload` (JSON) is what is used. Both are untrusted when recalled."""

    record_id: str
    kind: MemoryKind
    robot_id: str  # SHARED = for all robots
    text: str
    payload: str = ''
    stamp_s: float = 0.0
    is_success: bool = True


@dataclass(frozen=True, kw_only=True, slots=True)
class Recollection:
    """A record found again; `similarity` is the cosine, -1..1."""

    record: MemoryRecord
    similarity: float


class Embedder(Protocol):
    """Text → unit vectors in one space for all languages it knows."""

    @property
    def name(self) -> str:
        """Identifies the space; vectors of different names are not comparable."""
        ...

    def embed(self, texts: Sequence[str]) -> npt.NDArray[np.float32]:
        """(num_texts, dimension), each row of length 1."""
        ...


class Memory(Protocol):
    """A store of records. Thread-safe."""

    def remember(self, record: MemoryRecord) -> None:
        """Keep it; the same record_id replaces. Raises StoreError."""
        ...

    def recall(self, text: str, robot_id: str, kind: MemoryKind, limit: int) -> tuple[Recollection, ...]:
        """The nearest records of that kind that this robot may read (its own and SHARED), best first."""
        ...

    def forget(self, record_id: str) -> bool:
        """Delete one record; False when there was none."""
        ...

    def count(self) -> int:
        """How many records there are."""
        ...
