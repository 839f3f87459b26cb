"""Pages of SGLang's host pools as blocks, in one order of elements whatever the pool's own is.

So engines with different host layouts share pages. What no codec understands is handed over byte by byte.
"""

import numpy as np
from sglang.srt.mem_cache.pool_host.base import HostKVCache
from sglang.srt.mem_cache.pool_host.mha import MHATokenToKVPoolHost
import torch

from kv_agent_ros.inference.page_store import PageLines, opaque_layout
from kv_agent_ros.kvcache.block import BlockLayout
from kv_agent_ros.kvcache.storage.base import ByteArray

FLOATS = {torch.float32: 'float32', torch.float16: 'float16', torch.bfloat16: 'float32'}

# Where a pool's page has (keys or values, layer, head, token, channel); see MHATokenToKVPoolHost.get_data_page.
AXES = {
    'layer_first': (0, 1, 3, 2, 4),
    'page_first': (0, 2, 3, 1, 4),
    'page_first_direct': (0, 1, 3, 2, 4),
    'page_head': (0, 3, 1, 2, 4),
}


class HostPages:
    """Pages of one of SGLang's host pools as blocks: floats where a codec is to work on them, else bytes."""

    def __init__(self, pool: HostKVCache, bits: int) -> None:
        self._pool = pool
        self.page_tokens = int(pool.page_size)
        self._dtype = pool.get_dummy_flat_data_page().dtype
        is_known = type(pool) is MHATokenToKVPoolHost and pool.layout in AXES and self._dtype in FLOATS
        self._axes = AXES[pool.layout] if is_known else ()
        is_exact = bits == 32 or (bits == 16 and self._dtype is torch.bfloat16)
        self._float = torch.float16 if self._dtype is torch.float16 else torch.float32
        self._as_floats = is_known and not is_exact
        self.layout = self._block_layout(bits)
        self._floor = self._line_floor()

    def read(self, index: int) -> ByteArray:
        """The page whose first slot is `index`."""
        page = self._in_order(index) if self._axes else self._pool.get_data_page(index, flat=True)
        if self._as_floats:
            page = page.to(self._float)
        read: ByteArray = page.contiguous().reshape(-1).view(torch.uint8).numpy()
        return read

    def write(self, index: int, block: ByteArray) -> None:
        """Fill the page whose first slot is `index`."""
        values = torch.from_numpy(block).view(self._float if self._as_floats else self._dtype)
        if self._axes:
            page = self._in_order(index)
            page.copy_(values.view(page.shape))
        else:
            self._pool.set_from_flat_data_page(index, values)

    @property
    def has_lines(self) -> bool:
        """Whether its memory is lines of one head's vector of one token each, in a type that codecs write."""
        return len(self._floor.memory) > 0

    def lines(self, indices: torch.Tensor) -> PageLines:
        """The lines of the pages whose slots these are, in their order."""
        floor = self._floor
        numbers = indices[:: self.page_tokens].numpy() // self.page_tokens
        return PageLines(memory=floor.memory, pattern=floor.pattern, starts=floor.starts[0] + numbers * floor.starts[1])

    def _line_floor(self) -> PageLines:
        """Where the first page starts, and how many lines further every next one; no memory where there are none."""
        none = np.zeros(0, np.int64)
        if not self._as_floats or self._dtype is torch.bfloat16:
            return PageLines(memory=np.zeros((0, 1), np.float32), pattern=none, starts=none)
        page, channels = self._in_order(0), int(self._pool.head_dim)
        first, second = page.storage_offset(), self._in_order(self.page_tokens).storage_offset()
        strides = page.stride()[:-1]
        if page.stride(4) != 1 or any(number % channels for number in (first, second, *strides)):
            return PageLines(memory=np.zeros((0, 1), np.float32), pattern=none, starts=none)
        whole = torch.empty(0, dtype=self._dtype).set_(page.untyped_storage())
        pattern = np.zeros((), np.int64)
        for length, stride in zip(page.shape[:-1], strides, strict=True):
            pattern = pattern[..., None] + np.arange(length) * (stride // channels)
        return PageLines(
            memory=whole[: len(whole) // channels * channels].view(-1, channels).numpy(),
            pattern=pattern.reshape(2, -1),
            starts=np.array([first, second - first]) // channels,
        )

    def _in_order(self, index: int) -> torch.Tensor:
        """The page in the pool's own memory as (2, layers, heads, tokens, channels)."""
        page: torch.Tensor = self._pool.get_data_page(index, flat=False)
        return (page.squeeze(1) if page.dim() > len(self._axes) else page).permute(self._axes)

    def _block_layout(self, bits: int) -> BlockLayout:
        if not self._as_floats:
            page = self._pool.get_dummy_flat_data_page()
            return opaque_layout(page.numel() * page.element_size())
        pool = self._pool
        shape = (2, pool.layer_num, pool.head_num, pool.page_size, pool.head_dim)
        return BlockLayout(shape=shape, dtype=FLOATS[self._dtype], bits=bits)
