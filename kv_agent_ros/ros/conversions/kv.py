"""KV cache values ↔ messages."""

import numpy as np

from kv_agent_ros.kvcache.block import (
    BlockSlot,
    CacheStats,
    KVEvent,
    KVNamespace,
    SessionKey,
    SessionUsage,
    Tier,
    TierUsage,
)
from kv_agent_ros.msg import (
    BlockSlot as SlotMsg,
)
from kv_agent_ros.msg import (
    KVEvent as EventMsg,
)
from kv_agent_ros.msg import (
    KVNamespace as NamespaceMsg,
)
from kv_agent_ros.msg import (
    SessionKey as SessionMsg,
)
from kv_agent_ros.msg import (
    SessionUsage as SessionUsageMsg,
)
from kv_agent_ros.msg import (
    TierUsage as TierMsg,
)
from kv_agent_ros.ros.conversions.values import member
from kv_agent_ros.srv import GetCacheStats

CHECKSUM_BYTES = 16


def session_to_msg(session: SessionKey) -> SessionMsg:
    """SessionKey → message."""
    return SessionMsg(robot_id=session.robot_id, session_id=session.session_id)


def session_from_msg(message: SessionMsg) -> SessionKey:
    """Message → SessionKey."""
    return SessionKey(robot_id=message.robot_id, session_id=message.session_id)


def namespace_to_msg(namespace: KVNamespace) -> NamespaceMsg:
    """KVNamespace → message, without the tenant, which is the server's."""
    return NamespaceMsg(
        model=namespace.model,
        revision=namespace.revision,
        dtype=namespace.dtype,
        num_layers=namespace.num_layers,
        num_kv_heads=namespace.num_kv_heads,
        head_dim=namespace.head_dim,
        block_tokens=namespace.block_tokens,
        adapter=namespace.adapter,
        bits=namespace.bits,
        variant=namespace.variant,
    )


def namespace_from_msg(message: NamespaceMsg) -> KVNamespace:
    """Message → KVNamespace with an empty tenant."""
    return KVNamespace(
        model=message.model,
        revision=message.revision,
        dtype=message.dtype,
        num_layers=message.num_layers,
        num_kv_heads=message.num_kv_heads,
        head_dim=message.head_dim,
        block_tokens=message.block_tokens,
        adapter=message.adapter,
        bits=message.bits,
        variant=message.variant,
    )


def slot_to_msg(slot: BlockSlot) -> SlotMsg:
    """BlockSlot → message."""
    return SlotMsg(
        block_key=np.frombuffer(slot.block_key, np.uint8),
        segment=slot.segment,
        offset_bytes=slot.offset_bytes,
        length_bytes=slot.length_bytes,
        checksum=list(slot.checksum),
        bits=slot.bits,
        tier=slot.tier.value,
    )


def slot_from_msg(message: SlotMsg) -> BlockSlot:
    """Message → BlockSlot. Raises BadRequestError for an unknown tier."""
    return BlockSlot(
        block_key=bytes(message.block_key),
        segment=message.segment,
        offset_bytes=message.offset_bytes,
        length_bytes=message.length_bytes,
        checksum=bytes(message.checksum),
        bits=message.bits,
        tier=member(Tier, message.tier, 'tier'),
    )


def checksums_to_bytes(checksums: list[int]) -> list[bytes]:
    """The flat array of commit_blocks → one checksum a slot; an incomplete tail is dropped."""
    flat = bytes(checksums)
    return [flat[i : i + CHECKSUM_BYTES] for i in range(0, len(flat) - CHECKSUM_BYTES + 1, CHECKSUM_BYTES)]


def tier_to_msg(tier: TierUsage) -> TierMsg:
    """TierUsage → message."""
    return TierMsg(
        tier=tier.tier.value,
        capacity_bytes=tier.capacity_bytes,
        used_bytes=tier.used_bytes,
        evictable_bytes=tier.evictable_bytes,
        num_blocks=tier.num_blocks,
        num_hits=tier.num_hits,
        num_evictions=tier.num_evictions,
        num_errors=tier.num_errors,
        read_bytes=tier.read_bytes,
        written_bytes=tier.written_bytes,
        is_degraded=tier.is_degraded,
    )


def tier_from_msg(message: TierMsg) -> TierUsage:
    """Message → TierUsage. Raises BadRequestError for an unknown tier."""
    return TierUsage(
        tier=member(Tier, message.tier, 'tier'),
        capacity_bytes=message.capacity_bytes,
        used_bytes=message.used_bytes,
        evictable_bytes=message.evictable_bytes,
        num_blocks=message.num_blocks,
        num_hits=message.num_hits,
        num_evictions=message.num_evictions,
        num_errors=message.num_errors,
        read_bytes=message.read_bytes,
        written_bytes=message.written_bytes,
        is_degraded=message.is_degraded,
    )


def usage_to_msg(usage: SessionUsage) -> SessionUsageMsg:
    """SessionUsage → message."""
    return SessionUsageMsg(
        session=session_to_msg(usage.session),
        num_blocks=usage.num_blocks,
        is_pinned=usage.is_pinned,
        prompt_tokens=usage.prompt_tokens,
        cached_tokens=usage.cached_tokens,
    )


def usage_from_msg(message: SessionUsageMsg) -> SessionUsage:
    """Message → SessionUsage."""
    return SessionUsage(
        session=session_from_msg(message.session),
        num_blocks=message.num_blocks,
        is_pinned=message.is_pinned,
        prompt_tokens=message.prompt_tokens,
        cached_tokens=message.cached_tokens,
    )


def fill_stats(stats: CacheStats, response: GetCacheStats.Response) -> None:
    """CacheStats → the service's response."""
    response.tiers = [tier_to_msg(tier) for tier in stats.tiers]
    response.sessions = [usage_to_msg(usage) for usage in stats.sessions]
    response.num_blocks = stats.num_blocks
    response.num_leases = stats.num_leases
    response.num_expired_leases = stats.num_expired_leases
    response.prompt_tokens = stats.prompt_tokens
    response.cached_tokens = stats.cached_tokens
    response.num_checksum_failures = stats.num_checksum_failures
    response.num_prefetched_blocks = stats.num_prefetched_blocks
    response.saved_compute_s = stats.saved_compute_s
    response.load_s = stats.load_s


def read_stats(response: GetCacheStats.Response) -> CacheStats:
    """The service's response → CacheStats."""
    return CacheStats(
        tiers=tuple(tier_from_msg(tier) for tier in response.tiers),
        sessions=tuple(usage_from_msg(usage) for usage in response.sessions),
        num_blocks=response.num_blocks,
        num_leases=response.num_leases,
        num_expired_leases=response.num_expired_leases,
        prompt_tokens=response.prompt_tokens,
        cached_tokens=response.cached_tokens,
        num_checksum_failures=response.num_checksum_failures,
        num_prefetched_blocks=response.num_prefetched_blocks,
        saved_compute_s=response.saved_compute_s,
        load_s=response.load_s,
    )


def event_to_msg(event: KVEvent) -> EventMsg:
    """KVEvent → message."""
    return EventMsg(
        sequence=event.sequence,
        kind=event.kind.value,
        block_keys=[key.hex() for key in event.block_keys],
        tier=event.tier.value,
        session=session_to_msg(event.session),
    )
