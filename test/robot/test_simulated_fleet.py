"""Two robots in one simulated home."""

import math
import threading

from simulated_steps import LIMIT_S, do, open_simulated, succeed

from kv_agent_ros.errors import Outcome
from kv_agent_ros.robot.base import StepResult


def test_two_robots_at_once_both_get_to_the_kitchen_and_never_touch() -> None:
    home = open_simulated(num_robots=2)
    results: dict[str, StepResult] = {}

    def drive(robot_id: str) -> None:
        results[robot_id] = do(home, 'navigate', robot_id=robot_id, target='kitchen')

    threads = [threading.Thread(target=drive, args=(robot_id,)) for robot_id in home.robot_ids]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(LIMIT_S)

    poses = [state.pose for state in home.truth().robots]
    assert all(result.is_success for result in results.values()), results
    assert math.dist((poses[0].x_m, poses[0].y_m), (poses[1].x_m, poses[1].y_m)) >= 0.4


def test_two_robots_that_meet_at_a_door_let_each_other_pass() -> None:
    home = open_simulated(num_robots=2)
    assert do(home, 'navigate', robot_id='robot2', target='kitchen').is_success
    results: dict[str, StepResult] = {}

    def swap(robot_id: str, place: str) -> None:
        results[robot_id] = do(home, 'navigate', robot_id=robot_id, target=place)

    places = {'robot1': 'kitchen', 'robot2': 'living_room'}
    threads = [threading.Thread(target=swap, args=each) for each in places.items()]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(LIMIT_S)

    assert all(result.is_success for result in results.values()), results
    assert {state.robot_id: state.room for state in home.truth().robots} == places


def test_two_robots_dock_in_two_bays() -> None:
    home = open_simulated(num_robots=2)
    for robot_id in home.robot_ids:
        assert do(home, 'navigate', robot_id=robot_id, target='bedroom').is_success
    for robot_id in reversed(home.robot_ids):
        assert do(home, 'dock', robot_id=robot_id).is_success
    assert all(state.is_docked for state in home.truth().robots)


def test_a_robot_sees_what_another_holds_but_cannot_take_it() -> None:
    home = open_simulated(num_robots=2)
    succeed(home, ('navigate', {'target': 'kitchen'}), ('pick', {'target': 'cup1'}))
    assert do(home, 'navigate', robot_id='robot2', target='kitchen').is_success

    result = do(home, 'pick', robot_id='robot2', target='cup1')

    assert result.outcome is Outcome.PRECONDITION_FAILURE
    assert 'robot1' in result.message
