"""The KV cache manager with its tiers."""

from collections import deque
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
import logging
from pathlib import Path
from threading import Thread

from kv_agent_ros.config import KVCacheConfig, expand
from kv_agent_ros.errors import StoreError
from kv_agent_ros.inference.engine_view import EngineView
from kv_agent_ros.inference.kv_events import EventFollower, NoReplay, ZmqReplay
from kv_agent_ros.kvcache.arithmetic import warm_up
from kv_agent_ros.kvcache.block import KVEvent, Tier
from kv_agent_ros.kvcache.codec_policy import CodecPolicy
from kv_agent_ros.kvcache.dram_tier import DramTier
from kv_agent_ros.kvcache.event_stream import EventStream
from kv_agent_ros.kvcache.eviction import AgedLfuPolicy, EvictionPolicy, LruPolicy, SessionsLast, SlruPolicy
from kv_agent_ros.kvcache.hit_density import HitDensityPolicy
from kv_agent_ros.kvcache.manager import KVCacheManager
from kv_agent_ros.kvcache.session_index import SessionIndex
from kv_agent_ros.kvcache.storage.base import BlockStore
from kv_agent_ros.kvcache.storage.disk import FORMAT, DiskStore
from kv_agent_ros.kvcache.storage.guarded import GuardedStore
from kv_agent_ros.kvcache.storage.host import HostStore, SharedArena
from kv_agent_ros.kvcache.storage.remote import RemoteStore
from kv_agent_ros.kvcache.storage.tiered import BackingTier, Sharing, TierOptions
from kv_agent_ros.kvcache.write_policy import Watermarks, WritePolicy

FLUSH_S = 3.0
WARM_UP_S = 60.0  # compiling them for the first time takes half a minute on a slow machine, later starts a second
REPLAY_S = 1.0  # a server must go on repeating missed events within
MAX_EVENTS = 10_000
NUM_GHOSTS = 65_536  # evicted blocks whose use is remembered; some 200 bytes each
POLICIES: dict[str, Callable[[], EvictionPolicy]] = {'lru': LruPolicy, 'slru': SlruPolicy, 'lfu': AgedLfuPolicy}

_log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True, slots=True)
class CacheCore:
    """The KV cache manager, the events that wait for the topic, who else is told of them, and the server's cache."""

    manager: KVCacheManager
    events: deque[KVEvent]
    streams: tuple[EventStream, ...] = ()
    followers: tuple[EventFollower, ...] = ()  # of a server's events; polled by one thread
    engine: EngineView = field(default_factory=EngineView)

    def close(self) -> None:
        """Write what is queued, free the shared memory."""
        self.manager.close(FLUSH_S)
        for stream in self.streams:
            stream.close()
        for follower in self.followers:
            follower.close()


def open_cache(config: KVCacheConfig) -> CacheCore:
    """Shared memory in front of files below the state folder, and of a folder shared between machines."""
    events: deque[KVEvent] = deque(maxlen=MAX_EVENTS)
    watermarks = Watermarks(high=config.high_watermark, low=config.low_watermark)
    sessions = SessionIndex()
    warming = Thread(target=warm_up, name='kv-warm-up', daemon=True)
    warming.start()
    with ExitStack() as opened:
        streams = _open_streams(config)
        for stream in streams:
            opened.callback(stream.close)
        followers = _open_followers(config)
        for follower in followers:
            opened.callback(follower.close)
        manager = KVCacheManager(
            dram=open_dram(config, sessions),
            sessions=sessions,
            backing=open_lower_tiers(config),
            tenant=config.tenant,
            lease_timeout_s=config.lease_timeout_s,
            max_pin_s=config.max_pin_s,
            max_load_s=config.max_load_s,
            watermarks=watermarks,
            prefill_tokens_per_s=config.prefill_tokens_per_s,
            listener=_tell(events, streams),
        )
        _await(warming)
        opened.pop_all()
    engine = EngineView(followers)
    return CacheCore(manager=manager, events=events, streams=streams, followers=followers, engine=engine)


