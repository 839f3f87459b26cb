"""The KV cache manager as a node: leases by service, bytes by shared memory, events on a topic."""

from collections import deque

import numpy as np

from kv_agent_ros.build.cache import CacheCore, open_cache
from kv_agent_ros.config import KVCacheConfig
from kv_agent_ros.errors import BadRequestError
from kv_agent_ros.inspector.metrics import cache_metrics, mirror_metrics
from kv_agent_ros.kvcache.base import PrefetchPolicy
from kv_agent_ros.kvcache.block import KVEvent, Tier
from kv_agent_ros.msg import KVEvent as EventMsg
from kv_agent_ros.nodes.engine_link import EngineLink, serve_engine
from kv_agent_ros.ros.conversions.kv import (
    checksums_to_bytes,
    event_to_msg,
    fill_stats,
    namespace_from_msg,
    session_from_msg,
    slot_to_msg,
)
from kv_agent_ros.ros.conversions.values import member
from kv_agent_ros.ros.endpoints import Endpoints
from kv_agent_ros.ros.metrics import to_metrics
from kv_agent_ros.ros.qos import EVENT
from kv_agent_ros.ros.runtime import NodeSpec, run_node
from kv_agent_ros.srv import (
    AcquirePrefix,
    CommitBlocks,
    DiscardBlocks,
    EvictBlocks,
    ForkSession,
    GetCacheStats,
    PinSession,
    PrefetchPrefix,
    ReleaseLease,
    ReleaseSession,
    ReserveBlocks,
)

EVENT_PERIOD_S = 0.1


class CacheService:
    """The callbacks."""

    def __init__(self, core: CacheCore, link: EngineLink) -> None:
        self._manager = core.manager
        self._engine = core.engine
        self._link = link

    def acquire(self, request: AcquirePrefix.Request, response: AcquirePrefix.Response) -> None:
        """acquire_prefix."""
        namespace, session = namespace_from_msg(request.kv_namespace), session_from_msg(request.session)
        lease = self._manager.acquire(namespace, session, np.asarray(request.token_ids, np.int32))
        response.lease_id, response.matched_tokens = lease.lease_id, lease.matched_tokens
        response.slots = [slot_to_msg(slot) for slot in lease.slots]

    def reserve(self, request: ReserveBlocks.Request, response: ReserveBlocks.Response) -> None:
        """reserve_blocks."""
        namespace, session = namespace_from_msg(request.kv_namespace), session_from_msg(request.session)
        lease = self._manager.reserve(namespace, session, np.asarray(request.token_ids, np.int32))
        response.lease_id, response.first_token = lease.lease_id, lease.first_token
        response.slots = [slot_to_msg(slot) for slot in lease.slots]

    def commit(self, request: CommitBlocks.Request, response: CommitBlocks.Response) -> None:
        """commit_blocks."""
        response.num_visible = self._manager.commit(request.lease_id, checksums_to_bytes(request.checksums))

    def release(self, request: ReleaseLease.Request, response: ReleaseLease.Response) -> None:
        """release_lease."""
        self._manager.release(request.lease_id)

    def discard(self, request: DiscardBlocks.Request, response: DiscardBlocks.Response) -> None:
        """discard_blocks."""
        self._manager.discard(request.lease_id, request.num_good_blocks)

    def prefetch(self, request: PrefetchPrefix.Request, response: PrefetchPrefix.Response) -> None:
        """prefetch_prefix."""
        namespace, session = namespace_from_msg(request.kv_namespace), session_from_msg(request.session)
        policy = member(PrefetchPolicy, request.policy, 'policy')
        tokens = np.asarray(request.token_ids, np.int32)
        done = self._manager.prefetch(namespace, session, tokens, policy, request.timeout_s)
        there = self._link.prefetch(request)
        response.num_blocks = done.num_blocks + there.num_blocks
        response.is_complete = done.is_complete and there.is_complete

    def fork(self, request: ForkSession.Request, response: ForkSession.Response) -> None:
        """fork_session."""
        response.num_blocks = self._manager.fork(session_from_msg(request.source), session_from_msg(request.session))

    def pin(self, request: PinSession.Request, response: PinSession.Response) -> None:
        """pin_session."""
        pinned = self._manager.pin(session_from_msg(request.session), request.duration_s)
        response.num_blocks = pinned + self._link.warm(request.session).num_blocks

    def end_session(self, request: ReleaseSession.Request, response: ReleaseSession.Response) -> None:
        """release_session."""
        dropped = self._manager.end_session(session_from_msg(request.session))
        response.num_blocks = dropped + self._link.end(request.session)

    def evict(self, request: EvictBlocks.Request, response: EvictBlocks.Response) -> None:
        """evict."""
        if request.tier != Tier.DRAM.value:
            raise BadRequestError(f'tier: expected dram (the others keep to their own budget), got {request.tier!r}')
        response.freed_bytes = self._manager.evict(request.num_bytes)

    def stats(self, request: GetCacheStats.Request, response: GetCacheStats.Response) -> None:
        """cache_stats."""
        fill_stats(self._engine.added_to(self._manager.stats()), response)


def serve(core: CacheCore, config: KVCacheConfig, endpoints: Endpoints) -> None:
    """Services and the event topic."""
    service = CacheService(core, serve_engine(core, endpoints))
    endpoints.service(AcquirePrefix, 'acquire_prefix', service.acquire)
    endpoints.service(ReserveBlocks, 'reserve_blocks', service.reserve)
    endpoints.service(CommitBlocks, 'commit_blocks', service.commit)
    endpoints.service(ReleaseLease, 'release_lease', service.release)
    endpoints.service(DiscardBlocks, 'discard_blocks', service.discard)
    endpoints.service(PrefetchPrefix, 'prefetch_prefix', service.prefetch)
    endpoints.service(ForkSession, 'fork_session', service.fork)
    endpoints.service(PinSession, 'pin_session', service.pin)
    endpoints.service(ReleaseSession, 'release_session', service.end_session)
    endpoints.service(EvictBlocks, 'evict', service.evict)
    endpoints.service(GetCacheStats, 'cache_stats', service.stats)
    endpoints.stats(lambda: to_metrics(cache_metrics(core.manager.stats()) + mirror_metrics(core.engine.mirrors())))
    _publish_events(core.events, endpoints)


def _publish_events(events: deque[KVEvent], endpoints: Endpoints) -> None:
    publisher = endpoints.publisher(EventMsg, 'kv_events', EVENT)

    def drain() -> None:
        while events:
            publisher.publish(event_to_msg(events.popleft()))

    endpoints.timer(EVENT_PERIOD_S, drain)


SPEC = NodeSpec(name='kv_cache_node', config=KVCacheConfig, open=lambda config, node: open_cache(config), serve=serve)


def main() -> int:
    """Entry point."""
    return run_node(SPEC)
