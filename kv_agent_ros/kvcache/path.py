"""A token sequence as the trees see it: full blocks under a namespace, as bytes that can be compared at once."""

from collections.abc import Sequence
from functools import lru_cache
from typing import Final

import numpy as np

from kv_agent_ros.errors import BadRequestError
from kv_agent_ros.kvcache.block import BlockLayout, KVNamespace, TokenArray, block_key

TOKEN_BYTES = 4
_IDS = np.dtype('<i4')
NO_LAYOUT = BlockLayout(shape=(2, 0, 0, 0, 0), dtype='uint8')


class TokenPath:
    """The full blocks of a prompt, first to last; immutable, and cheap to make, because every request makes one."""

    __slots__ = ('block_tokens', 'hashed_keys', 'layout', 'root', 'tokens')

    def __init__(
        self,
        *,
        root: bytes = b'',
        tokens: bytes = b'',
        block_tokens: int = 1,
        layout: BlockLayout = NO_LAYOUT,
        hashed_keys: tuple[bytes, ...] = (),
    ) -> None:
        self.root: Final = root  # namespace digest
        self.tokens: Final = tokens  # little-endian int32
        self.block_tokens: Final = block_tokens
        self.layout: Final = layout
        self.hashed_keys = hashed_keys  # empty until somebody asks for keys()

    @property
    def num_blocks(self) -> int:
        return len(self.tokens) // (self.block_tokens * TOKEN_BYTES)

    @property
    def block_bytes(self) -> int:
        """Size of one block as the engine writes it."""
        return self.layout.num_bytes

    def block(self, index: int) -> bytes:
        """The tokens of one block."""
        width = self.block_tokens * TOKEN_BYTES
        return self.tokens[index * width : (index + 1) * width]

    def head(self, num_blocks: int) -> 'TokenPath':
        """The first blocks of the path."""
        if num_blocks >= self.num_blocks:
            return self
        return TokenPath(
            root=self.root,
            tokens=self.tokens[: num_blocks * self.block_tokens * TOKEN_BYTES],
            block_tokens=self.block_tokens,
            layout=self.layout,
            hashed_keys=self.hashed_keys[:num_blocks],
        )

    def keys(self) -> tuple[bytes, ...]:
        """The blocks' keys, the same as block_keys() gives; hashed once."""
        if not self.hashed_keys:
            self.hashed_keys = tuple(chain_keys(self.root, self.tokens, self.block_tokens * TOKEN_BYTES))
        return self.hashed_keys


def chain_keys(parent: bytes, tokens: bytes, width: int) -> list[bytes]:
    """Keys of the blocks of `width` bytes each that follow `parent`, a key or a namespace digest."""
    keys = []
    for start in range(0, len(tokens), width):
        parent = block_key(parent, tokens[start : start + width])
        keys.append(parent)
    return keys


def token_path(namespace: KVNamespace, tokens: TokenArray | Sequence[int]) -> TokenPath:
    """The full blocks of `tokens`; the partial tail has none. Raises BadRequestError for impossible input."""
    root, layout = _checked(namespace)
    array = np.asarray(tokens)
    if not _are_ids(array):
        raise BadRequestError(f'tokens: expected ids in 0..2147483647 in one row, got {array.dtype} {array.shape}')
    width = namespace.block_tokens
    full = array[: len(array) // width * width]
    if array.dtype != _IDS:
        full = full.astype(_IDS)
    return TokenPath(root=root, tokens=full.tobytes(), block_tokens=width, layout=layout)


def _are_ids(array: TokenArray) -> bool:
    if array.ndim != 1 or not array.size:
        return array.ndim == 1
    if array.dtype.kind not in 'iu' or array[array.argmin()] < 0:  # argmin() costs a fifth of min() here
        return False
    return array.dtype == _IDS or bool(array[array.argmax()] < 2**31)


@lru_cache(maxsize=256)
def _checked(namespace: KVNamespace) -> tuple[bytes, BlockLayout]:
    """Digest and layout of a namespace that is possible."""
    sizes = (namespace.num_layers, namespace.num_kv_heads, namespace.head_dim, namespace.block_tokens)
    if min(sizes) <= 0:
        raise BadRequestError(f'namespace: expected sizes > 0, got {namespace}')
    try:
        block_bytes = namespace.block_bytes
    except TypeError as error:
        raise BadRequestError(f'namespace.dtype: expected a numpy name, got {namespace.dtype!r}') from error
    if namespace.bits not in (2, 4, 8, 16):
        raise BadRequestError(f'namespace.bits: expected 2, 4, 8 or 16, got {namespace.bits}')
    if block_bytes <= 0 or np.dtype(namespace.dtype).hasobject:
        raise BadRequestError(f'namespace.dtype: expected elements of one byte or more, got {namespace.dtype!r}')
    return namespace.digest, namespace.layout
