import itertools
import math
from pathlib import Path
import subprocess
import sys

from hypothesis import example, given, settings
from hypothesis import strategies as st
import pytest
from shapely import LineString, Polygon

from kv_agent_ros.robot.base import Pose, Velocity
from kv_agent_ros.robot.engine import FREE, WALL, Engine
from kv_agent_ros.robot.paths import length_m

HOME = Path(__file__).parents[2] / 'config' / 'worlds' / 'home.yaml'
DOCKED = {'robot1': Pose(x_m=9.8, y_m=3.2), 'robot2': Pose(x_m=9.8, y_m=2.6)}
ENGINE = Engine(HOME, DOCKED)  # for tests that change nothing


@settings(max_examples=40, deadline=None)
@given(st.floats(0.0, 10.5), st.floats(0.0, 8.0))
@example(7.5, 1.0)  # the nearest free cell lies around a corner
def test_every_path_stays_on_the_floor_and_ends_at_its_goal(x: float, y: float) -> None:
    region = ENGINE.region('robot1', ())
    path = ENGINE.plan('robot1', region, (x, y))
    if path:
        assert path[0] == (9.8, 3.2)
        assert path[-1] == (x, y)
        assert region.buffer(0.01).covers(LineString(path))
        assert length_m(path) >= math.dist(path[0], path[-1]) - 1e-9


def test_there_is_a_path_from_the_dock_to_every_stand_of_the_home() -> None:
    region = ENGINE.region('robot1', ())
    for place in ENGINE.locations():
        if place != 'dock':
            for stand in ENGINE.stands(place):
                assert ENGINE.plan('robot1', region, (stand.x_m, stand.y_m)), f'{place}: {stand}'


def test_there_is_no_path_into_a_wall_or_around_what_closes_the_room() -> None:
    wall = Polygon([(4.0, 0.0), (4.5, 0.0), (4.5, 8.0), (4.0, 8.0)])
    assert ENGINE.plan('robot1', ENGINE.region('robot1', ()), (4.25, 0.5)) == ()
    assert ENGINE.plan('robot1', ENGINE.region('robot1', (wall,)), (2.4, 2.2)) == ()
    assert ENGINE.plan('robot1', ENGINE.region('robot1', ()), (2.4, 2.2))


def test_a_robot_that_meets_a_wall_or_a_robot_does_not_move() -> None:
    engine = Engine(HOME, DOCKED)
    before = engine.pose('robot1')
    assert engine.move('robot1', Velocity(linear_mps=1.0), 0.5) == WALL
    engine.move('robot1', Velocity(angular_radps=-1.0), math.pi / 2)
    assert engine.move('robot1', Velocity(linear_mps=1.0), 0.3) == 'robot2'
    after = engine.pose('robot1')
    assert (after.x_m, after.y_m) == (before.x_m, before.y_m)


def test_a_person_is_in_the_way_only_while_coming_nearer() -> None:
    engine = Engine(HOME, DOCKED)
    engine.people = {'anna': (9.2, 3.2)}
    assert engine.move('robot1', Velocity(linear_mps=-0.5), 0.5) == 'anna'
    engine.people = {'anna': (9.4, 3.2)}
    assert engine.move('robot1', Velocity(linear_mps=0.1), 0.5) == FREE


def test_walls_and_closed_doors_hide_what_is_behind_them() -> None:
    engine = Engine(HOME, DOCKED)
    assert engine.can_see((3.5, 2.0), (5.0, 2.0))
    assert not engine.can_see((3.5, 3.0), (5.0, 3.0))
    assert engine.close_door('kitchen_hallway')
    assert not engine.can_see((3.5, 2.0), (5.0, 2.0))


def test_a_door_does_not_close_on_a_robot() -> None:
    engine = Engine(HOME, {'robot1': Pose(x_m=4.25, y_m=2.0)})
    assert not engine.close_door('kitchen_hallway')
    assert engine.is_open('kitchen_hallway')


@pytest.mark.parametrize(
    ('point', 'room'),
    [((2.0, 2.0), 'kitchen'), ((4.25, 2.0), 'kitchen_hallway'), ((3.8, 2.0), 'kitchen'), ((20.0, 2.0), '')],
)
def test_a_room_goes_before_the_hallway_that_reaches_into_it(point: tuple[float, float], room: str) -> None:
    assert ENGINE.room_at(point) == room


def test_objects_go_from_furniture_to_gripper_to_the_nearest_free_spot() -> None:
    engine = Engine(HOME, {'robot1': Pose(x_m=1.2, y_m=1.7)})
    engine.things.take('robot1', 'cup1')
    assert engine.things.held_by('robot1') == 'cup1'
    assert engine.things.put('robot1', 'kitchen_table')
    cup = next(thing for thing in engine.things.all() if thing.object_id == 'cup1')
    assert cup.location == 'kitchen_table'
    assert math.dist((cup.pose.x_m, cup.pose.y_m), (1.2, 1.7)) < 0.6
    assert engine.things.held_by('robot1') == ''


def test_placed_objects_never_overlap() -> None:
    engine = Engine(HOME, {'robot1': Pose(x_m=1.2, y_m=1.7)})
    for object_id in ('cup1', 'apple1', 'book1', 'phone1', 'towel1'):
        engine.things.take('robot1', object_id)
        assert engine.things.put('robot1', 'kitchen_table')
    spots = [(t.pose.x_m, t.pose.y_m) for t in engine.things.all() if t.location == 'kitchen_table']
    assert len(spots) == 7
    assert min(math.dist(a, b) for a, b in itertools.combinations(spots, 2)) > 0.07


def test_a_full_table_takes_nothing_and_the_object_stays_in_the_gripper() -> None:
    engine = Engine(HOME, {'robot1': Pose(x_m=8.3, y_m=7.1)})
    assert engine.things.remove('phone1')
    engine.things.take('robot1', 'towel1')
    assert engine.things.put('robot1', 'nightstand')
    engine.things.take('robot1', 'plate1')
    assert not engine.things.put('robot1', 'nightstand')
    assert engine.things.held_by('robot1') == 'plate1'


def test_it_runs_without_a_screen_and_prints_nothing() -> None:
    program = (
        'import sys, pathlib\n'
        'from kv_agent_ros.robot.home_setup import HomeOptions, open_home\n'
        f'home = open_home(pathlib.Path({str(HOME)!r}), ["robot1"], HomeOptions())\n'
        'home.sense("robot1")\n'
        'assert not [name for name in sys.modules if "PySide" in name or "PyQt" in name]\n'
        'import threading; assert threading.active_count() == 1\n'
    )
    done = subprocess.run(
        [sys.executable, '-c', program], capture_output=True, timeout=60, check=False, cwd=HOME.parents[2]
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, b'', b'')
