"""Writers killed at random moments: nothing wrong is served, nothing crashes, no cap is exceeded, all books are right.

The heavy run: pytest -m slow test/kvcache/test_faults.py
"""

import json
import os
from pathlib import Path
import subprocess
import sys

import pytest

PROGRAM = Path(__file__).parent / 'killed_writers.py'


def kill_writers(kind: str, directory: Path, num_kills: int, timeout_s: float) -> dict[str, int]:
    ended = subprocess.run(
        [sys.executable, str(PROGRAM), kind, str(directory / 'store'), str(num_kills), '1'],
        stdout=subprocess.PIPE,
        env={**os.environ, 'PYTHONPATH': os.pathsep.join(sys.path)},
        timeout=timeout_s,
        check=True,
    )
    counts: dict[str, int] = json.loads(ended.stdout)
    return counts


def assert_unharmed(counts: dict[str, int], num_kills: int) -> None:
    assert counts.pop('num_served') > num_kills  # the writers did write
    assert set(counts.values()) == {0}, counts


@pytest.mark.parametrize('kind', ['disk', 'remote'])
def test_twenty_killed_writers_do_no_harm(tmp_path: Path, kind: str) -> None:
    assert_unharmed(kill_writers(kind, tmp_path, 20, 120.0), 20)


@pytest.mark.slow
@pytest.mark.parametrize('kind', ['disk', 'remote'])
def test_thousand_killed_writers_do_no_harm(tmp_path: Path, kind: str) -> None:
    assert_unharmed(kill_writers(kind, tmp_path, 1000, 1800.0), 1000)