def _await(warming: Thread) -> None:
    """Else the first request for a stored block would wait for a compiler, longer than an engine has patience."""
    warming.join(WARM_UP_S)
    if warming.is_alive():
        _log.warning('the loops of quantisation are still being compiled after %.0f s; blocks wait for them', WARM_UP_S)


def open_dram(config: KVCacheConfig, sessions: SessionIndex) -> DramTier:
    """The shared memory; what open sessions refer to leaves it last."""
    store = HostStore(SharedArena.create(config.dram_bytes))
    if config.eviction_policy in POLICIES:
        policy = POLICIES[config.eviction_policy]()
        return DramTier(store=store, policy=SessionsLast(sessions.num_references, policy), num_ghosts=NUM_GHOSTS)
    learner = HitDensityPolicy()
    policy = SessionsLast(sessions.num_references, learner)
    return DramTier(store=store, policy=policy, num_ghosts=NUM_GHOSTS, observers=(learner,))


def open_lower_tiers(config: KVCacheConfig) -> tuple[BackingTier, ...]:
    """The disk, then the shared folder; one that is broken is left out: every look there would be a miss anyway.

    Raises ConfigError when a folder holds foreign files, or the disk's belongs to another process.
    """
    remote = _open_remote(config) if config.remote_dir else ()
    return (*_open_disk(config, remote), *remote)


def _open_disk(config: KVCacheConfig, below: tuple[BackingTier, ...]) -> tuple[BackingTier, ...]:
    directory = _disk_folder(expand(config.state_dir))
    options = _options(config, config.ssd_write_policy, Sharing.OWN)
    return _open_tier(Tier.SSD, lambda: DiskStore.open(directory, config.ssd_bytes), options, directory, below)


def _disk_folder(state: Path) -> Path:
    """A folder a format, so that an update begins with an empty cache instead of one that it cannot read."""
    folder = state / f'kv-{FORMAT}'
    others = sorted(str(path) for path in (state / 'kv', *state.glob('kv-*')) if path.is_dir() and path != folder)
    if others:
        _log.warning('KV blocks of another version can be deleted, nothing reads them: %s', ', '.join(others))
    return folder


def _open_remote(config: KVCacheConfig) -> tuple[BackingTier, ...]:
    directory = expand(config.remote_dir)
    options = _options(config, config.remote_write_policy, Sharing.SHARED)
    return _open_tier(Tier.REMOTE, lambda: RemoteStore.open(directory, config.remote_bytes), options, directory, ())


def _options(config: KVCacheConfig, write_policy: str, sharing: Sharing) -> TierOptions:
    codecs = CodecPolicy(recent_tokens=config.recent_tokens)
    return TierOptions(sharing=sharing, write_policy=WritePolicy(write_policy), codecs=codecs)


def _open_tier(
    tier: Tier,
    open_store: Callable[[], BlockStore],
    options: TierOptions,
    directory: Path,
    below: tuple[BackingTier, ...],
) -> tuple[BackingTier, ...]:
    try:
        store = GuardedStore(open_store())
        return (BackingTier.open(tier=tier, store=store, options=options, below=below),)
    except StoreError as error:
        _log.warning('no %s tier in %s, its prefixes are misses: %s', tier.value, directory, error)
        return ()


def _open_streams(config: KVCacheConfig) -> tuple[EventStream, ...]:
    if not config.events_endpoint:
        return ()
    return (EventStream.open(endpoint=config.events_endpoint, replay_endpoint=config.events_replay_endpoint),)


def _open_followers(config: KVCacheConfig) -> tuple[EventFollower, ...]:
    if not config.engine_events:
        return ()
    replay = ZmqReplay(config.engine_events_replay, REPLAY_S) if config.engine_events_replay else NoReplay()
    return (EventFollower.open(endpoint=config.engine_events, replay=replay),)


def _tell(events: deque[KVEvent], streams: tuple[EventStream, ...]) -> Callable[[KVEvent], None]:
    def tell(event: KVEvent) -> None:
        events.append(event)
        for stream in streams:
            stream(event)

    return tell
