"""Cache events in the form in which engines publish them: msgpack batches of stored, removed and cleared blocks.

What we write is the dialect of SGLang 0.5.23 and recent vLLM (maps with a `type`); what we read may also be the older
one (positional arrays). Whoever sent a batch is not trusted: anything malformed is a BadRequestError.
"""

from collections.abc import Sequence
from dataclasses import dataclass
import math
from typing import TypeVar

import msgspec

from kv_agent_ros.errors import BadRequestError
from kv_agent_ros.kvcache.block import EventKind, KVEvent, Tier

MEDIUM = {Tier.HBM: 'GPU', Tier.DRAM: 'CPU_PINNED', Tier.SSD: 'DISK', Tier.REMOTE: 'EXTERNAL'}
TIER = {medium: tier for tier, medium in MEDIUM.items()} | {'CPU': Tier.DRAM}

_STORED_FIELDS = ('block_hashes', 'parent_block_hash', 'token_ids', 'block_size', 'lora_id', 'medium')
_REMOVED_FIELDS = ('block_hashes', 'medium')
_MAX_BLOCKS = 1 << 20  # of one event
_TOKENS = range(-(1 << 31), 1 << 31)

T = TypeVar('T')


@dataclass(frozen=True, kw_only=True, slots=True)
class BlocksStored:
    """Consecutive blocks that an engine can serve now, after the block `parent_hash`, or first of a prefix: 0."""

    block_hashes: tuple[int, ...]
    token_ids: tuple[int, ...]  # (num_blocks * block_tokens,)
    block_tokens: int
    parent_hash: int = 0
    tier: Tier = Tier.HBM
    session_id: str = ''
    cache_salt: str = ''  # whose blocks they are; '' is everybody's
    adapter: str = ''  # LoRA name


@dataclass(frozen=True, kw_only=True, slots=True)
class BlocksRemoved:
    """Blocks that left one tier."""

    block_hashes: tuple[int, ...]
    tier: Tier = Tier.HBM


@dataclass(frozen=True, kw_only=True, slots=True)
class AllCleared:
    """Nothing is cached any more."""


WireEvent = BlocksStored | BlocksRemoved | AllCleared


@dataclass(frozen=True, kw_only=True, slots=True)
class EventBatch:
    """What one message says; `at_s` is the publisher's wall clock, `rank` its data-parallel rank."""

    at_s: float
    events: tuple[WireEvent, ...]
    rank: int = 0


def wire_hash(block_key: bytes) -> int:
    """A block key as the signed 64-bit number that the wire has room for."""
    return int.from_bytes(block_key[:8], 'big', signed=True)


def to_wire(event: KVEvent) -> WireEvent:
    """One change of our cache. A promoted or demoted block is one that its other tier stores, too."""
    hashes = tuple(wire_hash(key) for key in event.block_keys)
    if event.kind is EventKind.CLEARED:
        return AllCleared()
    if event.kind is EventKind.REMOVED:
        return BlocksRemoved(block_hashes=hashes, tier=event.tier)
    return BlocksStored(
        block_hashes=hashes,
        token_ids=tuple(memoryview(event.tokens).cast('i')),
        block_tokens=len(event.tokens) // 4 // max(1, len(hashes)),
        parent_hash=wire_hash(event.parent_key) if event.parent_key else 0,
        tier=event.tier,
        session_id=event.session.session_id,
    )


def encode_batch(batch: EventBatch) -> bytes:
    """The payload of one message: [timestamp, events, rank]."""
    return msgspec.msgpack.encode([batch.at_s, [_to_map(event) for event in batch.events], batch.rank])


def decode_batch(payload: bytes) -> EventBatch:
    """What a message says; events of unknown types are left out. Raises BadRequestError for anything malformed."""
    try:
        parts = msgspec.msgpack.decode(payload)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise BadRequestError(f'event batch: expected msgpack, got {len(payload)} other bytes') from error
    if not isinstance(parts, list) or len(parts) < 2:
        raise BadRequestError(f'event batch: expected [timestamp, events, rank], got {type(parts).__name__}')
    at_s, events, rank = [*parts, 0][:3]
    entries = _expect('events', events, list)
    if not math.isfinite(_expect('timestamp', at_s, (int, float))):
        raise BadRequestError(f'timestamp: expected seconds, got {at_s}')
    return EventBatch(
        at_s=float(at_s),
        events=tuple(event for entry in entries for event in _from_entry(entry)),
        rank=_expect('rank', rank or 0, int),
    )


