"""One block in one file: a header with everything the tree must know, then the bytes as they are.

Format 3. A file is written whole under another name and renamed, so a reader finds it whole or not at all; nothing is
synced, so a loss of power may tear it, and then header or bytes fail their checksum.
"""

from collections.abc import Iterator
import contextlib
import errno
import os
import struct

from xxhash import xxh3_128, xxh3_128_digest

from kv_agent_ros.kvcache.block import block_key
from kv_agent_ros.kvcache.storage.base import CHUNK_BYTES, BlockRecord, ByteArray

NO_ROOM = (errno.ENOSPC, errno.EDQUOT)  # the device is full, which is no failure of it

_MAGIC = b'KVBLOCK3'
_HEAD = struct.Struct(
    '<8s32s32s32s16sQBIH'
)  # magic, key, parent, root, checksum, length, bits, lengths of tokens, codec
_DIGEST_BYTES = 16
_MAX_TOKEN_BYTES = 1 << 20
_FIRST_READ_BYTES = 1024  # the whole header of blocks of up to some 200 tokens


def file_bytes(record: BlockRecord) -> int:
    """Length of the block's file."""
    return _HEAD.size + len(record.tokens) + len(record.codec.encode()) + _DIGEST_BYTES + record.length_bytes


@contextlib.contextmanager
def opened(path: str) -> Iterator[int]:
    """A descriptor to read from. Raises OSError."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def write_block(path: str, record: BlockRecord, value: ByteArray) -> None:
    """Make the file. Raises OSError, and then a part of it may be there."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o644)
    try:
        header = _pack(record)
        num_written = 0
        # In one call: the page cache then has large pages, which are also faster to read later.
        while num_written < len(header) + len(value):
            rest = header[num_written:], value.data[max(0, num_written - len(header)) :]
            num_written += os.writev(descriptor, rest)
    finally:
        os.close(descriptor)


def read_block(descriptor: int, key: bytes, out: ByteArray) -> BlockRecord | None:
    """Fill the start of `out`; the record, or None when the file is torn, altered or another block's.

    A block longer than `out` is not read: compare the record's `length_bytes`. Raises OSError.
    """
    header = _read_header(descriptor, key)
    if header is None:
        return None
    record, offset = header
    if record.length_bytes > len(out):
        return record
    digest = xxh3_128()
    for start in range(0, record.length_bytes, CHUNK_BYTES):
        chunk = out.data[start : min(start + CHUNK_BYTES, record.length_bytes)]
        if not _read_all(descriptor, chunk, offset + start):
            return None
        digest.update(chunk)
    return record if digest.digest() == record.checksum else None


def read_record(descriptor: int, key: bytes) -> BlockRecord | None:
    """The header alone; None when it is torn, altered or another block's, or the file has another length."""
    header = _read_header(descriptor, key)
    if header is None or os.fstat(descriptor).st_size != file_bytes(header[0]):
        return None
    return header[0]


def _pack(record: BlockRecord) -> bytes:
    codec = record.codec.encode()
    head = _HEAD.pack(
        _MAGIC,
        record.key,
        record.parent_key,
        record.root,
        record.checksum,
        record.length_bytes,
        record.bits,
        len(record.tokens),
        len(codec),
    )
    signed = head + record.tokens + codec
    return signed + xxh3_128_digest(signed)


def _read_header(descriptor: int, key: bytes) -> tuple[BlockRecord, int] | None:
    """The record and where its bytes begin."""
    first = os.pread(descriptor, _FIRST_READ_BYTES, 0)
    if len(first) < _HEAD.size:
        return None
    magic, found, parent, root, digest, length, bits, num_token_bytes, num_codec_bytes = _HEAD.unpack_from(first)
    if magic != _MAGIC or found != key or num_token_bytes > _MAX_TOKEN_BYTES:
        return None
    end = _HEAD.size + num_token_bytes + num_codec_bytes
    if end + _DIGEST_BYTES > len(first):
        first = os.pread(descriptor, end + _DIGEST_BYTES, 0)
    if first[end : end + _DIGEST_BYTES] != xxh3_128_digest(first[:end]):
        return None
    tokens = first[_HEAD.size : _HEAD.size + num_token_bytes]
    if block_key(parent, tokens) != key:
        return None
    codec = first[_HEAD.size + num_token_bytes : end].decode(errors='replace')  # then no codec's name
    record = BlockRecord(
        key=key,
        parent_key=parent,
        root=root,
        tokens=tokens,
        length_bytes=length,
        checksum=digest,
        codec=codec,
        bits=bits,
    )
    return record, end + _DIGEST_BYTES


def _read_all(descriptor: int, part: memoryview, offset: int) -> bool:
    """False when the file ends before `part` does."""
    num_read = os.preadv(descriptor, [part], offset)
    while 0 < num_read < len(part):
        more = os.preadv(descriptor, [part[num_read:]], offset + num_read)
        num_read += more or -num_read
    return num_read == len(part)
