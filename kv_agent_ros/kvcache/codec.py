"""How a tier writes a block's bytes: as they are, or with fewer bits.

A codec works on one block at a time and keeps no state between blocks; its name is stored with what it wrote.
"""

from dataclasses import dataclass
import math
from typing import Protocol

import numpy as np

from kv_agent_ros.errors import StoreError
from kv_agent_ros.kvcache.arithmetic import Lines
from kv_agent_ros.kvcache.block import BlockLayout
from kv_agent_ros.kvcache.channel_quantizer import ChannelQuantizer
from kv_agent_ros.kvcache.packing import joined, split
from kv_agent_ros.kvcache.quantization import (
    Axis,
    CentredQuantizer,
    PlainQuantizer,
    Quantizer,
    RotatedQuantizer,
    Shape,
)
from kv_agent_ros.kvcache.storage.base import ByteArray

FLOAT16_LARGEST = 65504.0
FLOAT_KIND = 'f'  # of a numpy dtype; others are kept as they are


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class BlockLines:
    """Where the vectors of blocks go: those of (blocks, layers * heads, tokens), in this order."""

    keys: Lines
    values: Lines


class BlockCodec(Protocol):
    """One way to write blocks."""

    @property
    def name(self) -> str:
        """Stored with every block; names one format for ever."""
        ...

    @property
    def bits(self) -> int:
        """Bits an element keeps; 16 for exact codecs."""
        ...

    def encode(self, block: ByteArray, layout: BlockLayout) -> ByteArray:
        """The bytes to store. Raises StoreError for a block with NaN or infinities, or that is not of this layout."""
        ...

    def decode(self, stored: ByteArray, layout: BlockLayout, out: ByteArray) -> None:
        """Fill `out`, `layout.num_bytes` long. Raises StoreError when `stored` is not a block of this layout."""
        ...

    def decode_all(self, stored: ByteArray, layout: BlockLayout, out: BlockLines) -> None:
        """Of (blocks, bytes) every block, straight to where it is wanted. Raises StoreError as decode()."""
        ...


class RawCodec:
    """The bytes as they are."""

    name = 'raw'
    bits = 16

    def encode(self, block: ByteArray, layout: BlockLayout) -> ByteArray:
        _require_size(block, layout)
        return block

    def decode(self, stored: ByteArray, layout: BlockLayout, out: ByteArray) -> None:
        _require_size(stored, layout)
        out[:] = stored

    def decode_all(self, stored: ByteArray, layout: BlockLayout, out: BlockLines) -> None:
        _put_floats(stored, layout, layout.dtype, out)


class Float16Codec:
    """Every element as float16: exact for such blocks, 11 significant bits of others."""

    name = 'float16'
    bits = 16

    def encode(self, block: ByteArray, layout: BlockLayout) -> ByteArray:
        _require_floats(layout)
        _require_size(block, layout)
        values = block.view(layout.dtype)
        if not np.abs(values).max(initial=0) <= FLOAT16_LARGEST:
            raise StoreError(f'codec float16: expected finite numbers up to {FLOAT16_LARGEST}; keep the block raw')
        return values.astype(np.float16).view(np.uint8)

    def decode(self, stored: ByteArray, layout: BlockLayout, out: ByteArray) -> None:
        _require_floats(layout)
        if 2 * math.prod(layout.shape) != len(stored):
            raise StoreError(f'codec float16: expected {2 * math.prod(layout.shape)} bytes, got {len(stored)}')
        _require_size(out, layout)
        out.view(layout.dtype)[:] = stored.view(np.float16)

    def decode_all(self, stored: ByteArray, layout: BlockLayout, out: BlockLines) -> None:
        _put_floats(stored, layout, 'float16', out)


@dataclass(frozen=True, kw_only=True, slots=True)
class QuantizedCodec:
    """Keys in one way and values in another, all layers and heads at once."""

    name: str
    bits: int
    keys: Quantizer
    values: Quantizer

    def num_bytes(self, layout: BlockLayout) -> int:
        """What a stored block takes, every scale included."""
        return self.keys.num_bytes(_rows(layout)) + self.values.num_bytes(_rows(layout))

    def encode(self, block: ByteArray, layout: BlockLayout) -> ByteArray:
        _require_floats(layout)
        _require_size(block, layout)
        keys, values = block.view(layout.dtype).reshape(2, *_rows(layout))
        return joined(self.keys.encode(keys), self.values.encode(values))

    def decode(self, stored: ByteArray, layout: BlockLayout, out: ByteArray) -> None:
        _require_floats(layout)
        _require_size(out, layout)
        rows = _rows(layout)
        stored_keys, stored_values = split(stored, [self.keys.num_bytes(rows), self.values.num_bytes(rows)])
        target = out.view(layout.dtype).reshape(2, *rows)
        if target.dtype in (np.float32, np.float16) and target.flags.aligned:
            self.keys.decode(stored_keys, target[0])
            self.values.decode(stored_values, target[1])
            return
        decoded = np.empty(rows, np.float32)
        for quantizer, part, half in ((self.keys, stored_keys, target[0]), (self.values, stored_values, target[1])):
            quantizer.decode(part, decoded)
            half[:] = np.clip(decoded, np.finfo(half.dtype).min, np.finfo(half.dtype).max, out=decoded)

    def decode_all(self, stored: ByteArray, layout: BlockLayout, out: BlockLines) -> None:
        rows = _rows(layout)
        keys, values = split(stored, [self.keys.num_bytes(rows), self.values.num_bytes(rows)])
        self.keys.decode_all(keys, rows, out.keys)
        self.values.decode_all(values, rows, out.values)


