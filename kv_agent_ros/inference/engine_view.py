"""What a server has cached for the robots: by its event stream where it has one, else by the counts of its replies."""

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import replace
import threading

from kv_agent_ros.inference.engine_mirror import MirrorState, MirrorStats
from kv_agent_ros.inference.kv_events import EventFollower
from kv_agent_ros.inference.session_name import session_name
from kv_agent_ros.kvcache.block import CacheStats, SessionKey, SessionUsage, Tier, TierUsage

MAX_SESSIONS = 256  # the longest silent ones are forgotten


class EngineView:
    """Thread-safe. `followers`: none, or the one that is polled elsewhere."""

    def __init__(self, followers: Sequence[EventFollower] = ()) -> None:
        self._followers = tuple(followers)
        self._lock = threading.Lock()
        self._usages: OrderedDict[SessionKey, SessionUsage] = OrderedDict()

    def hear(self, usage: SessionUsage) -> None:
        """What the server's replies to a session add up to."""
        with self._lock:
            self._usages[usage.session] = usage
            self._usages.move_to_end(usage.session)
            while len(self._usages) > MAX_SESSIONS:
                self._usages.popitem(last=False)

    def forget(self, session: SessionKey) -> None:
        """The session is closed."""
        with self._lock:
            self._usages.pop(session, None)

    def mirrors(self) -> tuple[MirrorStats, ...]:
        """The mirror's books; none where the server publishes no events."""
        return tuple(follower.stats() for follower in self._followers)

    def added_to(self, stats: CacheStats) -> CacheStats:
        """Our own cache's books with the server's: its device tier as it is mirrored, its sessions, its replies."""
        mirrors = self.mirrors()
        with self._lock:
            theirs = {session: _mirrored(usage, mirrors) for session, usage in self._usages.items()}
        own = {usage.session: usage for usage in stats.sessions}
        both = [_added(usage, theirs[session]) if session in theirs else usage for session, usage in own.items()]
        return replace(
            stats,
            tiers=(*(_device_tier(mirror) for mirror in mirrors), *stats.tiers),
            sessions=(*both, *(usage for session, usage in theirs.items() if session not in own)),
            prompt_tokens=stats.prompt_tokens + sum(usage.prompt_tokens for usage in theirs.values()),
            cached_tokens=stats.cached_tokens + sum(usage.cached_tokens for usage in theirs.values()),
        )


def _added(own: SessionUsage, theirs: SessionUsage) -> SessionUsage:
    return replace(
        own,
        num_blocks=own.num_blocks + theirs.num_blocks,
        prompt_tokens=own.prompt_tokens + theirs.prompt_tokens,
        cached_tokens=own.cached_tokens + theirs.cached_tokens,
    )


def _mirrored(usage: SessionUsage, mirrors: Sequence[MirrorStats]) -> SessionUsage:
    """The session's blocks as a mirror that can be trusted knows them, else as the last reply implies."""
    name = session_name(usage.session)
    for mirror in mirrors:
        if mirror.state is MirrorState.SYNCED and mirror.names_sessions:
            return replace(usage, num_blocks=mirror.blocks_by_session.get(name, 0))
    return usage


def _device_tier(mirror: MirrorStats) -> TierUsage:
    """Events tell of blocks, not of bytes."""
    return TierUsage(
        tier=Tier.HBM,
        capacity_bytes=0,
        used_bytes=0,
        evictable_bytes=0,
        num_blocks=mirror.blocks_by_tier.get(Tier.HBM, 0),
        num_hits=0,
        num_evictions=0,
        num_errors=mirror.num_resyncs,
        is_degraded=mirror.state is MirrorState.DEGRADED,
    )
