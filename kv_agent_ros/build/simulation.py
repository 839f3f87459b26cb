"""The simulated home."""

from kv_agent_ros.build.home import world_path
from kv_agent_ros.config import SimulatorConfig
from kv_agent_ros.errors import ConfigError
from kv_agent_ros.robot.faults import FaultKind
from kv_agent_ros.robot.home import SimulatedHome
from kv_agent_ros.robot.home_setup import HomeOptions, open_home


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