def _rotated(bits: int, norm_bits: int) -> RotatedQuantizer:
    return RotatedQuantizer(bits=bits, norm_bits=norm_bits)


def _centred(bits: int, norm_bits: int) -> CentredQuantizer:
    return CentredQuantizer(mean=_rotated(4, 8), rest=_rotated(bits, norm_bits))


def _plain(bits: int, axis: Axis, group: int) -> PlainQuantizer:
    return PlainQuantizer(bits=bits, axis=axis, group=group)


PLAIN_8 = QuantizedCodec(name='plain-8', bits=8, keys=_plain(8, Axis.TOKENS, 64), values=_plain(8, Axis.CHANNELS, 64))
KEYS_8 = QuantizedCodec(name='keys-8', bits=4, keys=_plain(8, Axis.CHANNELS, 64), values=_rotated(4, 4))
MIXED_4 = QuantizedCodec(name='mixed-4', bits=4, keys=_plain(4, Axis.TOKENS, 32), values=_rotated(4, 8))
ROTATED_4 = QuantizedCodec(name='rotated-4', bits=4, keys=_centred(4, 8), values=_rotated(4, 8))
CHANNEL_4 = QuantizedCodec(
    name='channel-4', bits=4, keys=ChannelQuantizer(bits=4, step_bits=4, middle=_rotated(4, 8)), values=_rotated(4, 4)
)
ROTATED_2 = QuantizedCodec(name='rotated-2', bits=2, keys=_centred(2, 4), values=_rotated(2, 4))

# All that ever wrote a block: an old name stays here, so that what an earlier configuration stored can be read.
CODECS: tuple[BlockCodec, ...] = (
    RawCodec(),
    Float16Codec(),
    PLAIN_8,
    KEYS_8,
    MIXED_4,
    CHANNEL_4,
    ROTATED_4,
    ROTATED_2,
)


def codec_named(name: str) -> BlockCodec:
    """The codec of a stored block. Raises StoreError for a name that is not known."""
    for codec in CODECS:
        if codec.name == name:
            return codec
    raise StoreError(f'codec: expected one of {[codec.name for codec in CODECS]}, got {name!r}')


class CodecBook(Protocol):
    """Which codec writes which block of a path, and which one reads what was written."""

    def choose(self, layout: BlockLayout, index: int, num_blocks: int) -> BlockCodec:
        """For block number `index` of a path of `num_blocks` now; it keeps no fewer bits than the layout asks for."""
        ...

    def named(self, name: str) -> BlockCodec:
        """The codec of a stored block. Raises StoreError for a name that is not known."""
        ...


class ExactBook:
    """Every block as it is."""

    def choose(self, layout: BlockLayout, index: int, num_blocks: int) -> BlockCodec:
        return RawCodec()

    def named(self, name: str) -> BlockCodec:
        if name != RawCodec.name:
            raise StoreError(f'codec: expected {RawCodec.name}, got {name!r}; open the tier with a book that has it')
        return RawCodec()


def _rows(layout: BlockLayout) -> Shape:
    """One row a KV head of a layer."""
    _, num_layers, num_kv_heads, block_tokens, head_dim = layout.shape
    return num_layers * num_kv_heads, block_tokens, head_dim


def _put_floats(stored: ByteArray, layout: BlockLayout, dtype: str, out: BlockLines) -> None:
    """Blocks that are stored as they are, but for the type of their elements."""
    num_elements = math.prod(layout.shape)
    if stored.shape[1] != num_elements * np.dtype(dtype).itemsize:
        raise StoreError(f'block: expected {num_elements} elements of {dtype}, got {stored.shape[1]} bytes')
    blocks = stored.view(dtype).reshape(len(stored), 2, -1, layout.shape[4])
    out.keys.put(blocks[:, 0])
    out.values.put(blocks[:, 1])


def _require_size(block: ByteArray, layout: BlockLayout) -> None:
    if len(block) != layout.num_bytes:
        raise StoreError(f'block: expected {layout.num_bytes} bytes for {layout}, got {len(block)}')


def _require_floats(layout: BlockLayout) -> None:
    if np.dtype(layout.dtype).kind != FLOAT_KIND:
        raise StoreError(f'block: expected floats, got {layout.dtype}; keep the block raw')
