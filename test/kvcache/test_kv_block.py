"""Keys and paths: equal in every process, different for everything that must not be mixed."""

from dataclasses import replace
import os
import subprocess
import sys

from hypothesis import given
from hypothesis import strategies as st
import numpy as np
import pytest

from kv_agent_ros.errors import BadRequestError
from kv_agent_ros.kvcache.block import KVNamespace, block_keys
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
    outputs = [
        subprocess.run(
            [sys.executable, '-c', PROGRAM],
            env={**os.environ, 'PYTHONHASHSEED': seed, 'PYTHONPATH': os.pathsep.join(sys.path)},
            capture_output=True,
            text=True,
            timeout=60,
            check=True,
        ).stdout.strip()
        for seed in ('1', '2')
    ]
    assert outputs == [b''.join(block_keys(NAMESPACE, range(12))).hex()] * 2


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
    ],
)
def test_any_change_of_the_namespace_changes_every_key(change: dict[str, str | int]) -> None:
    other = replace(NAMESPACE, **change)  # type: ignore[arg-type]
    assert not set(block_keys(NAMESPACE, range(12))) & set(block_keys(other, range(12)))


def test_adapter_and_tenant_of_the_same_name_do_not_collide() -> None:
    assert replace(NAMESPACE, adapter='x').digest != replace(NAMESPACE, tenant='x').digest


def test_one_changed_token_changes_all_later_keys_and_no_earlier_one() -> None:
    before, after = block_keys(NAMESPACE, range(12)), block_keys(NAMESPACE, [0, 1, 2, 3, 4, 99, 6, 7, 8, 9, 10, 11])
    assert [one == other for one, other in zip(before, after, strict=True)] == [True, False, False]


@pytest.mark.parametrize('tokens', [[-1], [2**31], [[1, 2]], [1.5]])
def test_impossible_tokens_are_refused(tokens: list[int]) -> None:
    with pytest.raises(BadRequestError, match='tokens: expected'):
        token_path(NAMESPACE, tokens)


@pytest.mark.parametrize('change', [{'block_tokens': 0}, {'num_layers': -1}, {'dtype': 'float33'}])
def test_impossible_namespaces_are_refused(change: dict[str, str | int]) -> None:
    with pytest.raises(BadRequestError, match='namespace'):
        token_path(replace(NAMESPACE, **change), [1, 2, 3, 4])  # type: ignore[arg-type]
