"""What outlives the process, and what must not."""

from collections.abc import Callable
import os
from pathlib import Path
import signal
import subprocess
import sys

import numpy as np
import pytest
from small_cache import NAMESPACE, ROBOT_1, Cache

from kv_agent_ros.kvcache.block import Tier, block_keys

HEAD = list(range(16))
OTHER = list(range(100, 116))

WRITER = """
from pathlib import Path
import sys
from small_cache import Cache
cache = Cache(64, Path(sys.argv[1]), 1 << 24)
number = 0
while True:
    cache.write([*range(16), *range(100 + number * 8, 108 + number * 8)])
    number += 1
    if number == 10:
        cache.flush()
    if number == 60:
        print('busy', flush=True)
"""


def block_file(cache: Cache, directory: Path, number: int) -> Path:
    return directory / 'kv' / f'{block_keys(NAMESPACE, HEAD)[number].hex()}.kv'


def test_clean_restart_finds_everything(open_cache: Callable[..., Cache]) -> None:
    first = open_cache()
    first.write(HEAD)
    first.close()
    second = open_cache()
    lease = second.manager.acquire(NAMESPACE, ROBOT_1, np.array([*HEAD, 99], np.int32))
    assert [slot.tier for slot in lease.slots] == [Tier.SSD] * 4
    assert second.read([*HEAD, 99]) == 16


def test_killed_writer_leaves_an_index_that_is_found_and_nothing_wrong(
    tmp_path: Path, open_cache: Callable[..., Cache]
) -> None:
    writer = subprocess.Popen(
        [sys.executable, '-c', WRITER, str(tmp_path / 'kv')],
        stdout=subprocess.PIPE,
        env={**os.environ, 'PYTHONPATH': os.pathsep.join(sys.path)},
    )
    assert writer.stdout is not None
    assert writer.stdout.readline() == b'busy\n'
    writer.send_signal(signal.SIGKILL)
    writer.wait(30)
    cache = open_cache()
    assert cache.disk.usage().num_corrupt == 0
    assert not list((tmp_path / 'kv').glob('*.tmp'))
    assert not list(Path('/dev/shm').glob(f'kv_agent_ros.{writer.pid}.*'))
    matched = [cache.read([*HEAD, *range(100 + n * 8, 108 + n * 8), 0]) for n in range(80)]
    assert matched[:10] == [24] * 10
    assert set(matched) <= {16, 20, 24}
    cache.manager.check_integrity()


def test_flipped_bit_on_disk_is_a_miss_and_is_set_aside(tmp_path: Path, open_cache: Callable[..., Cache]) -> None:
    cache = open_cache()
    cache.write(HEAD)
    cache.flush()
    cache.drop_dram()
    path = block_file(cache, tmp_path, 2)
    raw = bytearray(path.read_bytes())
    raw[-1] ^= 1
    path.write_bytes(raw)
    assert cache.read([*HEAD, 99]) == 8
    assert path.with_suffix('.bad').exists()
    stats = cache.manager.stats()
    assert (stats.num_checksum_failures, stats.tiers[1].num_blocks) == (1, 2)
    assert cache.write(HEAD) == 2
    cache.flush()
    cache.drop_dram()
    assert cache.read([*HEAD, 99]) == 16
    cache.manager.check_integrity()


def test_torn_and_headless_files_are_a_miss_after_a_restart(tmp_path: Path, open_cache: Callable[..., Cache]) -> None:
    first = open_cache()
    first.write(HEAD)
    first.close()
    torn, headless = block_file(first, tmp_path, 3), block_file(first, tmp_path, 2)
    torn.write_bytes(torn.read_bytes()[:-5])
    headless.write_bytes(b'')
    second = open_cache()
    assert second.read([*HEAD, 99]) == 8
    assert second.manager.stats().num_checksum_failures == 2


def test_suffix_without_its_head_is_no_hit_and_its_room_is_free(
    tmp_path: Path, open_cache: Callable[..., Cache]
) -> None:
    first = open_cache()
    first.write(HEAD)
    first.close()
    block_file(first, tmp_path, 0).unlink()
    second = open_cache()
    assert second.read([*HEAD, 99]) == 0
    assert second.disk.usage().used_bytes == 0


@pytest.mark.parametrize(('read_last', 'read_first'), [(HEAD, OTHER), (OTHER, HEAD)])
def test_restart_keeps_the_order_of_use(
    open_cache: Callable[..., Cache], tmp_path: Path, read_last: list[int], read_first: list[int]
) -> None:
    first = open_cache(disk_bytes=8 * 4096)
    for tokens in (HEAD, OTHER):
        first.write(tokens)
    first.flush()
    first.drop_dram()
    for path in (tmp_path / 'kv').glob('*.kv'):
        os.utime(path, (1e9, 1e9))
    for tokens in (read_first, read_last):
        assert first.read([*tokens, 99]) == 16
    first.close()
    second = open_cache(disk_bytes=8 * 4096)
    second.write(list(range(200, 208)))
    second.flush()
    second.drop_dram()
    assert second.read([*read_last, 99]) == 16
    assert second.read([*read_first, 99]) == 8


def test_smaller_budget_after_a_restart_is_kept(open_cache: Callable[..., Cache]) -> None:
    first = open_cache(disk_bytes=8 * 4096)
    first.write(list(range(32)))
    first.close()
    second = open_cache(disk_bytes=3 * 4096)
    assert second.disk.usage().used_bytes == 3 * 4096
    assert second.read([*range(32), 99]) == 12


def test_disk_cap_holds_over_physical_bytes_while_everything_is_written(
    tmp_path: Path, open_cache: Callable[..., Cache]
) -> None:
    cache = open_cache(disk_bytes=10 * 4096)
    for start in range(0, 400, 8):
        cache.write(list(range(start, start + 8)))
        cache.flush()
        physical_bytes = sum(-(-path.stat().st_size // 4096) * 4096 for path in (tmp_path / 'kv').glob('*.[ktb]*'))
        assert physical_bytes <= 10 * 4096
    assert cache.disk.usage().used_bytes == 10 * 4096
    cache.manager.check_integrity()
