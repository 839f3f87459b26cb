"""What a memory accepts: sizes, characters and numbers, checked before anything is embedded or written."""

import math

from kv_agent_ros.errors import BadRequestError
from kv_agent_ros.memory.base import MemoryRecord

MAX_ID_CHARS = 200
MAX_TEXT_CHARS = 2_000  # about 500 tokens, what the embedder reads in one window
MAX_PAYLOAD_CHARS = 64_000
MAX_LIMIT = 100


def check_record(record: MemoryRecord) -> None:
    """Raises BadRequestError naming the first field that is not acceptable."""
    check_text('record_id', record.record_id, MAX_ID_CHARS)
    check_text('text', record.text, MAX_TEXT_CHARS)
    check_robot_id(record.robot_id)
    _check_characters('payload', record.payload, MAX_PAYLOAD_CHARS)
    if not math.isfinite(record.stamp_s):
        raise BadRequestError(f'stamp_s: expected seconds, got {record.stamp_s}')


def check_query(text: str, robot_id: str, limit: int) -> None:
    """Raises BadRequestError naming the first argument that is not acceptable."""
    check_text('text', text, MAX_TEXT_CHARS)
    check_robot_id(robot_id)
    if isinstance(limit, bool) or not 1 <= limit <= MAX_LIMIT:
        raise BadRequestError(f'limit: expected 1 to {MAX_LIMIT}, got {limit!r}')


def check_text(name: str, text: str, max_chars: int) -> None:
    """Raises BadRequestError when the text is empty, too long or not text."""
    if not text.strip():
        raise BadRequestError(f'{name}: expected some text, got none')
    _check_characters(name, text, max_chars)


def check_robot_id(robot_id: str) -> None:
    """Raises BadRequestError when the id is too long or not text; '' (SHARED) is acceptable."""
    _check_characters('robot_id', robot_id, MAX_ID_CHARS)


def _check_characters(name: str, text: str, max_chars: int) -> None:
    if len(text) > max_chars:
        raise BadRequestError(f'{name}: expected at most {max_chars} characters, got {len(text)}; shorten it')
    if any(char == '\0' or '\ud800' <= char <= '\udfff' for char in text):
        raise BadRequestError(f'{name}: expected valid text, got a NUL or half a surrogate pair')
