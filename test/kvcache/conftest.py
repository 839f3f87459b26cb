"""Small caches for the tests of this folder."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from small_cache import Cache


@pytest.fixture
def open_cache(tmp_path: Path) -> Iterator[Callable[..., Cache]]:
    """Opens caches over one directory; closes what the test leaves open."""
    opened: list[Cache] = []

    def make(dram_blocks: int = 32, disk_bytes: int = 1 << 22, **settings: Any) -> Cache:
        opened.append(Cache(dram_blocks, tmp_path / 'kv', disk_bytes, **settings))
        return opened[-1]

    yield make
    for cache in opened:
        cache.close()


@pytest.fixture
def cache(open_cache: Callable[..., Cache]) -> Cache:
    """32 blocks of DRAM, plenty of disk."""
    return open_cache()
