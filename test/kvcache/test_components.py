"""What a component needs of a prefix, where its parts are kept, and which boundary all components accept."""

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st
import pytest

from kv_agent_ros.errors import BadRequestError
from kv_agent_ros.kvcache.block import BlockLayout, KVNamespace, block_keys
from kv_agent_ros.kvcache.components import (
    Component,
    component_key,
    deepest_boundary,
    full_attention,
    sliding_window,
    state_snapshot,
)

LAYOUT = BlockLayout(shape=(2, 3, 1, 16, 8), dtype='float16')
NAMESPACE = KVNamespace(
    model='hybrid', revision='1', dtype='float16', num_layers=3, num_kv_heads=1, head_dim=8, block_tokens=2
)


def test_full_attention_needs_every_block() -> None:
    assert full_attention(LAYOUT).needed(1000) == range(1000)


@pytest.mark.parametrize(('window_tokens', 'num_blocks'), [(1, 0), (2, 1), (17, 1), (18, 2), (129, 8)])
def test_window_needs_the_blocks_that_the_next_token_can_see(window_tokens: int, num_blocks: int) -> None:
    assert sliding_window(LAYOUT, window_tokens).needed(20) == range(20 - num_blocks, 20)


def test_window_longer_than_the_prefix_needs_all_of_it() -> None:
    assert sliding_window(LAYOUT, 129).needed(3) == range(3)


def test_state_needs_the_last_block_alone() -> None:
    assert state_snapshot(8, 'float32').needed(20) == range(19, 20)


def test_window_without_a_token_is_refused() -> None:
    with pytest.raises(BadRequestError, match='expected at least 1, got 0'):
        sliding_window(LAYOUT, 0)


def test_parts_of_full_attention_have_the_keys_of_blocks() -> None:
    assert component_key(b'k' * 32, full_attention(LAYOUT)) == b'k' * 32


def test_parts_that_differ_in_name_layout_span_or_block_have_different_keys() -> None:
    window = sliding_window(LAYOUT, 33)
    others = [
        replace(window, name='swa2'),
        replace(window, span_blocks=3),
        replace(window, layout=replace(LAYOUT, shape=(2, 1, 3, 16, 8))),
        replace(window, layout=replace(LAYOUT, dtype='float32')),
        replace(window, layout=replace(LAYOUT, bits=4)),
        state_snapshot(768, 'float16', name='swa'),
    ]
    keys = {component_key(block, component) for block in (b'a' * 32, b'b' * 32) for component in (window, *others)}
    assert len(keys) == 14


def test_key_of_a_part_is_the_same_in_every_process_and_release() -> None:
    key = component_key(b'k' * 32, state_snapshot(8, 'float32'))
    assert key.hex() == '440a9aa3ba586addd8921ff489449761d129f30fa5f753e73d09d4400e50f421'


def test_equal_blocks_at_different_positions_have_different_parts() -> None:
    keys = block_keys(NAMESPACE, [7, 7, 7, 7, 7, 7])
    state = state_snapshot(8, 'float32')
    assert len({component_key(key, state) for key in keys}) == 3


@given(st.lists(st.lists(st.booleans(), min_size=12, max_size=12), min_size=3, max_size=3), st.integers(0, 12))
def test_deepest_boundary_is_the_longest_that_all_accept_and_no_part_is_asked_for_twice(
    presence: list[list[bool]], num_blocks: int
) -> None:
    spans = (1, 3, 5)
    components = [Component(name=str(span), layout=LAYOUT, span_blocks=span) for span in spans]
    asked: list[tuple[str, int]] = []

    def has(component: Component, index: int) -> bool:
        asked.append((component.name, index))
        return presence[components.index(component)][index]

    accepted = [
        end
        for end in range(num_blocks + 1)
        if all(all(row[max(0, end - span) : end]) for row, span in zip(presence, spans, strict=True))
    ]
    assert deepest_boundary(num_blocks, components, has) == accepted[-1]
    assert len(asked) == len(set(asked))
