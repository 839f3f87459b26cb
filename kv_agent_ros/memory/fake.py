"""A public fake embedder: deterministic, instant, no model. It compares spelling, not meaning."""

from collections.abc import Iterator, Sequence
import unicodedata
import zlib

import numpy as np
import numpy.typing as npt

NUM_CHARS = (1, 2, 3)  # lengths of the character n-grams


class HashingEmbedder:
    """Character n-grams hashed into `dimension` signed buckets."""

    def __init__(self, dimension: int = 256) -> None:
        self._dimension = dimension

    @property
    def name(self) -> str:
        return f'hashing-{self._dimension}'

    def embed(self, texts: Sequence[str]) -> npt.NDArray[np.float32]:
        """(num_texts, dimension), each row of length 1."""
        rows = np.zeros((len(texts), self._dimension), dtype=np.float32)
        for row, text in zip(rows, texts, strict=True):
            for gram in _grams(unicodedata.normalize('NFKC', text).casefold()):
                code = zlib.crc32(gram.encode('utf-8', 'replace'))
                row[code % self._dimension] += 1.0 if code & 0x8000_0000 else -1.0
            row[0] += 1e-3  # no text at all still has a direction
            row /= np.linalg.norm(row)
        return rows


def _grams(text: str) -> Iterator[str]:
    for length in NUM_CHARS:
        for start in range(len(text) - length + 1):
            yield text[start : start + length]
