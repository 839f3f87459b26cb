"""Opens a world file as a SimulatedHome: what may be chosen, what is checked, and how the parts are wired."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
import time
from types import MappingProxyType

from kv_agent_ros.errors import ConfigError
from kv_agent_ros.robot.base import Pose
from kv_agent_ros.robot.engine import Engine
from kv_agent_ros.robot.faults import FaultKind, Faults
from kv_agent_ros.robot.home import SimulatedHome
from kv_agent_ros.robot.home_file import HomeSection, Section, as_text, entries_of, home_section, read_yaml
from kv_agent_ros.robot.pace import FastTime, RealTime

DOCK_KIND = 'dock'
AS_FAST_AS_POSSIBLE = 0.0
NO_NUMBERS: Mapping[str, float] = MappingProxyType({})
NO_RATES: Mapping[FaultKind, float] = MappingProxyType({})


@dataclass(frozen=True, kw_only=True, slots=True)
class HomeOptions:
    """Choices for a run. The same options, seed included, and the same steps give the same run in fast mode."""

    seed: int = 0
    realtime_factor: float = 1.0  # simulated seconds per second; AS_FAST_AS_POSSIBLE = nobody waits
    start_s: float = 1.0  # simulated time at the start
    fault_rates: Mapping[FaultKind, float] = field(default_factory=lambda: NO_RATES)  # 0..1 per occasion
    fill_levels: Mapping[str, float] = field(default_factory=lambda: NO_NUMBERS)  # object → 0..1
    batteries: Mapping[str, float] = field(default_factory=lambda: NO_NUMBERS)  # robot → 0..1, 1 when not given
    removed: tuple[str, ...] = ()  # objects that are not there
    pose_noise_m: float = 0.0  # sigma of the sensed pose, metres and radians


def open_home(
    path: Path,
    robot_ids: Sequence[str],
    options: HomeOptions = HomeOptions(),
    clock: Callable[[], float] = time.monotonic,
) -> SimulatedHome:
    """The home of a world file, with the robots docked in the order given. Raises ConfigError, BadRequestError."""
    document = read_yaml(path)
    section = home_section(document)
    engine = Engine(path, _starts(path, robot_ids, section, document))
    _check_complete(engine, document)
    fast = options.realtime_factor == AS_FAST_AS_POSSIBLE
    pace = FastTime(options.start_s) if fast else RealTime(options.start_s, options.realtime_factor, clock)
    home = SimulatedHome(
        engine=engine,
        section=section,
        pace=pace,
        faults=Faults(options.fault_rates, options.seed),
        batteries={name: options.batteries.get(name, 1.0) for name in robot_ids},
        clock=clock,
        seed=options.seed,
        pose_noise_m=options.pose_noise_m,
    )
    for object_id, fill_level in options.fill_levels.items():
        home.set_fill_level(object_id, fill_level)
    for object_id in options.removed:
        home.remove_object(object_id)
    return home


def _starts(path: Path, robot_ids: Sequence[str], section: HomeSection, document: Section) -> dict[str, Pose]:
    """One bay of the docks for each robot."""
    if not robot_ids or len(set(robot_ids)) != len(robot_ids):
        raise ConfigError(f'robot ids: expected at least one, each once, got {list(robot_ids)}')
    bare = Engine(path, {})
    docks = [name for name, category in bare.locations().items() if section.kinds.get(category) == DOCK_KIND]
    bays = [pose for dock in docks for pose in bare.stands(dock)]
    if len(bays) < len(robot_ids):
        raise ConfigError(f'{path}: expected a bay for each of {len(robot_ids)} robots, got {len(bays)}')
    return dict(zip(robot_ids, bays, strict=False))


def _check_complete(engine: Engine, document: Section) -> None:
    """pyrobosim leaves out, with a warning only, what does not fit into its world."""
    for key, present in (
        ('locations', set(engine.locations())),
        ('objects', {thing.object_id for thing in engine.things.all()}),
        ('hallways', set(engine.hallways())),
    ):
        missing = {as_text(entry, 'name') for entry in entries_of(document, key)} - present
        if missing:
            raise ConfigError(
                f'{key} {sorted(missing)}: do not fit into the world (collision, or outside their parent)'
            )
