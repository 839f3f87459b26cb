"""Images behind equal placeholders: different ids, keys and matches, the same in every process."""

from hash_seeds import outputs
from hypothesis import given
from hypothesis import strategies as st
import numpy as np
import pytest

from kv_agent_ros.errors import BadRequestError
from kv_agent_ros.kvcache.block import KVNamespace, block_keys
from kv_agent_ros.kvcache.content import ContentSpan, content_digest, with_contents
from kv_agent_ros.kvcache.eviction import LruPolicy
from kv_agent_ros.kvcache.path import token_path
from kv_agent_ros.kvcache.radix_tree import RadixPrefixCache

NAMESPACE = KVNamespace(
    model='m', revision='r', dtype='float16', num_layers=2, num_kv_heads=2, head_dim=8, block_tokens=4
)
PLACEHOLDER = 7
PROMPT = [1, 2, 3, 4, *[PLACEHOLDER] * 8, 5, 6, 7, 8]
PROGRAM = """
from kv_agent_ros.kvcache.content import ContentSpan, content_digest, with_contents
print(with_contents([7] * 6, [ContentSpan(start=0, num_tokens=6, digest=content_digest(b'picture'))]).tolist())
"""


def span(content: bytes, start: int = 4, num_tokens: int = 8) -> ContentSpan:
    return ContentSpan(start=start, num_tokens=num_tokens, digest=content_digest(content))


def test_two_images_with_the_same_text_have_different_keys_from_the_image_on() -> None:
    one, other = (block_keys(NAMESPACE, with_contents(PROMPT, [span(image)])) for image in (b'cat', b'dog'))
    assert [a == b for a, b in zip(one, other, strict=True)] == [True, False, False, False]


def test_a_tree_serves_an_image_only_to_those_who_show_the_same() -> None:
    tree = RadixPrefixCache(LruPolicy())
    tree.insert(token_path(NAMESPACE, with_contents(PROMPT, [span(b'cat')])))
    assert tree.match(token_path(NAMESPACE, with_contents(PROMPT, [span(b'cat')]))) == 4
    assert tree.match(token_path(NAMESPACE, with_contents(PROMPT, [span(b'dog')]))) == 1
    assert tree.match(token_path(NAMESPACE, PROMPT)) == 1


def test_two_images_that_change_places_are_another_prompt() -> None:
    prompt = [PLACEHOLDER] * 10
    one = with_contents(prompt, [span(b'a', 0, 5), span(b'b', 5, 5)])
    other = with_contents(prompt, [span(b'b', 0, 5), span(b'a', 5, 5)])
    assert not (one == other).any()


def test_an_image_in_more_tokens_is_another_content() -> None:
    small, large = (with_contents([PLACEHOLDER] * 8, [span(b'a', 0, size)]) for size in (5, 8))
    assert not (small[:5] == large[:5]).any()


def test_text_stays_as_it_is() -> None:
    named = with_contents(PROMPT, [span(b'cat')])
    assert [*named[:4].tolist(), *named[12:].tolist()] == [1, 2, 3, 4, 5, 6, 7, 8]
    assert with_contents(PROMPT, []).tolist() == PROMPT


@given(content=st.binary(max_size=40), num_tokens=st.integers(5, 60))
def test_ids_of_contents_are_never_ids_of_text(content: bytes, num_tokens: int) -> None:
    ids = with_contents([0] * num_tokens, [span(content, 0, num_tokens)])
    assert ids.dtype == np.int32
    assert int(ids.min()) >= 2**30


def test_ids_of_contents_are_equal_in_processes_with_different_hash_seeds() -> None:
    assert outputs(PROGRAM) == [str(with_contents([7] * 6, [span(b'picture', 0, 6)]).tolist())] * 2


def test_a_content_of_fewer_than_five_tokens_is_refused() -> None:
    with pytest.raises(BadRequestError, match='expected 5 placeholder tokens or more, got 4'):
        with_contents(PROMPT, [span(b'cat', 4, 4)])


def test_text_that_could_be_a_content_is_refused() -> None:
    with pytest.raises(BadRequestError, match='expected ids in 0'):
        with_contents([1, 2**30], [])


@pytest.mark.parametrize('tokens', [[-1], [[1, 2]], [1.5]])
def test_impossible_text_is_refused(tokens: list[int]) -> None:
    with pytest.raises(BadRequestError, match='tokens: expected ids'):
        with_contents(tokens, [])


@pytest.mark.parametrize('spans', [[span(b'a', 12, 5)], [span(b'a', -1, 5)], [span(b'a', 0, 6), span(b'b', 5, 5)]])
def test_spans_outside_the_tokens_or_over_each_other_are_refused(spans: list[ContentSpan]) -> None:
    with pytest.raises(BadRequestError, match='expected a span within tokens'):
        with_contents(PROMPT, spans)


def test_a_digest_of_another_hash_is_refused() -> None:
    with pytest.raises(BadRequestError, match='expected a digest of 32 bytes, got 8'):
        with_contents(PROMPT, [ContentSpan(start=0, num_tokens=8, digest=bytes(8))])
