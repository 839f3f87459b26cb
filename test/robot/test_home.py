import math
from pathlib import Path

import numpy as np
import pytest

from kv_agent_ros.deadline import Deadline
from kv_agent_ros.errors import BadRequestError, ConfigError
from kv_agent_ros.robot.base import Argument, Step, Velocity
from kv_agent_ros.robot.home import SimulatedHome
from kv_agent_ros.robot.home_setup import AS_FAST_AS_POSSIBLE, HomeOptions, open_home
from kv_agent_ros.robot.simulated import SimulatedRobot

HOME = Path(__file__).parents[2] / 'config' / 'worlds' / 'home.yaml'
FAST = HomeOptions(realtime_factor=AS_FAST_AS_POSSIBLE)


class _Clock:
    """A clock that a test moves by hand."""

    def __init__(self) -> None:
        self.now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


def _do(home: SimulatedHome, skill: str, robot_id: str = 'robot1', **arguments: Argument) -> None:
    result = SimulatedRobot(home, robot_id).execute(Step(skill=skill, arguments=arguments), Deadline(60.0))
    assert result.is_success, result


def test_robots_start_docked_each_in_its_own_bay() -> None:
    states = open_home(HOME, ['a', 'b', 'c', 'd'], FAST).truth().robots
    assert all(state.is_docked and state.room == 'living_room' for state in states)
    assert len({(state.pose.x_m, state.pose.y_m) for state in states}) == 4


@pytest.mark.parametrize('robot_ids', [[], ['a', 'a'], ['a', 'b', 'c', 'd', 'e']])
def test_robots_that_have_no_bay_or_no_name_of_their_own_are_refused(robot_ids: list[str]) -> None:
    with pytest.raises(ConfigError):
        open_home(HOME, robot_ids, FAST)


def test_an_object_that_does_not_fit_into_the_world_is_named(tmp_path: Path) -> None:
    for sibling in HOME.parent.glob('home*.yaml'):
        text = sibling.read_text().replace('kitchen_counter, pose: [1.5, 3.6', 'kitchen_counter, pose: [9.5, 3.6')
        (tmp_path / sibling.name).write_text(text)
    with pytest.raises(ConfigError, match='apple1'):
        open_home(tmp_path / HOME.name, ['robot1'], FAST)


def test_the_truth_is_that_of_the_file() -> None:
    truth = open_home(HOME, ['robot1'], FAST).truth()
    cup = truth.object('cup1')
    assert (cup.category, cup.location, cup.room, cup.contains, cup.fill_level) == (
        'cup',
        'kitchen_counter',
        'kitchen',
        'water',
        1.0,
    )
    assert truth.object('book1').contains == ''
    assert [person.person_id for person in truth.people] == ['person1']
    assert all(door.is_open for door in truth.doors)


def test_changes_to_things_that_are_not_there_are_refused() -> None:
    home = open_home(HOME, ['robot1'], FAST)
    with pytest.raises(BadRequestError, match='book1'):
        home.set_fill_level('book1', 0.5)
    with pytest.raises(BadRequestError, match=r'1\.5'):
        home.set_fill_level('cup1', 1.5)
    with pytest.raises(BadRequestError, match='unicorn'):
        home.remove_object('unicorn')
    with pytest.raises(BadRequestError, match='robot9'):
        home.sense('robot9')


def test_nothing_of_another_room_is_seen() -> None:
    frame = open_home(HOME, ['robot1'], FAST).sense('robot1')
    assert frame.sightings == ()
    assert {door.name for door in frame.doors} == {'kitchen_door', 'bathroom_door', 'bedroom_door'}


def test_a_fill_level_is_seen_from_near_only() -> None:
    home = open_home(HOME, ['robot1'], FAST)
    _do(home, 'navigate', target='kitchen')
    _do(home, 'find', target='cup')
    far = {s.object_id: s for s in home.sense('robot1').sightings}['cup1']
    _do(home, 'inspect', target='cup1')
    near = {s.object_id: s for s in home.sense('robot1').sightings}['cup1']

    assert 'fill_level' not in far.properties
    assert near.properties == {'contains': 'water', 'fill_level': 1.0}
    assert near.confidence > far.confidence


def test_a_held_object_is_always_seen_closely_by_its_holder() -> None:
    home = open_home(HOME, ['robot1'], FAST)
    _do(home, 'navigate', target='kitchen_counter')
    _do(home, 'pick', target='cup1')
    _do(home, 'navigate', target='bathroom')

    held = {s.object_id: s for s in home.sense('robot1').sightings}['cup1']

    assert held.location == 'robot1'
    assert held.properties['fill_level'] == 1.0


def test_an_object_that_vanished_from_where_it_was_seen_is_reported_gone_once() -> None:
    home = open_home(HOME, ['robot1'], FAST)
    _do(home, 'navigate', target='kitchen_counter')
    assert 'cup1' in {s.object_id for s in home.sense('robot1').sightings}
    home.remove_object('cup1')

    assert home.sense('robot1').gone == ('cup1',)
    assert home.sense('robot1').gone == ()


def test_an_object_out_of_view_is_not_gone() -> None:
    home = open_home(HOME, ['robot1'], FAST)
    _do(home, 'navigate', target='kitchen_counter')
    home.sense('robot1')
    _do(home, 'navigate', target='bedroom')
    home.remove_object('cup1')
    assert home.sense('robot1').gone == ()


def test_stamps_of_frames_grow() -> None:
    home = open_home(HOME, ['robot1'], FAST)
    stamps = [home.sense('robot1').stamp_s for _ in range(3)]
    assert stamps[0] < stamps[1] < stamps[2]


