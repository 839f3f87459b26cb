"""Images and other contents in a token sequence: ids that stand for what is behind the placeholder tokens.

Two prompts with the same text and different images have the same placeholders; with ids from the content's hash in
their place the tree, the keys and every tier tell them apart, without knowing of images.
"""

from collections.abc import Sequence
from dataclasses import dataclass
import hashlib
import struct

import numpy as np

from kv_agent_ros.errors import BadRequestError
from kv_agent_ros.kvcache.block import TokenArray

_ID_BITS = 30
_FIRST_ID = 1 << _ID_BITS  # text ids are below
_MIN_TOKENS = 5  # 150 bits of the hash


@dataclass(frozen=True, kw_only=True, slots=True)
class ContentSpan:
    """The placeholder tokens start..start + num_tokens (exclusive) of one content."""

    start: int
    num_tokens: int
    digest: bytes  # content_digest()


def content_digest(content: bytes) -> bytes:
    """SHA-256 of a content as the model gets it, 32 bytes."""
    return hashlib.sha256(b'kv_agent_ros/content/1' + content).digest()


def with_contents(tokens: TokenArray | Sequence[int], spans: Sequence[ContentSpan]) -> TokenArray:
    """A copy of the tokens with ids 2**30..2**31 (exclusive) in place of the placeholders.

    The ids depend on the content and on how many tokens it has. A prefix that ends inside a content is told apart by
    30 bits per token. Raises BadRequestError for text ids that are not below 2**30, for spans outside the tokens or
    over each other, and for contents of less than 5 tokens, whose hash would be too short.
    """
    array = np.asarray(tokens)
    is_integral = array.ndim == 1 and (array.dtype.kind in 'iu' or not array.size)
    if not is_integral or (array.size and not 0 <= array.min() <= array.max() < _FIRST_ID):
        raise BadRequestError(f'tokens: expected ids in 0..{_FIRST_ID - 1} in one row, got {array.dtype} {array.shape}')
    named = array.astype(np.int32)
    end = 0
    for span in sorted(spans, key=lambda span: span.start):
        _check(span, end, len(named))
        end = span.start + span.num_tokens
        named[span.start : end] = _ids(span)
    return named


def _check(span: ContentSpan, first: int, last: int) -> None:
    if span.num_tokens < _MIN_TOKENS:
        raise BadRequestError(f'content: expected {_MIN_TOKENS} placeholder tokens or more, got {span.num_tokens}')
    if span.start < first or span.start + span.num_tokens > last:
        raise BadRequestError(f'content: expected a span within tokens {first}..{last}, got {span}')
    if len(span.digest) != hashlib.sha256().digest_size:
        raise BadRequestError(f'content: expected a digest of 32 bytes, got {len(span.digest)}')


def _ids(span: ContentSpan) -> TokenArray:
    seed = b'kv_agent_ros/content_ids/1' + struct.pack('<Q', span.num_tokens) + span.digest
    words = np.frombuffer(hashlib.shake_256(seed).digest(4 * span.num_tokens), dtype='<u4')
    return (words % _FIRST_ID + _FIRST_ID).astype(np.int32)
