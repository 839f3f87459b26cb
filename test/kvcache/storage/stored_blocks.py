"""Blocks whose bytes can be told apart, for the tests of stores."""

from pathlib import Path

import numpy as np

from kv_agent_ros.kvcache.block import block_key
from kv_agent_ros.kvcache.storage.base import BlockRecord, BlockStore, ByteArray, checksum

ROOT = bytes(32)


def block(number: int, num_bytes: int = 5000, parent: bytes = ROOT) -> tuple[BlockRecord, ByteArray]:
    """Block `number` after `parent`; other numbers have other bytes."""
    value = np.random.default_rng(number).integers(0, 256, num_bytes, dtype=np.uint8)
    tokens = np.array([number], dtype='<i4').tobytes()
    record = BlockRecord(
        key=block_key(parent, tokens),
        parent_key=parent,
        root=ROOT,
        tokens=tokens,
        length_bytes=num_bytes,
        checksum=checksum(value),
    )
    return record, value


def chain(num_blocks: int, num_bytes: int = 5000) -> list[tuple[BlockRecord, ByteArray]]:
    """Blocks that follow each other from the root."""
    blocks: list[tuple[BlockRecord, ByteArray]] = []
    for number in range(num_blocks):
        blocks.append(block(number, num_bytes, blocks[-1][0].key if blocks else ROOT))
    return blocks


def read(store: BlockStore, number: int) -> bool:
    """Whether block `number` is there; what is served must be right."""
    record, value = block(number)
    out = np.zeros(6000, dtype=np.uint8)
    found = store.get(record.key, out)
    assert found is None or (found == record and np.array_equal(out[:5000], value))
    return found is not None


def physical_bytes(directory: Path) -> int:
    """What the block files below a directory occupy, whole pages counted."""
    return sum(
        -(-path.stat().st_size // 4096) * 4096
        for path in directory.rglob('*.*')
        if path.suffix in ('.kv', '.tmp', '.bad')
    )
