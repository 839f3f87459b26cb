"""Steps in the simulated home, as fast as possible."""

from pathlib import Path

from kv_agent_ros.deadline import Deadline
from kv_agent_ros.robot.base import Argument, Robot, Step, StepResult
from kv_agent_ros.robot.home import SimulatedHome
from kv_agent_ros.robot.home_setup import AS_FAST_AS_POSSIBLE, HomeOptions, open_home
from kv_agent_ros.robot.simulated import SimulatedRobot

HOME = Path(__file__).parents[2] / 'config' / 'worlds' / 'home.yaml'
FAST = HomeOptions(realtime_factor=AS_FAST_AS_POSSIBLE)
LIMIT_S = 60.0


def open_simulated(options: HomeOptions = FAST, num_robots: int = 1) -> SimulatedHome:
    return open_home(HOME, [f'robot{i + 1}' for i in range(num_robots)], options)


def do(home: SimulatedHome, skill: str, robot_id: str = 'robot1', **arguments: Argument) -> StepResult:
    robot: Robot = SimulatedRobot(home, robot_id)
    return robot.execute(Step(skill=skill, arguments=arguments), Deadline(LIMIT_S))


def succeed(home: SimulatedHome, *steps: tuple[str, dict[str, Argument]]) -> None:
    for skill, arguments in steps:
        result = do(home, skill, **arguments)
        assert result.is_success, f'{skill} {arguments}: {result}'
