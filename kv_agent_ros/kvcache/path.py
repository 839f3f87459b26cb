"""A token sequence as the trees see it: full blocks under a namespace."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt

from kv_agent_ros.errors import BadRequestError
from kv_agent_ros.kvcache.block import BlockLayout, KVNamespace, TokenArray, block_key

BlockTokens = npt.NDArray[np.int32]  # (num_blocks, block_tokens)


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class TokenPath:
    """The full blocks of a prompt, first to last. `root` is the namespace digest."""

    root: bytes = b''
    blocks: BlockTokens = field(default_factory=lambda: np.zeros((0, 1), dtype=np.int32))
    layout: BlockLayout = BlockLayout(shape=(2, 0, 0, 0, 0), dtype='uint8')

    @property
    def block_bytes(self) -> int:
        """Size of one block as the engine writes it."""
        return self.layout.num_bytes

    def head(self, num_blocks: int) -> 'TokenPath':
        """The first blocks of the path."""
        return replace(self, blocks=self.blocks[:num_blocks])

    def keys(self) -> tuple[bytes, ...]:
        """The blocks' keys, the same as block_keys() gives."""
        keys = []
        parent = self.root
        for block in self.blocks:
            parent = block_key(parent, block.tobytes())
            keys.append(parent)
        return tuple(keys)


def token_path(namespace: KVNamespace, tokens: TokenArray | Sequence[int]) -> TokenPath:
    """The full blocks of `tokens`; the partial tail has none. Raises BadRequestError for impossible input."""
    sizes = (namespace.num_layers, namespace.num_kv_heads, namespace.head_dim, namespace.block_tokens)
    if min(sizes) <= 0:
        raise BadRequestError(f'namespace: expected sizes > 0, got {namespace}')
    try:
        block_bytes = namespace.block_bytes
    except TypeError as error:
        raise BadRequestError(f'namespace.dtype: expected a numpy name, got {namespace.dtype!r}') from error
    if namespace.bits not in (2, 4, 8, 16):
        raise BadRequestError(f'namespace.bits: expected 2, 4, 8 or 16, got {namespace.bits}')
    if block_bytes <= 0:
        raise BadRequestError(f'namespace.dtype: expected elements of one byte or more, got {namespace.dtype!r}')
    array = np.asarray(tokens)
    is_integral = array.ndim == 1 and (array.dtype.kind in 'iu' or array.size == 0)
    if not is_integral or (array.size and not 0 <= array.min() <= array.max() < 2**31):
        raise BadRequestError(f'tokens: expected ids in 0..2147483647 in one row, got {array.dtype} {array.shape}')
    width = namespace.block_tokens
    num_blocks = len(array) // width
    blocks = array[: num_blocks * width].astype('<i4').reshape(num_blocks, width)
    return TokenPath(root=namespace.digest, blocks=blocks, layout=namespace.layout)
