"""How a tier writes a block's bytes: as they are, or with fewer bits.

A codec works on one block at a time and keeps no state between blocks; its name is stored with what it wrote.
"""

from typing import Protocol

from kv_agent_ros.errors import StoreError
from kv_agent_ros.kvcache.block import BlockLayout
from kv_agent_ros.kvcache.storage.base import ByteArray


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


def _require_size(block: ByteArray, layout: BlockLayout) -> None:
    if len(block) != layout.num_bytes:
        raise StoreError(f'block: expected {layout.num_bytes} bytes for {layout}, got {len(block)}')
