"""Which codec writes which block of a prompt: sinks and the recent window as they are, the rest with fewer bits.

What a block is written with is decided when it goes down, from its place in the path as it is then. A block that was
recent then stays exact, so that at every length, also right after a flush, the last tokens are exact.
"""

from dataclasses import dataclass

import numpy as np

from kv_agent_ros.errors import BadRequestError
from kv_agent_ros.kvcache.block import BlockLayout
from kv_agent_ros.kvcache.codec import (
    CHANNEL_4,
    FLOAT_KIND,
    MIXED_4,
    PLAIN_8,
    ROTATED_2,
    ROTATED_4,
    BlockCodec,
    RawCodec,
    codec_named,
)

MIN_SINK_TOKENS = 4  # Xiao et al. 2024: what all later tokens look at when there is nothing to look at
CHANNEL_BLOCK_TOKENS = 16  # from here on, a middle and a step per channel in 4 bits each cost less than they gain,
LONG_BLOCK_TOKENS = 32  # and from here on in 8 bits


def codec_for(layout: BlockLayout) -> BlockCodec:
    """The best that keeps the bits that the layout asks for."""
    if layout.bits > 8 or np.dtype(layout.dtype).kind != FLOAT_KIND:
        return RawCodec()
    if layout.bits > 4:
        return PLAIN_8
    return _four_bits(layout.shape[3]) if layout.bits > 2 else ROTATED_2


def _four_bits(block_tokens: int) -> BlockCodec:
    if block_tokens >= LONG_BLOCK_TOKENS:
        return MIXED_4
    return CHANNEL_4 if block_tokens >= CHANNEL_BLOCK_TOKENS else ROTATED_4


@dataclass(frozen=True, kw_only=True, slots=True)
class CodecPolicy:
    """A CodecBook. Blocks with any of the first `sink_tokens` or of the last `recent_tokens` tokens are kept exact."""

    sink_tokens: int = MIN_SINK_TOKENS
    recent_tokens: int = 128

    def __post_init__(self) -> None:
        if self.sink_tokens < MIN_SINK_TOKENS or self.recent_tokens < 1:
            raise BadRequestError(
                f'codec policy: expected at least {MIN_SINK_TOKENS} sink tokens and 1 recent token, '
                f'got {self.sink_tokens} and {self.recent_tokens}'
            )

    def choose(self, layout: BlockLayout, index: int, num_blocks: int) -> BlockCodec:
        """See CodecBook."""
        block_tokens = layout.shape[3]
        is_sink = index * block_tokens < self.sink_tokens
        is_recent = (num_blocks - 1 - index) * block_tokens < self.recent_tokens
        return RawCodec() if is_sink or is_recent else codec_for(layout)

    def named(self, name: str) -> BlockCodec:
        """See CodecBook."""
        return codec_named(name)