def _to_map(event: WireEvent) -> dict[str, object]:
    match event:
        case AllCleared():
            return {'type': 'AllBlocksCleared'}
        case BlocksRemoved():
            return {'type': 'BlockRemoved', 'block_hashes': event.block_hashes, 'medium': MEDIUM[event.tier]}
        case BlocksStored():
            salt = {'cache_salt': event.cache_salt} if event.cache_salt else {}
            return salt | {
                'type': 'BlockStored',
                'block_hashes': event.block_hashes,
                'parent_block_hash': event.parent_hash or None,
                'token_ids': event.token_ids,
                'block_size': event.block_tokens,
                'lora_id': None,
                'medium': MEDIUM[event.tier],
                'session_id': event.session_id or None,
            }


def _from_entry(entry: object) -> Sequence[WireEvent]:
    if isinstance(entry, dict):
        kind, fields = entry.get('type'), entry
    elif isinstance(entry, list) and entry:
        kind = entry[0]
        names = _STORED_FIELDS if kind == 'BlockStored' else _REMOVED_FIELDS
        fields = dict(zip(names, entry[1:], strict=False))
    else:
        raise BadRequestError(f'event: expected a map with a type or an array, got {type(entry).__name__}')
    match kind:
        case 'BlockStored':
            return (_stored(fields),)
        case 'BlockRemoved':
            return (BlocksRemoved(block_hashes=_hashes(fields), tier=_tier(fields)),)
        case 'AllBlocksCleared':
            return (AllCleared(),)
        case _:
            return ()


def _stored(fields: dict[str, object]) -> BlocksStored:
    hashes = _hashes(fields)
    block_tokens = _expect('block_size', fields.get('block_size'), int)
    tokens = _expect('token_ids', fields.get('token_ids'), list)
    if block_tokens <= 0 or len(tokens) != block_tokens * len(hashes):
        raise BadRequestError(
            f'token_ids: expected {len(hashes)} blocks of block_size > 0, got {len(tokens)} tokens of {block_tokens}'
        )
    token_ids = tuple(_expect('token_ids', token, int) for token in tokens)
    if token_ids and not (_TOKENS.start <= min(token_ids) and max(token_ids) < _TOKENS.stop):
        raise BadRequestError(f'token_ids: expected 32 bits each, got {min(token_ids)} to {max(token_ids)}')
    parent = fields.get('parent_block_hash')
    return BlocksStored(
        block_hashes=hashes,
        token_ids=token_ids,
        block_tokens=block_tokens,
        parent_hash=0 if parent is None else _hash(parent),
        tier=_tier(fields),
        session_id=str(fields.get('session_id') or ''),
        cache_salt=str(fields.get('cache_salt') or _salt_among_keys(fields)),
        adapter=str(fields.get('lora_name') or ''),
    )


def _salt_among_keys(fields: dict[str, object]) -> str:
    """vLLM's: the first block of a prefix has extra keys, of which the texts are the LoRA's name and then the salt."""
    keys = fields.get('extra_keys')
    first = keys[0] if isinstance(keys, list) and keys else None
    texts = [key for key in first if isinstance(key, str)] if isinstance(first, list) else []
    if texts and texts[0] == fields.get('lora_name'):
        texts.pop(0)
    return texts[-1] if texts and fields.get('parent_block_hash') is None else ''


def _hashes(fields: dict[str, object]) -> tuple[int, ...]:
    hashes = _expect('block_hashes', fields.get('block_hashes'), list)
    if len(hashes) > _MAX_BLOCKS:
        raise BadRequestError(f'block_hashes: expected at most {_MAX_BLOCKS}, got {len(hashes)}')
    return tuple(_hash(value) for value in hashes)


def _hash(value: object) -> int:
    """A number; some engines send the digest's bytes instead."""
    if isinstance(value, bytes):
        return int.from_bytes(value, 'big')
    return _expect('block_hash', value, int)


def _tier(fields: dict[str, object]) -> Tier:
    return TIER.get(str(fields.get('medium') or 'GPU'), Tier.REMOTE)


def _expect(name: str, value: object, kind: type[T] | tuple[type[T], ...]) -> T:
    if not isinstance(value, kind) or isinstance(value, bool):
        raise BadRequestError(f'{name}: expected {kind}, got {type(value).__name__}')
    return value
