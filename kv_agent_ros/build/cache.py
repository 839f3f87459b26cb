"""The KV cache manager with its tiers."""

from collections import deque
from dataclasses import dataclass
import logging
from pathlib import Path

from kv_agent_ros.config import KVCacheConfig, expand
from kv_agent_ros.errors import StoreError
from kv_agent_ros.kvcache.block import KVEvent, Tier
from kv_agent_ros.kvcache.dram_tier import DramTier
from kv_agent_ros.kvcache.eviction import SessionLruPolicy
from kv_agent_ros.kvcache.manager import KVCacheManager
from kv_agent_ros.kvcache.session_index import SessionIndex
from kv_agent_ros.kvcache.storage.disk import DiskStore
from kv_agent_ros.kvcache.storage.host import HostStore, SharedArena
from kv_agent_ros.kvcache.storage.tiered import BackingTier

FLUSH_S = 3.0
MAX_EVENTS = 10_000

_log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True, slots=True)
class CacheCore:
    """The KV cache manager and the events that wait to be published."""

    manager: KVCacheManager
    events: deque[KVEvent]

    def close(self) -> None:
        """Write what is queued, free the shared memory."""
        self.manager.close(FLUSH_S)


def open_disk_tiers(directory: Path, capacity_bytes: int) -> tuple[BackingTier, ...]:
    """The disk tier; none, with a warning, when the disk is broken: every look there would be a miss anyway.

    Raises ConfigError when the folder belongs to another process or holds foreign files.
    """
    try:
        store = DiskStore.open(directory, capacity_bytes)
    except StoreError as error:
        _log.warning('no disk tier, prefixes will not survive a restart: %s', error)
        return ()
    return (BackingTier.open(tier=Tier.SSD, store=store),)


def open_cache(config: KVCacheConfig) -> CacheCore:
    """Shared memory in front of files below the state folder."""
    events: deque[KVEvent] = deque(maxlen=MAX_EVENTS)
    sessions = SessionIndex()
    policy = SessionLruPolicy(sessions.is_referenced)
    manager = KVCacheManager(
        dram=DramTier(store=HostStore(SharedArena.create(config.dram_bytes)), policy=policy),
        sessions=sessions,
        backing=open_disk_tiers(expand(config.state_dir) / 'kv', config.ssd_bytes),
        tenant=config.tenant,
        lease_timeout_s=config.lease_timeout_s,
        max_pin_s=config.max_pin_s,
        listener=events.append,
    )
    return CacheCore(manager=manager, events=events)
