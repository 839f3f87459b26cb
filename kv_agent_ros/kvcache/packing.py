"""Codes of 8, 4 or 2 bits in bytes, no bit wasted but for an odd tail, and the scales beside them.

A byte carries codes that are neighbours, the first one in its lowest bits.
"""

import numpy as np
import numpy.typing as npt

from kv_agent_ros.errors import BadRequestError, StoreError
from kv_agent_ros.kvcache.storage.base import ByteArray

Codes = npt.NDArray[np.uint8]
Floats = npt.NDArray[np.float32]
Wide = npt.NDArray[np.uint16]  # upper halves of float32


def packed_size(num_codes: int, bits: int) -> int:
    """Bytes that a row of codes takes."""
    if bits not in (2, 4, 8):
        raise BadRequestError(f'bits of a code: expected 2, 4 or 8, got {bits}')
    return -(-num_codes * bits // 8)


def pack(codes: Codes, bits: int) -> Codes:
    """(…, n) codes below 2**bits to (…, packed_size(n, bits)) bytes."""
    num_codes, per_byte = codes.shape[-1], 8 // bits
    padded = np.zeros((*codes.shape[:-1], packed_size(num_codes, bits) * per_byte), np.uint8)
    padded[..., :num_codes] = codes
    packed = padded[..., ::per_byte].copy()
    for place in range(1, per_byte):
        packed |= padded[..., place::per_byte] << np.uint8(bits * place)
    return packed


def unpack(packed: Codes, bits: int, num_codes: int) -> Codes:
    """(…, packed_size(n, bits)) bytes to (…, n) codes."""
    mask = np.uint8((1 << bits) - 1)
    codes = np.empty((*packed.shape, 8 // bits), np.uint8)
    for place in range(8 // bits):
        codes[..., place] = (packed >> np.uint8(bits * place)) & mask
    return codes.reshape(*packed.shape[:-1], -1)[..., :num_codes]


def wide_above(values: Floats) -> Wide:
    """The upper halves of float32 numbers (bfloat16), none below its number: range enough for any scale."""
    bits = np.ascontiguousarray(values, np.float32).view(np.uint32)
    rounded = np.where(values > 0, bits + np.uint32(0xFFFF), bits)  # towards zero is upwards for the others
    return (rounded >> np.uint32(16)).astype(np.uint16)


def narrow(wide: Wide) -> Floats:
    """The numbers behind upper halves."""
    return (wide.astype(np.uint32) << np.uint32(16)).view(np.float32)


def joined(*sections: npt.NDArray[np.generic]) -> ByteArray:
    """The bytes of arrays, one after the other."""
    return np.concatenate([np.ascontiguousarray(section).reshape(-1).view(np.uint8) for section in sections])


def split(stored: ByteArray, sizes: list[int]) -> list[ByteArray]:
    """The opposite of `joined`, of (…, n) bytes; raises StoreError when the sizes do not add up to what is stored."""
    sections, start = [], 0
    for size in sizes:
        sections.append(stored[..., start : start + size])
        start += size
    if start != stored.shape[-1]:
        raise StoreError(f'stored block: expected {start} bytes, got {stored.shape[-1]}')
    return sections
