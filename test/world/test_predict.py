"""The rehearsal of steps: preconditions, routes, costs, the world after."""

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st
import pytest

from kv_agent_ros.robot.base import Argument, Pose, Step
from kv_agent_ros.robot.skills import HOUSEHOLD_SKILLS
from kv_agent_ros.world.fake import example_cup, example_robot, example_world, with_objects
from kv_agent_ros.world.predict import predict_step
from kv_agent_ros.world.state import Prediction, WorldState


def step(skill: str, **arguments: Argument) -> Step:
    """A step of the household skills."""
    return Step(skill=skill, arguments=arguments)


def rehearse(world: WorldState, skill: str, **arguments: Argument) -> Prediction:
    """One step of robot1."""
    return predict_step(world, 'robot1', step(skill, **arguments), HOUSEHOLD_SKILLS)


def at(world: WorldState, x_m: float, y_m: float, room: str, holding: str = '') -> WorldState:
    """The world with robot1 standing there, undocked."""
    robot = replace(
        example_robot('robot1', 1.0), pose=Pose(x_m=x_m, y_m=y_m), room=room, is_docked=False, holding=holding
    )
    return replace(world, robots=(robot,))


HOME = example_world('robot1', 1.0)
WITH_CUP = with_objects(HOME, example_cup('cup_1', 0.9, 1.0))
AT_COUNTER = at(WITH_CUP, 1.0, 3.0, 'kitchen')
AT_SINK_HOLDING = at(WITH_CUP, 3.0, 3.0, 'kitchen', 'cup_1')


def test_navigate_goes_through_the_door_and_costs_time_and_battery() -> None:
    prediction = rehearse(HOME, 'navigate', target='kitchen_counter')
    assert prediction.is_feasible
    assert prediction.path == ((8.0, 2.0), (4.0, 2.0), (1.0, 3.0))
    assert prediction.distance_m == pytest.approx(4.0 + 10.0**0.5)
    assert prediction.duration_s == pytest.approx(1.25 * prediction.distance_m / 0.5)
    robot = prediction.world.robots[0]
    assert (robot.room, robot.is_docked, robot.pose) == ('kitchen', False, Pose(x_m=1.0, y_m=3.0))
    assert robot.battery == pytest.approx(1.0 - prediction.battery_used)
    assert prediction.battery_used > 0.0


def test_a_faster_speed_takes_less_time() -> None:
    slow = rehearse(HOME, 'navigate', target='kitchen', speed_mps=0.25)
    fast = rehearse(HOME, 'navigate', target='kitchen', speed_mps=1.0)
    assert slow.duration_s == pytest.approx(4.0 * fast.duration_s)


def test_a_closed_door_is_no_way_and_opening_it_makes_one() -> None:
    shut = replace(HOME, doors=tuple(replace(door, is_open=False) for door in HOME.doors))
    refused = rehearse(shut, 'navigate', target='kitchen')
    assert not refused.is_feasible
    assert 'closed kitchen_door; open it first' in refused.reason
    opened = rehearse(shut, 'open', target='kitchen_door')
    assert rehearse(opened.world, 'navigate', target='kitchen').is_feasible


def test_the_whole_water_task_can_be_rehearsed_before_any_cup_was_seen() -> None:
    world = HOME
    for each in (
        step('navigate', target='kitchen'),
        step('find', target='cup'),
        step('inspect', target='cup'),
        step('pick', target='cup'),
        step('navigate', target='sink'),
        step('pour', target='sink', fraction=0.5),
        step('navigate', target='kitchen_counter'),
        step('place', target='kitchen_counter'),
        step('dock'),
    ):
        prediction = predict_step(world, 'robot1', each, HOUSEHOLD_SKILLS)
        assert prediction.is_feasible, f'{each}: {prediction.reason}'
        world = prediction.world
    assert world.robots[0].is_docked
    assert (world.objects[0].object_id, world.objects[0].location) == ('cup', 'kitchen_counter')
    assert 'fill_level' not in world.objects[0].properties


def test_pick_then_navigate_carries_the_object() -> None:
    picked = rehearse(AT_COUNTER, 'pick', target='cup').world
    carried = rehearse(picked, 'navigate', target='table').world
    assert carried.robots[0].holding == 'cup_1'
    assert (carried.objects[0].location, carried.objects[0].room) == ('robot1', 'living_room')


def test_handling_drives_within_the_room() -> None:
    in_kitchen = at(WITH_CUP, 3.0, 1.0, 'kitchen')
    inspected = rehearse(in_kitchen, 'inspect', target='cup')
    assert inspected.path == ((3.0, 1.0), (1.0, 3.0))
    assert inspected.world.robots[0].pose == Pose(x_m=1.0, y_m=3.0)
    picked = rehearse(inspected.world, 'pick', target='cup')
    assert picked.distance_m == 0.0
    poured = rehearse(picked.world, 'pour', target='sink', fraction=1.0)
    assert (poured.distance_m, poured.world.objects[0].properties['fill_level']) == (2.0, 0.0)


def test_a_door_is_turned_from_the_side_of_the_robot() -> None:
    shut = replace(HOME, doors=tuple(replace(door, is_open=False) for door in HOME.doors))
    opened = rehearse(shut, 'open', target='kitchen_door')
    assert opened.path == ((8.0, 2.0), (5.0, 2.0))
    assert (opened.world.robots[0].room, opened.world.doors[0].is_open) == ('living_room', True)


def test_pour_leaves_the_rest() -> None:
    poured = rehearse(AT_SINK_HOLDING, 'pour', target='sink', fraction=0.5)
    assert poured.world.objects[0].properties['fill_level'] == pytest.approx(0.45)


