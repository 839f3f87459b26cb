from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st
import numpy as np
import pytest

from kv_agent_ros.errors import BadRequestError, StoreError
from kv_agent_ros.kvcache.block import KVNamespace
from kv_agent_ros.kvcache.importance import rotate
from kv_agent_ros.kvcache.sparse_kv import SparseKV, pack, packed_blocks, unpack

NAMESPACE = KVNamespace(
    model='tiny', revision='1', dtype='float32', num_layers=2, num_kv_heads=3, head_dim=8, block_tokens=4
)
FREQUENCIES = 100.0 ** -(np.arange(0, 8, 2) / 8)


def rows_of(num_tokens: int, seed: int = 0) -> np.ndarray:
    """Keys and values, (2, num_layers, num_kv_heads, num_tokens, head_dim)."""
    return np.random.default_rng(seed).standard_normal((2, 2, 3, num_tokens, 8)).astype(np.float32)


def ragged(num_tokens: int, seed: int = 1) -> tuple[SparseKV, np.ndarray]:
    kept = np.random.default_rng(seed).random((2, 3, num_tokens)) < np.linspace(0.1, 0.9, 6).reshape(2, 3, 1)
    return SparseKV.full(*rows_of(num_tokens)).taken(kept), kept


def test_kept_rows_stay_in_order_with_the_positions_they_had() -> None:
    kv, kept = ragged(50)
    keys, values = rows_of(50)

    for layer, head in np.ndindex(2, 3):
        count = kv.counts[layer, head]
        expected = kept[layer, head].nonzero()[0]
        assert kv.positions[layer, head, :count].tolist() == expected.tolist()
        assert (kv.keys[layer, head, :count] == keys[layer, head, expected]).all()
        assert (kv.values[layer, head, :count] == values[layer, head, expected]).all()
        assert not kv.keys[layer, head, count:].any()
    assert not kv.is_full
    assert kv.num_bytes == kept.sum() * (2 * 8 * 4 + 4)


def test_what_was_taken_is_a_copy() -> None:
    keys, values = rows_of(10)
    kept = SparseKV.full(keys, values).taken(np.ones((2, 3, 10), dtype=np.bool_))

    keys[:] = values[:] = 0

    assert kept.keys.any()
    assert kept.values.any()


def test_later_tokens_follow_in_every_head_at_their_position() -> None:
    kv, kept = ragged(50)

    longer = kv.extended(*rows_of(7, seed=9))

    assert longer.num_tokens == 57
    assert (longer.counts == kv.counts + 7).all()
    for layer, head in np.ndindex(2, 3):
        count = longer.counts[layer, head]
        assert longer.positions[layer, head, count - 7 : count].tolist() == list(range(50, 57))
        assert (longer.keys[layer, head, count - 7 : count] == rows_of(7, seed=9)[0, layer, head]).all()
        assert longer.positions[layer, head, : count - 7].tolist() == kept[layer, head].nonzero()[0].tolist()


def test_keys_from_zero_stand_where_a_shorter_session_would_have_put_them() -> None:
    content = rows_of(50)[0]
    everywhere = np.broadcast_to(np.arange(50), content.shape[:3])
    _, kept = ragged(50)
    kv = SparseKV.full(rotate(content, everywhere, FREQUENCIES), content).taken(kept)

    moved = kv.keys_from_zero(FREQUENCIES)

    unrotated = SparseKV.full(content, content).taken(kept).keys
    counted = np.broadcast_to(np.arange(unrotated.shape[2]), unrotated.shape[:3])
    assert moved[kv.in_use] == pytest.approx(rotate(unrotated, counted, FREQUENCIES)[kv.in_use], abs=1e-4)


@settings(deadline=None, max_examples=40)
@given(
    num_tokens=st.integers(1, 60),
    seed=st.integers(0, 50),
    block_tokens=st.integers(1, 33),
    dtype=st.sampled_from(['float32', 'float16']),
)
def test_unpack_gives_back_what_was_packed(num_tokens: int, seed: int, block_tokens: int, dtype: str) -> None:
    namespace = replace(NAMESPACE, block_tokens=block_tokens, dtype=dtype)
    kv, _ = ragged(num_tokens, seed)

    blocks = pack(kv, namespace)
    again = unpack(blocks, namespace)

    assert blocks.shape == (packed_blocks(int(kv.counts.sum()), namespace), namespace.block_bytes)
    assert again.num_tokens == num_tokens
    assert (again.counts == kv.counts).all()
    assert (again.positions == kv.positions).all()
    assert (again.keys == kv.keys.astype(dtype)).all()
    assert (again.values == kv.values.astype(dtype)).all()


def test_ragged_heads_are_packed_without_padding() -> None:
    kv, _ = ragged(500)

    assert pack(kv, NAMESPACE).size < kv.num_bytes + 2 * NAMESPACE.block_bytes
    assert kv.num_bytes < 0.6 * SparseKV.full(*rows_of(500)).num_bytes


@pytest.mark.parametrize('offset', [8, 20])
def test_blocks_with_other_counts_are_refused(offset: int) -> None:
    blocks = pack(ragged(50)[0], NAMESPACE)
    blocks.reshape(-1)[offset + 3] ^= 0x80

    with pytest.raises(StoreError, match='sparse KV'):
        unpack(blocks, NAMESPACE)


def test_blocks_of_which_some_are_missing_are_refused() -> None:
    blocks = pack(ragged(50)[0], NAMESPACE)

    for part in (blocks[:-1], blocks[:0]):
        with pytest.raises(StoreError, match='sparse KV'):
            unpack(part, NAMESPACE)


@pytest.mark.parametrize('broken', [np.nan, np.inf])
def test_keys_or_values_that_are_no_numbers_are_refused(broken: float) -> None:
    for which in (0, 1):
        rows = rows_of(5)
        rows[which, 1, 2, 3, 4] = broken
        with pytest.raises(BadRequestError, match='finite'):
            SparseKV.full(*rows)


def test_tokens_of_another_model_do_not_follow() -> None:
    with pytest.raises(BadRequestError, match='layers and heads'):
        ragged(50)[0].extended(*rows_of(7)[:, :, :2])
