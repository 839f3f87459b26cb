"""Moving blocks in and out of every tier, against the same bytes moved with nothing else.

The peer and limit of files is one write() or read() of the same bytes to a file of its own, that of memory one memcpy;
ours adds checksum, header, claim and books. No side syncs; files are read from the page cache, except in the rows named
cold, whose files were synced and dropped from it. All contenders take turns block by block.
"""

import argparse
from collections import defaultdict
from collections.abc import Callable
import contextlib
from dataclasses import replace
import os
from pathlib import Path
import statistics
import sys
import tempfile
import time

from matplotlib.axes import Axes
import numpy as np
import torch

from benchmarks._reporting import Row, print_json, print_table, save_plot
from kv_agent_ros.kvcache.block import BlockLayout, block_key
from kv_agent_ros.kvcache.codec_policy import codec_for
from kv_agent_ros.kvcache.storage.base import BlockRecord, BlockStore, ByteArray, checksum
from kv_agent_ros.kvcache.storage.device import DeviceStore
from kv_agent_ros.kvcache.storage.disk import DiskStore
from kv_agent_ros.kvcache.storage.guarded import GuardedStore
from kv_agent_ros.kvcache.storage.host import HostStore, SharedArena
from kv_agent_ros.kvcache.storage.remote import RemoteStore

CLOCKS = {'cpu': time.process_time, 'wall': time.perf_counter}
WORKING_SET_BYTES = 32 << 20  # of each contender
MAX_BLOCKS = 48
NUM_COLD_BLOCKS = 16

Act = Callable[[int], object]  # moves block number i
Seconds = dict[str, list[float]]
Clock = Callable[[], float]
Blocks = list[tuple[BlockRecord, ByteArray]]


WRITE, READ, COPY = 'write() of the bytes', 'read() of the bytes', 'memcpy'
COMPARISONS = (  # row, ours, the bare move of the same bytes, its name
    ('dram_put', 'dram_put', 'copy_in', COPY),
    ('dram_load', 'dram_load', 'copy_out', COPY),
    ('device_put', 'device_put', 'copy_in', COPY),
    ('device_load', 'device_load', 'copy_out', COPY),
    ('ssd_put', 'ssd_put', 'write', WRITE),
    ('ssd_load', 'ssd_load', 'read', READ),
    ('ssd_demote', 'ssd_demote', 'write_shared', WRITE),
    ('ssd_promote', 'ssd_promote', 'read_shared', READ),
    ('ssd_put_guarded', 'guarded_put', 'write', WRITE),
    ('ssd_load_guarded', 'guarded_load', 'read', READ),
    ('remote_put', 'remote_put', 'write', WRITE),
    ('remote_load', 'remote_load', 'read', READ),
)


