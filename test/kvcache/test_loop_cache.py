"""What numba has compiled is found again; what a loss of power has left of it is made anew."""

from collections.abc import Callable
import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

pytest.importorskip('numba')

SOURCE = """
from kv_agent_ros.kvcache.loop_cache import compiled

@compiled
def doubled(value):
    return 2 * value
"""


@pytest.fixture
def start(tmp_path: Path) -> Callable[[], ModuleType]:
    """Loads the loop as a process does that has just begun."""
    path = tmp_path / 'loops.py'
    path.write_text(SOURCE)

    def load() -> ModuleType:
        spec = importlib.util.spec_from_file_location('loops_of_a_test', path)
        assert spec is not None and spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        return module

    return load


def num_found(module: ModuleType) -> int:
    return sum(module.doubled.stats.cache_hits.values())


def files(folder: Path, suffix: str) -> list[Path]:
    found = sorted((folder / '__pycache__').glob(f'*.{suffix}'))
    assert found
    return found


def test_later_process_finds_what_was_compiled(start: Callable[[], ModuleType]) -> None:
    assert start().doubled(2) == 4
    later = start()
    assert (later.doubled(3), num_found(later)) == (6, 1)


@pytest.mark.parametrize('suffix', ['nbi', 'nbc'])
@pytest.mark.parametrize('rest', [b'', b'\x80\x05', bytes(100), b'text', b'\x80\x05]q\x00.'])
def test_damaged_file_costs_one_compilation(
    start: Callable[[], ModuleType], tmp_path: Path, suffix: str, rest: bytes
) -> None:
    assert start().doubled(2) == 4
    for path in files(tmp_path, suffix):
        path.write_bytes(rest)
    assert start().doubled(3) == 6
    later = start()
    assert (later.doubled(4), num_found(later)) == (8, 1)


def test_disk_that_takes_nothing_costs_a_compilation_each_time(start: Callable[[], ModuleType], tmp_path: Path) -> None:
    assert start().doubled(2) == 4
    for path in files(tmp_path, 'nbi'):
        path.unlink()
        path.mkdir()
    for number in (3, 4):
        again = start()
        assert (again.doubled(number), num_found(again)) == (2 * number, 0)
