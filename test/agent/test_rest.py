"""What is left of a task: nothing lasting is asked for twice, and what is held is put down."""

from dataclasses import replace

from kv_agent_ros.agent.language import read_instruction
from kv_agent_ros.agent.proof import Moment, judge
from kv_agent_ros.agent.rest import rest_of
from kv_agent_ros.robot.base import Step
from kv_agent_ros.world.fake import example_cup, example_world, with_objects
from kv_agent_ros.world.state import WorldState

DEMO = 'go to the kitchen, check the cup, if it is full pour out half, then return to the dock'
EMPTY_HANDS = example_world('robot1', 10.0)


def world_at(stamp_s: float, level: float, holding: str = '', *, is_docked: bool = False) -> WorldState:
    """The robot in the kitchen with the cup measured at that time."""
    robot = replace(
        EMPTY_HANDS.robots[0],
        stamp_s=stamp_s,
        room='kitchen',
        holding=holding,
        is_docked=is_docked,
        pose=EMPTY_HANDS.map.locations[1].approach,
    )
    cup = replace(example_cup('cup_1', level, stamp_s), location='robot1' if holding else 'kitchen_counter')
    return with_objects(replace(EMPTY_HANDS, robots=(robot,), stamp_s=stamp_s), cup)


def moment(step: Step, before: WorldState, after: WorldState) -> Moment:
    return Moment(step=step, before=before, after=after)


def step(skill: str, target: str = '', **numbers: float) -> Step:
    return Step(skill=skill, arguments={**({'target': target} if target else {}), **numbers})


ARRIVED = moment(step('navigate', 'kitchen'), EMPTY_HANDS, world_at(20.0, 1.0))
LOOKED = moment(step('inspect', 'cup'), world_at(20.0, 1.0), world_at(30.0, 1.0))
TAKEN = moment(step('pick', 'cup'), world_at(30.0, 1.0), world_at(40.0, 1.0, 'cup_1'))
POURED = moment(step('pour', 'sink', fraction=0.5), world_at(40.0, 1.0, 'cup_1'), world_at(50.0, 0.5, 'cup_1'))
PLACED = moment(step('place', 'kitchen_counter'), world_at(50.0, 0.5, 'cup_1'), world_at(60.0, 0.5))
DOCKED = moment(step('dock'), world_at(60.0, 0.5), world_at(70.0, 0.5, is_docked=True))


def test_before_anything_lasting_the_whole_task_is_left() -> None:
    assert rest_of(DEMO, [ARRIVED, LOOKED], world_at(30.0, 1.0), 'robot1') == DEMO


def test_after_pouring_it_is_put_back_and_never_poured_again() -> None:
    left = rest_of(DEMO, [ARRIVED, LOOKED, TAKEN, POURED], world_at(50.0, 0.5, 'cup_1'), 'robot1')
    assert 'pour' not in left
    intents = read_instruction(left, world_at(50.0, 0.5, 'cup_1')).intents
    assert [intent.verb.value for intent in intents] == ['put', 'dock']


def test_after_putting_back_only_docking_is_left() -> None:
    assert (
        rest_of(DEMO, [ARRIVED, LOOKED, TAKEN, POURED, PLACED], world_at(60.0, 0.5), 'robot1') == 'return to the dock'
    )


def test_the_whole_story_is_proof_and_any_missing_part_is_named() -> None:
    intents = read_instruction(DEMO, EMPTY_HANDS).intents
    story = [ARRIVED, LOOKED, TAKEN, POURED, PLACED, DOCKED]
    assert judge(intents, story, world_at(70.0, 0.5, is_docked=True), 'robot1').is_met
    for index, missing in ((0, 'go at kitchen'), (1, 'check cup'), (3, 'pour cup 0.5'), (4, 'put cup'), (5, 'dock')):
        told = judge(intents, story[:index] + story[index + 1 :], world_at(70.0, 0.5, is_docked=True), 'robot1')
        assert not told.is_met and missing in '; '.join(told.missing)


def test_no_steps_are_no_proof_even_if_the_world_looks_right() -> None:
    judgement = judge(read_instruction('return to the dock', EMPTY_HANDS).intents, [], EMPTY_HANDS, 'robot1')
    assert judgement.missing == ('no step was carried out',)


def test_an_observation_from_before_the_act_is_no_proof() -> None:
    echoed = moment(step('dock'), world_at(70.0, 0.5, is_docked=True), world_at(70.0, 0.5, is_docked=True))
    intents = read_instruction('return to the dock', EMPTY_HANDS).intents
    assert not judge(intents, [echoed], world_at(70.0, 0.5, is_docked=True), 'robot1').is_met


def test_a_pour_that_nobody_asked_for_is_named() -> None:
    level = world_at(70.0, 0.5, is_docked=True)
    intents = read_instruction('go to the kitchen, check the cup, then return to the dock', EMPTY_HANDS).intents
    told = judge(intents, [ARRIVED, LOOKED, TAKEN, POURED, PLACED, DOCKED], level, 'robot1')
    assert 'not asked for: pour(target=sink, fraction=0.5)' in told.missing


def test_what_depends_on_a_condition_that_nobody_measured_yet_stays_conditional() -> None:
    task = 'open the kitchen door; go to the kitchen; if the cup is full pour out half; return to the dock'
    closed = replace(EMPTY_HANDS.map.doors[0], is_open=False)
    before = replace(EMPTY_HANDS, doors=(closed,))
    opened = moment(step('open', 'kitchen_door'), before, replace(EMPTY_HANDS, stamp_s=20.0))
    left = rest_of(task, [opened], EMPTY_HANDS, 'robot1')
    assert left.startswith('go to the kitchen; if the cup is full, pour out 50% of the cup') and left.endswith('dock')
