"""Compiles loops by numba, for later processes too; a damaged or full disk costs compilation, and never the loop.

numba keeps what it has compiled in files that it does not sync: a loss of power leaves empty or torn ones behind, which
it cannot read, at no later start either. Here they are dropped and made anew. Importing this needs numba.
"""

from collections.abc import Callable
import contextlib
import pickle
from typing import Any, TypeVar  # Any: numba's compiled functions carry no types

import numba

Loop = TypeVar('Loop', bound=Callable[..., Any])

FAULTS = (  # of a disk, and of what may be read where a pickle should be
    OSError,
    EOFError,
    pickle.PickleError,
    ArithmeticError,
    AttributeError,
    ImportError,
    LookupError,
    TypeError,
    ValueError,
)


class ForgivingCache:
    """Numba's cache of one loop, in which what cannot be read is not there, and what cannot be written is left out."""

    def __init__(self, cache: Any) -> None:
        self._cache = cache

    @property
    def cache_path(self) -> Any:
        return self._cache.cache_path

    def load_overload(self, signature: Any, target: Any) -> Any:
        """What was compiled for these types, or None."""
        try:
            return self._cache.load_overload(signature, target)
        except FAULTS:
            self.flush()  # else nothing could be added either
            return None

    def save_overload(self, signature: Any, compiled_loop: Any) -> None:
        """Keep it for later processes."""
        with contextlib.suppress(*FAULTS):
            self._cache.save_overload(signature, compiled_loop)

    def flush(self) -> None:
        """Forget what is there."""
        with contextlib.suppress(*FAULTS):
            self._cache.flush()

    def enable(self) -> None:
        """Use the files."""
        self._cache.enable()

    def disable(self) -> None:
        """Do without files."""
        self._cache.disable()


def compiled(loop: Loop) -> Any:
    """The loop, compiled at its first call; where no folder for it can be written, every process compiles."""
    try:
        made: Any = numba.njit(cache=True, nogil=True, error_model='numpy')(loop)
    except RuntimeError:
        return numba.njit(nogil=True, error_model='numpy')(loop)
    made._cache = ForgivingCache(made._cache)
    return made
