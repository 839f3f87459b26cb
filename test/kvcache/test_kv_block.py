"""Keys and paths: equal in every process, different for everything that must not be mixed."""

from dataclasses import replace
import hashlib

from hash_seeds import outputs
from hypothesis import given
from hypothesis import strategies as st
import numpy as np
import pytest

from kv_agent_ros.errors import BadRequestError
from kv_agent_ros.kvcache.block import KVNamespace, block_key, block_keys
from kv_agent_ros.kvcache.content import content_digest
from kv_agent_ros.kvcache.path import token_path

NAMESPACE = KVNamespace(
    model='m', revision='r', dtype='float16', num_layers=2, num_kv_heads=2, head_dim=8, block_tokens=4
)
PROGRAM = """
from kv_agent_ros.kvcache.block import KVNamespace, block_keys
namespace = KVNamespace(
    model='m', revision='r', dtype='float16', num_layers=2, num_kv_heads=2, head_dim=8, block_tokens=4
)
print(b''.join(block_keys(namespace, range(12))).hex())
"""


def test_keys_are_equal_in_processes_with_different_hash_seeds() -> None:
    assert outputs(PROGRAM) == [b''.join(block_keys(NAMESPACE, range(12))).hex()] * 2


@given(tokens=st.lists(st.integers(0, 2**31 - 1), max_size=40))
def test_a_path_has_the_keys_of_its_tokens(tokens: list[int]) -> None:
    assert list(token_path(NAMESPACE, np.array(tokens, np.int32)).keys()) == block_keys(NAMESPACE, tokens)


@pytest.mark.parametrize(
    'change',
    [
        {'model': 'mr', 'revision': ''},
        {'revision': 's'},
        {'dtype': 'float32'},
        {'num_layers': 3},
        {'num_kv_heads': 1, 'head_dim': 16},
        {'adapter': 'lora@1'},
        {'tenant': 'lora@1'},
        {'block_tokens': 2},
        {'bits': 4},
        {'variant': 'sparse'},
    ],
)
def test_any_change_of_the_namespace_changes_every_key(change: dict[str, str | int]) -> None:
    other = replace(NAMESPACE, **change)  # type: ignore[arg-type]
    assert not set(block_keys(NAMESPACE, range(12))) & set(block_keys(other, range(12)))


def test_adapter_and_tenant_of_the_same_name_do_not_collide() -> None:
    assert replace(NAMESPACE, adapter='x').digest != replace(NAMESPACE, tenant='x').digest


@given(first=st.text(max_size=4), second=st.text(max_size=4), cut=st.integers(0, 8))
def test_fields_that_read_the_same_in_a_row_do_not_collide(first: str, second: str, cut: int) -> None:
    both = first + second
    moved = replace(NAMESPACE, adapter=both[:cut], tenant=both[cut:])
    is_same = (first, second) == (both[:cut], both[cut:])
    assert (replace(NAMESPACE, adapter=first, tenant=second).digest == moved.digest) == is_same


def test_equal_bytes_have_different_digests_as_block_and_as_content() -> None:
    parent, tokens = bytes(32), bytes(16)
    untagged = hashlib.sha256(parent + tokens).digest()
    assert len({untagged, block_key(parent, tokens), content_digest(parent + tokens)}) == 3


@given(tokens=st.lists(st.integers(0, 2**31 - 1), max_size=40), num_blocks=st.integers(0, 12))
def test_head_of_a_path_has_the_first_blocks_and_keys(tokens: list[int], num_blocks: int) -> None:
    whole = token_path(NAMESPACE, tokens)
    keys = whole.keys()
    for path in (whole, token_path(NAMESPACE, tokens)):  # with and without keys that are known already
        head = path.head(num_blocks)
        assert head.keys() == keys[:num_blocks]
        assert head.tokens == b''.join(whole.block(index) for index in range(min(num_blocks, whole.num_blocks)))
        assert (head.root, head.layout, head.block_tokens) == (whole.root, whole.layout, 4)


@pytest.mark.parametrize('dtype', ['int8', 'uint8', 'uint16', 'int64', 'uint64', '>i4', '<i4'])
def test_a_path_is_the_same_for_ids_of_any_integer_type_and_stride(dtype: str) -> None:
    tokens = np.arange(24).astype(dtype)
    assert token_path(NAMESPACE, tokens).tokens == np.arange(24, dtype='<i4').tobytes()
    assert token_path(NAMESPACE, tokens[::2]).tokens == np.arange(0, 24, 2, dtype='<i4').tobytes()


@given(tokens=st.lists(st.integers(-(2**33), 2**33), min_size=1, max_size=20))
def test_ids_are_refused_exactly_when_one_is_out_of_range(tokens: list[int]) -> None:
    if all(0 <= token < 2**31 for token in tokens):
        assert token_path(NAMESPACE, tokens).num_blocks == len(tokens) // 4
    else:
        with pytest.raises(BadRequestError, match='tokens: expected'):
            token_path(NAMESPACE, tokens)


def test_one_changed_token_changes_all_later_keys_and_no_earlier_one() -> None:
    before, after = block_keys(NAMESPACE, range(12)), block_keys(NAMESPACE, [0, 1, 2, 3, 4, 99, 6, 7, 8, 9, 10, 11])
    assert [one == other for one, other in zip(before, after, strict=True)] == [True, False, False]


@pytest.mark.parametrize('tokens', [[-1], [2**31], [[1, 2]], [1.5]])
def test_impossible_tokens_are_refused(tokens: list[int]) -> None:
    with pytest.raises(BadRequestError, match='tokens: expected'):
        token_path(NAMESPACE, tokens)


@pytest.mark.parametrize('change', [{'block_tokens': 0}, {'num_layers': -1}, {'dtype': 'float33'}, {'dtype': 'O'}])
def test_impossible_namespaces_are_refused(change: dict[str, str | int]) -> None:
    with pytest.raises(BadRequestError, match='namespace'):
        token_path(replace(NAMESPACE, **change), [1, 2, 3, 4])  # type: ignore[arg-type]
