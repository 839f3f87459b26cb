"""How fast blocks are coded, beside a memcpy of the same decoded bytes, and how fast they come from a disk.

CPU time for what only computes, wall time where a disk takes part; medians of interleaved repetitions over more blocks
than the caches of the processor hold.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
import os
from pathlib import Path
import statistics
import sys
import time

import numpy as np

from benchmarks._reporting import Row
from kv_agent_ros.kvcache.arithmetic import Lines
from kv_agent_ros.kvcache.block import BlockLayout
from kv_agent_ros.kvcache.codec import BlockCodec, BlockLines, RawCodec
from kv_agent_ros.kvcache.codec_policy import codec_for
from kv_agent_ros.kvcache.storage.base import ByteArray

MODEL = (30, 3, 64)  # layers, KV heads and head_dim of SmolLM2-135M
WORKING_SET_BYTES = 48 << 20
RUN_BLOCKS = 8
DISK_SET_BYTES = 6 << 20


def speed_rows(bits: int, block_tokens: int, dtype: str, repetitions: int) -> list[Row]:
    """Encode and decode against memcpy, GB/s of decoded bytes."""
    print(f'speed: {bits} bits, blocks of {block_tokens}, {dtype} …', file=sys.stderr, flush=True)
    layout, codec, blocks = _workload(bits, block_tokens, dtype, WORKING_SET_BYTES)
    stored = [codec.encode(block, layout) for block in blocks]
    outs = [np.zeros_like(block) for block in blocks]

    def encode() -> None:
        for block in blocks:
            codec.encode(block, layout)

    def decode() -> None:
        for part, out in zip(stored, outs, strict=True):
            codec.decode(part, layout, out)

    runs = [_Run.of(stored[first : first + RUN_BLOCKS], layout) for first in range(0, len(blocks), RUN_BLOCKS)]

    def decode_runs() -> None:
        for run in runs:
            codec.decode_all(run.stored, layout, run.lines)

    def copy() -> None:
        for block, out in zip(blocks, outs, strict=True):
            np.copyto(out, block)

    seconds = interleaved((encode, decode, decode_runs, copy), repetitions, time.process_time)
    rates = [len(blocks) * layout.num_bytes / 1e9 / value for value in seconds]
    case = f'{bits}bit_blocks{block_tokens}_{dtype}'
    return [
        Row(
            name=f'{act}_{case}',
            ours=rate,
            peer=rates[3],
            peer_name='memcpy',
            limit=rates[3],
            ratio=rate / rates[3],
            unit='GB/s',
            n=repetitions,
        )
        for act, rate in zip(('encode', 'decode', 'decode_in_runs'), rates, strict=False)
    ]


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class _Run:
    """Blocks that come from a store together, as SGLang's pages do, and where their vectors go."""

    stored: ByteArray  # (blocks, bytes)
    lines: BlockLines

    @classmethod
    def of(cls, stored: Sequence[ByteArray], layout: BlockLayout) -> '_Run':
        _, num_layers, num_kv_heads, block_tokens, head_dim = layout.shape
        num_vectors = num_layers * num_kv_heads * block_tokens
        memory = np.zeros((len(stored) * 2 * num_vectors, head_dim), layout.dtype)
        places = np.arange(len(memory)).reshape(len(stored), 2, num_vectors)
        keys, values = (Lines(memory=memory, places=places[:, half].reshape(-1).copy()) for half in (0, 1))
        return cls(stored=np.stack(stored), lines=BlockLines(keys=keys, values=values))


def disk_rows(bits: int, block_tokens: int, directory: Path, repetitions: int) -> list[Row]:
    """Seconds to bring one float16 block from a file that the page cache does not hold, and from one that it does."""
    print(f'disk: {bits} bits, blocks of {block_tokens} …', file=sys.stderr, flush=True)
    layout, codec, blocks = _workload(bits, block_tokens, 'float16', DISK_SET_BYTES)
    files = {'ours': _write(directory / 'ours', codec, layout, blocks)}
    files['raw'] = _write(directory / 'raw', RawCodec(), layout, blocks)
    out = np.zeros(layout.num_bytes, np.uint8)

    def load(which: str, reader: BlockCodec, prepare: Callable[[Path], None]) -> float:
        for path in files[which]:
            prepare(path)
        begun_s = time.perf_counter()
        for path in files[which]:
            reader.decode(np.fromfile(path, np.uint8), layout, out)
        return (time.perf_counter() - begun_s) / len(blocks)

    rows = []
    for state, prepare in (('cold', _drop_from_page_cache), ('in_page_cache', _read)):
        samples = [(load('ours', codec, prepare), load('raw', RawCodec(), prepare)) for _ in range(repetitions)]
        mine, peer = (statistics.median(values) for values in zip(*samples, strict=True))
        rows.append(
            Row(
                name=f'disk_load_{state}_{bits}bit_blocks{block_tokens}',
                ours=mine,
                peer=peer,
                peer_name='16-bit file',
                limit=peer * bits / 16,
                ratio=peer / mine,
                unit='s/block',
                n=repetitions,
            )
        )
    return rows


def interleaved(acts: Sequence[Callable[[], None]], repetitions: int, clock: Callable[[], float]) -> list[float]:
    """Median seconds of each act; all take turns, after one round that does not count."""
    samples: list[list[float]] = [[] for _ in acts]
    for repetition in range(repetitions + 1):
        for act, values in zip(acts, samples, strict=True):
            begun_s = clock()
            act()
            if repetition:
                values.append(clock() - begun_s)
    return [statistics.median(values) for values in samples]


def _workload(
    bits: int, block_tokens: int, dtype: str, set_bytes: int
) -> tuple[BlockLayout, BlockCodec, list[ByteArray]]:
    num_layers, num_kv_heads, head_dim = MODEL
    layout = BlockLayout(shape=(2, num_layers, num_kv_heads, block_tokens, head_dim), dtype=dtype, bits=bits)
    random = np.random.default_rng(0)
    count = max(1, set_bytes // layout.num_bytes)
    blocks = [random.standard_normal(layout.shape, np.float32).astype(dtype) for _ in range(count)]
    return layout, codec_for(layout), [block.reshape(-1).view(np.uint8) for block in blocks]


def _write(directory: Path, codec: BlockCodec, layout: BlockLayout, blocks: Sequence[ByteArray]) -> list[Path]:
    directory.mkdir()
    paths = []
    for index, block in enumerate(blocks):
        paths.append(directory / str(index))
        with open(paths[-1], 'wb') as file:
            file.write(codec.encode(block, layout).data)
            file.flush()
            os.fsync(file.fileno())
    return paths


def _drop_from_page_cache(path: Path) -> None:
    with open(path, 'rb') as file:
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def _read(path: Path) -> None:
    path.read_bytes()