def test_the_lidar_of_a_docked_robot_sees_the_charger_ahead_and_the_room_behind() -> None:
    scan = open_home(HOME, ['robot1'], FAST).sense('robot1').lidar
    assert scan.ranges_m.shape == (180,)
    assert scan.ranges_m[90] == pytest.approx(0.35, abs=0.01)  # ahead: the rail
    assert scan.ranges_m[0] == pytest.approx(5.3, abs=0.01)  # behind: the far wall
    assert scan.ranges_m[45] == pytest.approx(3.2, abs=0.01)  # to the right: the wall
    assert np.all((scan.ranges_m > 0) & (scan.ranges_m <= scan.range_max_m))


def test_the_lidar_sees_another_robot_and_a_person() -> None:
    neighbour = open_home(HOME, ['robot1', 'robot2'], FAST).sense('robot1').lidar
    assert neighbour.ranges_m[45] == pytest.approx(0.4, abs=0.01)
    home = open_home(HOME, ['robot1'], FAST)
    _do(home, 'navigate', target='bedroom')
    frame, person = home.sense('robot1'), home.truth().people[0].position
    pose = frame.robot.pose
    bearing = math.atan2(person[1] - pose.y_m, person[0] - pose.x_m) - pose.yaw_rad
    ray = round((bearing + math.pi) / frame.lidar.angle_increment_rad) % 180
    expected_m = math.dist((pose.x_m, pose.y_m), person) - 0.25
    assert frame.lidar.ranges_m[ray] == pytest.approx(expected_m, abs=0.05)


def test_sensed_poses_have_the_noise_that_was_asked_for_and_the_truth_has_none() -> None:
    noisy = HomeOptions(realtime_factor=AS_FAST_AS_POSSIBLE, pose_noise_m=0.05)
    home = open_home(HOME, ['robot1'], noisy)
    errors = np.array([home.sense('robot1').robot.pose.x_m for _ in range(200)]) - home.truth().robots[0].pose.x_m
    assert 0.03 < errors.std() < 0.07
    assert abs(errors.mean()) < 0.02


def test_people_walk_as_time_passes_and_start_where_the_seed_says() -> None:
    home = open_home(HOME, ['robot1'], FAST)
    before = home.truth().people[0].position
    _do(home, 'wait', duration_s=4.0)
    after = home.truth().people[0].position
    other = open_home(HOME, ['robot1'], HomeOptions(realtime_factor=AS_FAST_AS_POSSIBLE, seed=5))
    assert 0.1 < math.dist(before, after) <= 0.15 * 4.1
    assert other.truth().people[0].position != before


BACK_OFF = Velocity(linear_mps=-0.2)


def _driven(seconds_s: float, velocity: Velocity = BACK_OFF) -> tuple[SimulatedHome, float]:
    """A docked robot told to back off, and how far it has come when the clock has moved on."""
    clock = _Clock()
    home = open_home(HOME, ['robot1'], HomeOptions(), clock)
    start = home.state('robot1').pose
    home.drive('robot1', velocity)
    clock.now_s += seconds_s
    pose = home.state('robot1').pose
    return home, math.dist((start.x_m, start.y_m), (pose.x_m, pose.y_m))


def test_a_driven_velocity_acts_for_as_long_as_it_is_held() -> None:
    home, distance_m = _driven(0.3)
    assert distance_m == pytest.approx(0.06, abs=0.001)
    assert home.state('robot1').is_moving
    assert not home.state('robot1').is_docked


@pytest.mark.parametrize('seconds_s', [0.5, 3.0, 1000.0])
def test_half_a_second_without_a_command_the_robot_stands(seconds_s: float) -> None:
    home, distance_m = _driven(seconds_s)
    assert distance_m == pytest.approx(0.1, abs=0.001)
    assert not home.state('robot1').is_moving


def test_a_repeated_command_keeps_the_robot_moving() -> None:
    clock = _Clock()
    home = open_home(HOME, ['robot1'], HomeOptions(), clock)
    for _ in range(10):
        home.drive('robot1', Velocity(linear_mps=-0.2))
        clock.now_s += 0.4
    assert home.state('robot1').pose.x_m == pytest.approx(9.8 - 0.8, abs=0.01)


def test_a_driven_robot_stops_at_a_wall_and_is_no_faster_than_its_motors() -> None:
    home, distance_m = _driven(0.5, Velocity(linear_mps=50.0))
    assert distance_m < 0.2
    assert not home.state('robot1').is_moving
    _, backwards_m = _driven(0.5, Velocity(linear_mps=-50.0))
    assert backwards_m == pytest.approx(0.5, abs=0.001)


def test_stop_ends_a_drive_at_once() -> None:
    clock = _Clock()
    home = open_home(HOME, ['robot1'], HomeOptions(), clock)
    home.drive('robot1', Velocity(linear_mps=-0.2))
    clock.now_s += 0.1
    home.stop('robot1')
    stopped = home.state('robot1')
    clock.now_s += 0.3
    assert not stopped.is_moving
    assert home.state('robot1').pose == stopped.pose


def test_a_velocity_that_is_no_number_is_refused() -> None:
    home = open_home(HOME, ['robot1'], FAST)
    for velocity in (Velocity(linear_mps=math.nan), Velocity(angular_radps=math.inf)):
        with pytest.raises(BadRequestError):
            home.drive('robot1', velocity)


def test_a_driven_robot_in_fast_time_moves_too() -> None:
    clock = _Clock()
    home = open_home(HOME, ['robot1'], FAST, clock)
    before_s = home.sim_time_s()
    home.drive('robot1', Velocity(linear_mps=-0.2))
    clock.now_s += 1.0
    assert home.state('robot1').pose.x_m == pytest.approx(9.7, abs=0.001)
    assert home.sim_time_s() - before_s == pytest.approx(0.5)
