"""What the layers of a hybrid model need of a cached prefix: everything, a window, or one state.

A prefix of n blocks can be continued when each component has its data for the last `span_blocks` of them: all for full
attention, those in the window for sliding windows, the last one for a recurrent state. This one number says what makes
a boundary valid, what a lock holds and what may go. After the unified radix cache of SGLang.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
import hashlib
import struct
import sys

from kv_agent_ros.errors import BadRequestError
from kv_agent_ros.kvcache.block import BlockLayout, block_key

FULL = 'full'


@dataclass(frozen=True, kw_only=True, slots=True)
class Component:
    """One kind of layer of a model and what a block stores for it."""

    name: str
    layout: BlockLayout  # of one block's part
    span_blocks: int  # how many blocks before a boundary must have their part

    def needed(self, num_blocks: int) -> range:
        """Which blocks of a prefix of `num_blocks` must have their part."""
        return range(max(0, num_blocks - self.span_blocks), num_blocks)


def full_attention(layout: BlockLayout) -> Component:
    """Keys and values that every later token attends to."""
    return Component(name=FULL, layout=layout, span_blocks=sys.maxsize)


def sliding_window(layout: BlockLayout, window_tokens: int, name: str = 'swa') -> Component:
    """Keys and values that a token attends to when they are its own or of the `window_tokens` - 1 before it."""
    if window_tokens < 1:
        raise BadRequestError(f'window_tokens: expected at least 1, got {window_tokens}')
    block_tokens = layout.shape[3]
    return Component(name=name, layout=layout, span_blocks=-(-(window_tokens - 1) // block_tokens))


def state_snapshot(num_elements: int, dtype: str, name: str = 'mamba') -> Component:
    """A recurrent state as it is after the last token of a block, packed by the engine."""
    layout = BlockLayout(shape=(1, 1, 1, 1, num_elements), dtype=dtype)
    return Component(name=name, layout=layout, span_blocks=1)


@lru_cache(maxsize=256)
def component_tag(component: Component) -> bytes:
    """Stands in a part's record where a block has its tokens; differs for another name, layout or span.

    33 bytes, which are never whole tokens, so that no block can have the key of a part.
    """
    layout = component.layout
    chain = hashlib.sha256(b'kv_agent_ros/component/1')
    for value in (component.name, layout.shape, layout.dtype, layout.bits, component.span_blocks):
        text = str(value).encode()
        chain.update(struct.pack('<I', len(text)) + text)
    return b'c' + chain.digest()


def component_key(key: bytes, component: Component) -> bytes:
    """Under which key a store keeps the part of the block `key`: that of a block after it whose tokens are the tag.

    So stores that verify keys need no special case. Full attention's is the block's own, as in other models.
    """
    return key if component.name == FULL else block_key(key, component_tag(component))


@dataclass(frozen=True, kw_only=True, slots=True)
class Part:
    """One component's share of one block. `index` counts the blocks before it: its first token's absolute position."""

    component: Component
    block_key: bytes
    index: int

    @property
    def key(self) -> bytes:
        """Its key in every store."""
        return component_key(self.block_key, self.component)


def deepest_boundary(num_blocks: int, components: Sequence[Component], has: Callable[[Component, int], bool]) -> int:
    """The longest prefix of at most `num_blocks` that all components accept; asks for each part once at most."""
    end = num_blocks
    checked = [num_blocks] * len(components)  # the parts from here to `end` are there
    turn = 0
    while turn < len(components):
        component = components[turn]
        first = component.needed(end).start
        block = min(checked[turn], end)
        while block > first and has(component, block - 1):
            block -= 1
        checked[turn] = block
        turn += 1
        if block > first:  # every boundary above the hole needs it
            end, turn = block - 1, 0
    return end
