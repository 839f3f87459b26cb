"""Post-conditions: only what was observed after the act counts."""

from dataclasses import replace

import pytest

from kv_agent_ros.robot.base import Argument, Pose, RobotState, Step
from kv_agent_ros.world.effects import check_effect
from kv_agent_ros.world.fake import example_cup, example_robot, example_world, with_objects
from kv_agent_ros.world.properties import SEEN_SUFFIX
from kv_agent_ros.world.state import ObjectState, WorldState

HOME = example_world('robot1', 10.0)


def world(stamp_s: float, *objects: ObjectState, **changes: object) -> WorldState:
    """The home as known at that stamp, robot1 changed so."""
    robot: RobotState = replace(example_robot('robot1', stamp_s), **changes)  # type: ignore[arg-type]
    return replace(with_objects(HOME, *objects), stamp_s=stamp_s, robots=(robot,))


def with_door_seen(home: WorldState, seen_s: float) -> WorldState:
    """The same world in which the doors were last seen then."""
    return replace(home, doors=tuple(replace(door, seen_s=seen_s) for door in home.doors))


def step(skill: str, **arguments: Argument) -> Step:
    return Step(skill=skill, arguments=arguments)


CUP = example_cup('cup_1', 0.9, 10.0)
POURED = replace(example_cup('cup_1', 0.45, 20.0), location='robot1')
GLANCE = replace(CUP, seen_s=20.0, properties={'fill_level': 0.9, 'fill_level' + SEEN_SUFFIX: 10.0})
CASES = [
    (step('navigate', target='kitchen'), world(10.0), world(20.0, room='kitchen'), True, 'kitchen'),
    (step('navigate', target='kitchen'), world(10.0), world(20.0), False, 'living_room'),
    (
        step('navigate', target='sink'),
        world(10.0),
        world(20.0, pose=Pose(x_m=3.0, y_m=2.5), room='kitchen'),
        True,
        '0.50 m',
    ),
    (step('navigate', target='sink'), world(10.0), world(20.0), False, '5.10 m'),
    (
        step('find', target='cup'),
        world(10.0),
        world(20.0, replace(CUP, seen_s=15.0)),
        True,
        'cup_1 was seen 5.00 s later',
    ),
    (step('find', target='cup'), world(10.0, CUP), world(20.0, CUP), False, 'no cup was seen since'),
    (step('inspect', target='cup'), world(10.0, CUP), world(20.0, replace(CUP, seen_s=19.0)), True, 'fill_level 0.90'),
    (step('inspect', target='cup'), world(10.0, CUP), world(20.0, GLANCE), False, 'nothing of cup was measured since'),
    (
        step('inspect', target='cup'),
        world(10.0),
        world(20.0, replace(CUP, seen_s=19.0, properties={}), pose=Pose(x_m=1.0, y_m=3.0), room='kitchen'),
        True,
        'from 0.70 m; nothing to measure',
    ),
    (
        step('inspect', target='cup'),
        world(10.0),
        world(20.0, replace(CUP, seen_s=19.0, properties={})),
        False,
        'nothing of cup was measured since',
    ),
    (step('pick', target='cup'), world(10.0, CUP), world(20.0, CUP, holding='cup_1'), True, 'holds cup_1'),
    (step('pick', target='cup'), world(10.0, CUP), world(20.0, CUP), False, 'empty'),
    (step('pick', target='cup'), world(10.0, CUP), world(20.0, CUP, holding='bowl_1'), False, 'holds bowl_1'),
    (
        step('place', target='kitchen_counter'),
        world(10.0, CUP, holding='cup_1'),
        world(20.0, replace(CUP, seen_s=19.0)),
        True,
        'cup_1 was seen on kitchen_counter',
    ),
    (
        step('place', target='table'),
        world(10.0, CUP, holding='cup_1'),
        world(20.0, replace(CUP, seen_s=19.0)),
        False,
        'on kitchen_counter',
    ),
    (
        step('place', target='kitchen_counter'),
        world(10.0, CUP, holding='cup_1'),
        world(20.0, CUP, holding='cup_1'),
        False,
        'still holds',
    ),
    (
        step('place', target='kitchen_counter'),
        world(10.0, CUP, holding='cup_1'),
        world(20.0, CUP),
        False,
        'not seen anywhere since',
    ),
    (step('place', target='kitchen_counter'), world(10.0, CUP), world(20.0, CUP), False, 'empty before'),
    (
        step('pour', target='sink', fraction=0.5),
        world(10.0, CUP, holding='cup_1'),
        world(20.0, POURED, holding='cup_1'),
        True,
        'was 90% full, is 45% full, expected 45%',
    ),
    (
        step('pour', target='sink', fraction=0.5),
        world(10.0, CUP, holding='cup_1'),
        world(20.0, replace(CUP, seen_s=20.0), holding='cup_1'),
        False,
        'is 90% full',
    ),
    (
        step('pour', target='sink', fraction=0.5),
        world(10.0, CUP, holding='cup_1'),
        world(20.0, GLANCE, holding='cup_1'),
        False,
        'not measured since',
    ),
    (
        step('pour', target='sink', fraction=0.5),
        world(10.0, replace(CUP, properties={}), holding='cup_1'),
        world(20.0, POURED, holding='cup_1'),
        False,
        'before the act is unknown',
    ),
    (step('dock'), world(10.0, is_docked=False), world(20.0), True, 'docked'),
    (step('dock'), world(10.0), world(20.0, is_docked=False), False, 'not docked'),
    (step('open', target='kitchen_door'), world(10.0), with_door_seen(world(20.0), 20.0), True, 'kitchen_door is open'),
    (step('open', target='kitchen_door'), world(10.0), world(20.0), False, 'kitchen_door was not seen since'),
    (
        step('open', target='kitchen_door'),
        world(10.0),
        with_door_seen(world(20.0), 10.0),
        False,
        'kitchen_door was not seen since',
    ),
    (step('close', target='kitchen_door'), world(10.0), with_door_seen(world(20.0), 20.0), False, 'is open'),
    (step('wait', duration_s=1.0), world(10.0), world(11.0), True, '1.00 s'),
    (step('fly'), world(10.0), world(20.0), False, 'no post-condition'),
]


@pytest.mark.parametrize(('act', 'before', 'after', 'is_met', 'evidence'), CASES)
def test_the_world_after_the_act_decides(
    act: Step, before: WorldState, after: WorldState, is_met: bool, evidence: str
) -> None:
    check = check_effect(act, 'robot1', before, after)
    assert (check.is_met, evidence in check.evidence) == (is_met, True), check.evidence


@pytest.mark.parametrize(('act', 'before', 'after'), [case[:3] for case in CASES if case[3]])
def test_an_observation_that_is_not_later_proves_nothing(act: Step, before: WorldState, after: WorldState) -> None:
    stale = replace(after, robots=tuple(replace(robot, stamp_s=10.0) for robot in after.robots))
    check = check_effect(act, 'robot1', before, stale)
    assert not check.is_met
    assert 'no observation' in check.evidence


def test_an_unseen_robot_proves_nothing() -> None:
    assert not check_effect(step('wait'), 'robot9', HOME, HOME).is_met
