"""Shared memory between processes: exact bytes, own names only, nothing left behind."""

import fcntl
import os
from pathlib import Path
import signal
import subprocess
import sys

from hypothesis import given
from hypothesis import strategies as st
import numpy as np
import pytest

from kv_agent_ros.errors import ConfigError, StoreError
from kv_agent_ros.kvcache.block import BlockSlot
from kv_agent_ros.kvcache.storage.host import SharedArena
from kv_agent_ros.kvcache.storage.segment import Segment, SegmentMap, remove_dead_segments

ENVIRONMENT = {**os.environ, 'PYTHONPATH': os.pathsep.join(sys.path)}
READER = """
import sys
from kv_agent_ros.kvcache.storage.segment import SegmentMap
view = SegmentMap().view(sys.argv[1])
sys.stdout.buffer.write(view[64:96].tobytes())
view[96:128] = 7
"""
OWNER = """
import sys, time
from pathlib import Path
from kv_agent_ros.kvcache.storage.segment import Segment
segment = Segment.create(4096, [Path(sys.argv[1])])
print(segment.name, flush=True)
sys.stdin.read()
"""


def slot(segment: str, offset_bytes: int, length_bytes: int) -> BlockSlot:
    return BlockSlot(
        block_key=bytes(32), segment=segment, offset_bytes=offset_bytes, length_bytes=length_bytes, checksum=b''
    )


def test_another_process_reads_and_writes_the_exact_bytes() -> None:
    segment = Segment.create(4096)
    segment.memory[64:96] = np.arange(32, dtype=np.uint8)
    result = subprocess.run(
        [sys.executable, '-c', READER, segment.name], env=ENVIRONMENT, capture_output=True, timeout=60, check=True
    )
    assert result.stdout == bytes(range(32))
    assert segment.memory[96:128].tolist() == [7] * 32
    segment.close()


def test_name_carries_the_pid_and_goes_with_close(tmp_path: Path) -> None:
    segment = Segment.create(4096, [tmp_path])
    assert segment.name.startswith(f'kv_agent_ros.{os.getpid()}.')
    segment.close()
    segment.close()
    assert list(tmp_path.iterdir()) == []


def test_segment_of_a_killed_owner_is_removed_and_that_of_a_living_one_is_not(tmp_path: Path) -> None:
    owner = subprocess.Popen(
        [sys.executable, '-c', OWNER, str(tmp_path)], env=ENVIRONMENT, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert owner.stdout is not None
    name = owner.stdout.readline().decode().strip()
    assert remove_dead_segments(tmp_path) == 0
    owner.send_signal(signal.SIGKILL)
    owner.communicate(timeout=30)
    assert (tmp_path / name).exists()
    assert remove_dead_segments(tmp_path) == 1
    assert list(tmp_path.iterdir()) == []


def test_locked_segment_of_an_unknown_pid_and_foreign_files_are_kept(tmp_path: Path) -> None:
    other_namespace = tmp_path / 'kv_agent_ros.4194399.0123456789abcdef'
    other_namespace.write_bytes(bytes(64))
    foreign = tmp_path / 'kv_agent_ros.notes'
    foreign.write_text('mine')
    with open(other_namespace, 'rb') as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        assert remove_dead_segments(tmp_path) == 0
    assert other_namespace.exists()
    assert foreign.exists()


def test_next_directory_is_used_when_the_first_cannot_hold_it(tmp_path: Path) -> None:
    segment = Segment.create(4096, [tmp_path / 'missing', tmp_path])
    assert (tmp_path / segment.name).exists()
    segment.close()


def test_too_large_a_budget_is_an_error_that_says_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match='lower the DRAM budget'):
        Segment.create(1 << 60, [tmp_path])
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    'name', ['../etc/passwd', '/etc/passwd', 'kv_agent_ros.1.xyz', '', 'kv_agent_ros.1.' + 'a' * 17]
)
def test_names_that_are_not_ours_are_refused(name: str) -> None:
    with pytest.raises(StoreError, match='expected a name like'):
        SegmentMap().view(name)


def test_symbolic_links_are_refused(tmp_path: Path) -> None:
    (tmp_path / 'secret').write_bytes(bytes(64))
    (tmp_path / 'kv_agent_ros.1.0123456789abcdef').symlink_to(tmp_path / 'secret')
    with pytest.raises(StoreError, match='cannot open'):
        SegmentMap([tmp_path]).view('kv_agent_ros.1.0123456789abcdef')


def test_segment_that_is_gone_is_an_error_that_says_so(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match='its owner has ended'):
        SegmentMap([tmp_path]).view('kv_agent_ros.1.0123456789abcdef')


@pytest.mark.parametrize(('offset_bytes', 'length_bytes'), [(-1, 8), (4090, 8), (0, 0), (0, 4097), (1 << 40, 8)])
def test_slots_outside_their_segment_are_refused(tmp_path: Path, offset_bytes: int, length_bytes: int) -> None:
    segment = Segment.create(4096, [tmp_path])
    with pytest.raises(StoreError, match='expected within 0'):
        SegmentMap([tmp_path]).slot(slot(segment.name, offset_bytes, length_bytes))
    segment.close()


def test_mapping_of_an_owner_that_restarted_is_dropped(tmp_path: Path) -> None:
    segments = SegmentMap([tmp_path])
    first = Segment.create(4096, [tmp_path])
    segments.view(first.name)
    first.close()
    second = Segment.create(4096, [tmp_path])
    segments.view(second.name)
    assert list(segments._views) == [second.name]
    second.close()


@given(st.lists(st.tuples(st.booleans(), st.integers(1, 2000)), max_size=60))
def test_arena_neither_overlaps_nor_loses_a_byte(steps: list[tuple[bool, int]]) -> None:
    arena = SharedArena.create(8192)
    held: list[int] = []
    for is_allocation, number in steps:
        if is_allocation:
            offset = arena.allocate(number)
            held += [] if offset is None else [offset]
        elif held:
            arena.free(held.pop(number % len(held)))
        arena.check_integrity()
        arena.check_allocated(held)
    for offset in held:
        arena.free(offset)
    assert arena.used_bytes == 0
    assert arena.allocate(8192) == 0
    arena.close()


def test_free_of_what_is_not_allocated_is_refused() -> None:
    arena = SharedArena.create(4096)
    with pytest.raises(StoreError, match='expected an allocated offset'):
        arena.free(0)
    arena.close()