def test_place_puts_the_object_on_the_furniture() -> None:
    placed = rehearse(at(WITH_CUP, 6.0, 1.7, 'living_room', 'cup_1'), 'place', target='table')
    assert placed.world.robots[0].holding == ''
    assert (placed.world.objects[0].location, placed.world.objects[0].room) == ('table', 'living_room')


TWO_CUPS = with_objects(AT_COUNTER, example_cup('cup_1', 0.9, 1.0), example_cup('cup_2', 0.1, 1.0))
HELD_ELSEWHERE = replace(
    AT_COUNTER, robots=(*AT_COUNTER.robots, replace(example_robot('robot2', 1.0), holding='cup_1'))
)
NOT_MEASURED = with_objects(AT_SINK_HOLDING, replace(example_cup('cup_1', 0.0, 1.0), properties={}))
REFUSALS = [
    (HOME, 'fly', {}, "'fly' is no skill of robot1"),
    (HOME, 'navigate', {}, 'argument target is missing'),
    (HOME, 'navigate', {'target': 3.0}, 'expected a name'),
    (HOME, 'navigate', {'target': 'kitchn'}, 'nearest: kitchen'),
    (HOME, 'navigate', {'target': 'kitchen', 'speed_mps': float('inf')}, 'expected 0.05 to 1 m/s, got inf'),
    (HOME, 'navigate', {'target': 'kitchen', 'speed_mps': float('nan')}, 'got nan'),
    (HOME, 'navigate', {'target': 'kitchen', 'speed_mps': 'fast'}, "got 'fast'"),
    (HOME, 'wait', {'duration_s': 1e12}, 'expected 0 to 60 s'),
    (HOME, 'find', {'target': 'unicorn'}, 'no object'),
    (HOME, 'inspect', {'target': 'cup'}, 'find it first'),
    (HOME, 'pick', {'target': 'cup'}, 'find it first'),
    (WITH_CUP, 'pick', {'target': 'cup'}, 'out of reach'),
    (TWO_CUPS, 'pick', {'target': 'cup'}, 'cup_1 or cup_2; name one'),
    (AT_SINK_HOLDING, 'pick', {'target': 'cup'}, 'the gripper holds cup_1'),
    (HELD_ELSEWHERE, 'pick', {'target': 'cup'}, 'held by robot2'),
    (AT_COUNTER, 'place', {'target': 'kitchen_counter'}, 'the gripper is empty'),
    (
        AT_SINK_HOLDING,
        'place',
        {'target': 'table'},
        'table is out of reach: it is in living_room, the robot in kitchen',
    ),
    (AT_SINK_HOLDING, 'place', {'target': 'sink'}, 'sink is no surface'),
    (AT_SINK_HOLDING, 'pour', {'target': 'kitchen_counter', 'fraction': 0.5}, 'kitchen_counter is no sink'),
    (AT_SINK_HOLDING, 'pour', {'target': 'sink', 'fraction': 1.5}, 'expected 0 to 1'),
    (NOT_MEASURED, 'pour', {'target': 'sink', 'fraction': 0.5}, 'never measured; inspect it first'),
    (HOME, 'open', {'target': 'garage_door'}, 'no door'),
]


@pytest.mark.parametrize(('world', 'skill', 'arguments', 'reason'), REFUSALS)
def test_what_cannot_be_done_is_refused_with_the_reason(
    world: WorldState, skill: str, arguments: dict[str, Argument], reason: str
) -> None:
    prediction = predict_step(world, 'robot1', Step(skill=skill, arguments=arguments), HOUSEHOLD_SKILLS)
    assert not prediction.is_feasible
    assert reason in prediction.reason
    assert prediction.world == world


def test_an_unknown_robot_can_do_nothing() -> None:
    prediction = predict_step(HOME, 'robot9', step('dock'), HOUSEHOLD_SKILLS)
    assert not prediction.is_feasible
    assert "'robot9' has never been observed" in prediction.reason


def test_a_skill_that_this_robot_lacks_is_refused() -> None:
    prediction = predict_step(HOME, 'robot1', step('pick', target='cup'), HOUSEHOLD_SKILLS[:1])
    assert not prediction.is_feasible


def test_an_empty_battery_ends_the_rehearsal() -> None:
    weak = replace(HOME, robots=(replace(HOME.robots[0], battery=0.005),))
    assert 'battery' in rehearse(weak, 'navigate', target='kitchen_counter').reason


def test_a_docked_robot_stays_docked() -> None:
    prediction = rehearse(HOME, 'dock')
    assert (prediction.distance_m, prediction.world.robots[0].is_docked) == (0.0, True)


NAMES = st.sampled_from(['kitchen', 'living_room', 'sink', 'table', 'cup', 'cup_1', 'kitchen_door', 'nothing', ''])
STEPS = st.builds(
    lambda skill, target, number: Step(
        skill=skill, arguments={'target': target, 'fraction': number, 'duration_s': number}
    ),
    st.sampled_from([skill.name for skill in HOUSEHOLD_SKILLS]),
    NAMES,
    st.floats(),
)


@given(st.lists(STEPS, max_size=8))
def test_any_sequence_of_steps_is_rehearsed_twice_alike_and_never_raises(steps: list[Step]) -> None:
    world = WITH_CUP
    for each in steps:
        prediction = predict_step(world, 'robot1', each, HOUSEHOLD_SKILLS)
        assert prediction == predict_step(world, 'robot1', each, HOUSEHOLD_SKILLS)
        assert prediction.is_feasible == (prediction.reason == '')
        assert prediction.world.robots[0].battery == pytest.approx(world.robots[0].battery - prediction.battery_used)
        assert len(prediction.world.robots) == 1
        world = prediction.world
