"""Blocks as engines read them to blocks as a tier stores them, and back."""

from dataclasses import replace
import logging

from kv_agent_ros.errors import StoreError
from kv_agent_ros.kvcache.block import BlockLayout
from kv_agent_ros.kvcache.codec import BlockCodec, CodecBook, RawCodec
from kv_agent_ros.kvcache.storage.base import BlockRecord, ByteArray, checksum
from kv_agent_ros.kvcache.storage.transfer import LoadedBlock, ReadBlock, Transfer

_log = logging.getLogger(__name__)


def encoding(transfer: Transfer, codecs: CodecBook) -> ReadBlock:
    """`transfer.read`, in the bytes to store. A block that its codec refuses stays exact."""
    places = {key: index for index, key in enumerate(transfer.keys)}

    def read(key: bytes) -> tuple[BlockRecord, ByteArray]:
        record, block = transfer.read(key)
        codec = codecs.choose(transfer.path.layout, places[key], len(transfer.keys))
        return _encoded(codec, transfer.path.layout, record, block)

    return read


def decoded(codecs: CodecBook, record: BlockRecord, layout: BlockLayout, out: ByteArray) -> LoadedBlock:
    """Turn the stored bytes at the start of `out` into the block. Raises StoreError when they are none."""
    codec = codecs.named(record.codec)
    bits = min(codec.bits, record.bits)
    if bits < layout.bits:
        raise StoreError(f'block: expected {layout.bits} bits, got {bits}')
    if codec.name == RawCodec.name:
        if record.length_bytes != len(out):
            raise StoreError(f'block: expected {len(out)} bytes, got {record.length_bytes}')
        return LoadedBlock(checksum=record.checksum, bits=bits, stored_bytes=record.length_bytes)
    codec.decode(out[: record.length_bytes].copy(), layout, out)
    return LoadedBlock(checksum=checksum(out), bits=bits, stored_bytes=record.length_bytes)


def _encoded(
    codec: BlockCodec, layout: BlockLayout, record: BlockRecord, block: ByteArray
) -> tuple[BlockRecord, ByteArray]:
    if codec.name == record.codec or record.bits < RawCodec.bits:  # written coarsely once, and never again
        return record, block
    try:
        stored = codec.encode(block, layout)
    except StoreError as error:
        _log.warning('block %s is kept exact (%s)', record.key.hex()[:12], error)
        return record, block
    if checksum(block) != record.checksum:  # only now: a late writer may have changed it meanwhile
        return record, block  # which no store takes
    digest = checksum(stored)
    return replace(record, length_bytes=len(stored), checksum=digest, codec=codec.name, bits=codec.bits), stored