def blocks_of(num_bytes: int) -> Blocks:
    """Blocks of random half-precision numbers."""
    generator = np.random.default_rng(1)
    blocks: Blocks = []
    for number in range(min(MAX_BLOCKS, WORKING_SET_BYTES // num_bytes)):
        value = generator.standard_normal(num_bytes // 2).astype(np.float16).view(np.uint8)
        blocks.append((record_of(number, value, 'raw'), value))
    return blocks


def record_of(number: int, value: ByteArray, codec: str) -> BlockRecord:
    """A block of 16 tokens."""
    tokens = np.full(16, number, dtype='<i4').tobytes()
    return BlockRecord(
        key=block_key(bytes(32), tokens),
        parent_key=bytes(32),
        root=bytes(32),
        tokens=tokens,
        length_bytes=len(value),
        checksum=checksum(value),
        codec=codec,
    )


def layout_of(num_bytes: int) -> BlockLayout:
    """16 tokens of a model with 8 KV heads of 64 channels in as many layers as fill the block."""
    return BlockLayout(shape=(2, num_bytes // (2 * 8 * 16 * 64 * 2), 8, 16, 64), dtype='float16')


class Files:
    """Plain files, one write() and one read() each."""

    def __init__(self, directory: Path) -> None:
        directory.mkdir()
        self._directory = directory

    def path(self, number: int) -> str:
        return f'{self._directory}/{number}.raw'

    def write(self, number: int, value: ByteArray) -> None:
        descriptor = os.open(self.path(number), os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
        num_written = os.write(descriptor, value.data)
        os.close(descriptor)
        assert num_written == len(value)

    def read(self, number: int, out: ByteArray) -> None:
        descriptor = os.open(self.path(number), os.O_RDONLY | os.O_CLOEXEC)
        num_read = os.preadv(descriptor, [out.data], 0)
        os.close(descriptor)
        assert num_read == len(out)


def in_turns(acts: dict[str, Act], num_blocks: int, turn: int, clock: Clock, found: Seconds) -> None:
    """Every act for every block; who begins changes from block to block."""
    names = list(acts)
    for number in range(num_blocks):
        first = (number + turn) % len(names)
        for name in names[first:] + names[:first]:
            start_s = clock()
            acts[name](number)
            found[name].append(clock() - start_s)


class Memory:
    """Shared memory and the device's stand-in, all of it touched before, so that no contender pays for that."""

    def __init__(self, blocks: Blocks, capacity_bytes: int) -> None:
        self.blocks = blocks
        num_bytes = len(blocks[0][1])
        self.source, self.target, self.plain = (HostStore(SharedArena.create(capacity_bytes)) for _ in range(3))
        self.device = DeviceStore.create(capacity_bytes, num_bytes, 'cpu')
        slots = [self.plain.reserve(record.key, num_bytes) for record, _ in blocks]
        self.views = [self.plain.view(slot) for slot in slots if slot is not None]
        self.out = np.zeros(num_bytes, np.uint8)
        for record, value in blocks:
            for store in (self.source, self.target, self.device):
                store.put(record, value)
        for view in self.views:
            view[:] = 0
        self.forget()

    def shared(self, number: int) -> ByteArray:
        """The block in shared memory."""
        return self.source.view(self.source.slot(self.blocks[number][0].key))

    def forget(self) -> None:
        """The next puts are the first again."""
        for record, _ in self.blocks:
            self.target.delete(record.key)
            self.device.delete(record.key)

    def close(self) -> None:
        for store in (self.source, self.target, self.plain, self.device):
            store.close()

    def writes(self) -> dict[str, Act]:
        return {
            'copy_in': lambda number: np.copyto(self.views[number], self.blocks[number][1]),
            'dram_put': lambda number: self.target.put(*self.blocks[number]),
            'device_put': lambda number: self.device.put(*self.blocks[number]),
        }

    def reads(self) -> dict[str, Act]:
        return {
            'copy_out': lambda number: np.copyto(self.out, self.views[number]),
            'dram_load': lambda number: load(self.target, self.blocks[number][0], self.out),
            'device_load': lambda number: load(self.device, self.blocks[number][0], self.out),
            'checksum': lambda number: checksum(self.views[number]),
        }


class Disk:
    """Fresh stores and plain files in one folder."""

    def __init__(self, memory: Memory, folder: Path, capacity_bytes: int) -> None:
        self.memory, self.blocks = memory, memory.blocks
        self.ssd, self.demoted = (DiskStore.open(folder / name, capacity_bytes) for name in ('ssd', 'demoted'))
        self.guarded = GuardedStore(DiskStore.open(folder / 'guarded', capacity_bytes))
        self.remote = RemoteStore.open(folder / 'remote', capacity_bytes)
        self.files, self.shared_files = Files(folder / 'files'), Files(folder / 'shared')

    def writes(self) -> dict[str, Act]:
        return {
            'write': lambda number: self.files.write(number, self.blocks[number][1]),
            'ssd_put': lambda number: self.ssd.put(*self.blocks[number]),
            'guarded_put': lambda number: self.guarded.put(*self.blocks[number]),
            'remote_put': lambda number: self.remote.put(*self.blocks[number]),
            'write_shared': lambda number: self.shared_files.write(number, self.memory.shared(number)),
            'ssd_demote': lambda number: self.demoted.put(self.blocks[number][0], self.memory.shared(number)),
        }

    def reads(self) -> dict[str, Act]:
        out = self.memory.out
        return {
            'read': lambda number: self.files.read(number, out),
            'ssd_load': lambda number: load(self.ssd, self.blocks[number][0], out),
            'guarded_load': lambda number: load(self.guarded, self.blocks[number][0], out),
            'remote_load': lambda number: load(self.remote, self.blocks[number][0], out),
            'read_shared': lambda number: self.shared_files.read(number, self.memory.views[number]),
            'ssd_promote': self.promote,
        }

    def promote(self, number: int) -> None:
        """From the disk into shared memory, where engines find it."""
        key = self.blocks[number][0].key
        slot = self.memory.target.reserve(key, self.blocks[number][0].length_bytes)
        assert slot is not None
        record = self.ssd.get(key, self.memory.target.view(slot))
        assert record is not None
        self.memory.target.publish(slot, record)

    def close(self) -> None:
        for store in (self.ssd, self.demoted, self.guarded, self.remote):
            store.close()


def load(store: BlockStore, record: BlockRecord, out: ByteArray) -> None:
    """What was put must be there."""
    assert store.get(record.key, out) is not None


def measure(directory: Path, num_bytes: int, num_rounds: int, clock: Clock) -> Seconds:
    """Seconds of every act on every block, in the page cache and in memory."""
    blocks = blocks_of(num_bytes)
    capacity_bytes = 2 * len(blocks) * (num_bytes + 8192)
    found: Seconds = defaultdict(list)
    with contextlib.closing(Memory(blocks, capacity_bytes)) as memory:
        for turn in range(num_rounds):
            print(f'{num_bytes >> 10} KiB, round {turn + 1} of {num_rounds} …', file=sys.stderr, flush=True)
            with (
                tempfile.TemporaryDirectory(dir=directory) as folder,
                contextlib.closing(Disk(memory, Path(folder), capacity_bytes)) as disk,
            ):
                for acts in (disk.writes(), disk.reads()):
                    in_turns(acts, len(blocks), turn, clock, found)
            memory.forget()
            for acts in (memory.writes(), memory.reads()):
                in_turns(acts, len(blocks), turn, clock, found)
            memory.forget()
    return found


def measure_cold(directory: Path, num_bytes: int, num_rounds: int, clock: Clock) -> Seconds:
    """Wall seconds of loads from the device itself: plain, as it is, and with 4 bits; and from the page cache."""
    blocks, layout = blocks_of(num_bytes)[:NUM_COLD_BLOCKS], layout_of(num_bytes)
    codec = codec_for(replace(layout, bits=4))
    coded = [codec.encode(value, layout) for _, value in blocks]
    records = [record_of(number, stored, codec.name) for number, stored in enumerate(coded)]
    out, stored = np.zeros(num_bytes, np.uint8), np.zeros(num_bytes, np.uint8)
    found: Seconds = defaultdict(list)
    with tempfile.TemporaryDirectory(dir=directory) as folder, contextlib.ExitStack() as stack:
        files = Files(Path(folder) / 'files')
        exact, four = (
            stack.enter_context(contextlib.closing(DiskStore.open(Path(folder) / name, 1 << 40)))
            for name in ('16', '4')
        )
        for number, (record, value) in enumerate(blocks):
            files.write(number, value)
            exact.put(record, value)
            four.put(records[number], coded[number])

        def load_four_bits(number: int) -> None:
            load(four, records[number], stored)
            codec.decode(stored[: len(coded[number])], layout, out)

        reads: dict[str, Act] = {
            'read': lambda number: files.read(number, out),
            'exact': lambda number: load(exact, blocks[number][0], out),
            'four': load_four_bits,
        }
        load_four_bits(0)
        sync(Path(folder))
        for turn in range(num_rounds):
            print(f'{num_bytes >> 10} KiB cold, round {turn + 1} of {num_rounds} …', file=sys.stderr, flush=True)
            in_turns(
                {f'{name}_cached': act for name, act in reads.items()}, len(blocks), turn, time.perf_counter, found
            )
            forget_pages(Path(folder))
            in_turns(reads, len(blocks), turn, time.perf_counter, found)
    return found


def sync(folder: Path) -> None:
    """Bring every file to the device."""
    for path in folder.rglob('*.*'):
        with open(path, 'rb') as file:
            os.fdatasync(file.fileno())


def forget_pages(folder: Path) -> None:
    """Drop every file from the page cache; they are synced."""
    for path in folder.rglob('*.*'):
        with open(path, 'rb') as file:
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def rate_row(name: str, num_bytes: int, ours_s: list[float], peer_s: list[float], peer_name: str) -> Row:
    """In MB/s; the peer does nothing but move the bytes, so it is the limit too."""
    ours, peer = (num_bytes / statistics.median(seconds) / 1e6 for seconds in (ours_s, peer_s))
    return Row(
        name=f'{name}_{num_bytes >> 10}KiB',
        ours=ours,
        peer=peer,
        peer_name=peer_name,
        limit=peer,
        ratio=ours / peer,
        unit='MB/s',
        n=len(ours_s),
    )


def rows_of(num_bytes: int, found: Seconds, cold: Seconds) -> list[Row]:
    """All comparisons at one block size."""
    rows = [
        rate_row(name, num_bytes, found[ours], found[peer], peer_name) for name, ours, peer, peer_name in COMPARISONS
    ]
    rows.append(rate_row('checksum_alone', num_bytes, found['checksum'], found['copy_out'], COPY))
    rows.append(rate_row('ssd_load_cold', num_bytes, cold['exact'], cold['read'], READ))
    rows.append(rate_row('ssd_load_4bit_cold', num_bytes, cold['four'], cold['exact'], 'the same block in 16 bits'))
    rows.append(
        rate_row('ssd_load_4bit', num_bytes, cold['four_cached'], cold['exact_cached'], 'the same block in 16 bits')
    )
    return rows


def draw(axes: Axes, rows: list[Row]) -> None:
    """The ratios, a bar each, with the goal."""
    shown = [row for row in rows if row.name.endswith('_1024KiB')] or rows
    axes.barh([row.name.rpartition('_')[0] for row in shown], [row.ratio for row in shown])
    axes.axvline(0.7, color='black', linestyle='--', label='goal')
    axes.set(xlabel='share of the rate of the bare move')
    axes.invert_yaxis()
    axes.legend()


def main() -> None:
    """Measure, then print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument('--sizes-kib', type=int, nargs='+', default=[256, 1024, 4096], help='block sizes')
    parser.add_argument('--n', type=int, default=3, help='rounds over the working set')
    parser.add_argument('--directory', type=Path, default=Path(tempfile.gettempdir()), help='a folder on the disk')
    parser.add_argument('--clock', choices=sorted(CLOCKS), default='cpu', help='of the rows that are not cold')
    parser.add_argument('--json', action='store_true', help='one JSON object as the last line')
    arguments = parser.parse_args()
    torch.set_num_threads(1)  # as many as the copies it is compared with
    rows: list[Row] = []
    for num_bytes in (size << 10 for size in arguments.sizes_kib):
        found = measure(arguments.directory, num_bytes, arguments.n, CLOCKS[arguments.clock])
        rows += rows_of(
            num_bytes, found, measure_cold(arguments.directory, num_bytes, arguments.n, CLOCKS[arguments.clock])
        )
    facts = {
        'clock': arguments.clock,
        'cold_clock': 'wall',
        'synced': 'no; the files of the cold rows once, before they are dropped from the page cache',
        'page_cache': 'warm, but for the cold rows',
        'working_set_bytes': WORKING_SET_BYTES,
        'device': 'cpu',
    }
    if arguments.json:
        print_json(rows, facts)
        return
    print_table('Blocks in and out of the tiers', rows)
    print(save_plot('tiers', lambda axes: draw(axes, rows)))


if __name__ == '__main__':
    main()
