"""The judge on any step and any plan: it never raises, never allows what is unknown, and never changes its mind."""

from dataclasses import replace
import math
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from kv_agent_ros.harness.base import Decision
from kv_agent_ros.harness.judge import MAX_LANES, Judge, decide
from kv_agent_ros.harness.objections import Law
from kv_agent_ros.harness.policy import load_policy
from kv_agent_ros.harness.rules import GATE_ERROR, REQUEST_RULES, WORLD_RULES
from kv_agent_ros.robot.base import Step
from kv_agent_ros.robot.plan import Branch, Condition, Operator, Plan
from kv_agent_ros.robot.skills import HOUSEHOLD_SKILLS
from kv_agent_ros.world.fake import example_cup, example_world, with_objects
from kv_agent_ros.world.predict import predict_step
from kv_agent_ros.world.state import Prediction, WorldState

POLICY = load_policy(Path(__file__).parents[2] / 'config' / 'policies' / 'default.yaml')
WORLD = with_objects(example_world('robot1', 100.0), example_cup('cup_1', 1.0, 100.0))


def predict(world: WorldState, robot_id: str, step: Step) -> Prediction:
    return predict_step(world, robot_id, step, HOUSEHOLD_SKILLS)


JUDGE = Judge('robot1', HOUSEHOLD_SKILLS, Law(policy=POLICY, predict=predict))
SKILLS = st.sampled_from([skill.name for skill in HOUSEHOLD_SKILLS]) | st.text(max_size=10)
NAMES = st.sampled_from(['kitchen', 'sink', 'table', 'dock', 'cup', 'cup_1', 'kitchen_door', 'bowl']) | st.text(
    max_size=6
)
ARGUMENTS = st.dictionaries(
    st.sampled_from(['target', 'speed_mps', 'fraction', 'duration_s', 'nose']),
    NAMES | st.floats() | st.sampled_from([0.5, 1.0]),
    max_size=3,
)
STEPS = st.builds(lambda skill, arguments: Step(skill=skill, arguments=arguments), SKILLS, ARGUMENTS)


@given(st.lists(STEPS, max_size=6))
def test_any_plan_gets_the_same_verdict_twice_and_no_rule_breaks(steps: list[Step]) -> None:
    plan = Plan(steps=tuple(steps))
    findings = JUDGE.judge_plan(plan, WORLD, 100.0)
    assert [(f.rule_id, f.decision, f.step_index) for f in findings] == [
        (f.rule_id, f.decision, f.step_index) for f in JUDGE.judge_plan(plan, WORLD, 100.0)
    ]
    assert GATE_ERROR not in {finding.rule_id for finding in findings}


@given(st.lists(STEPS, min_size=1, max_size=6))
def test_plan_with_anything_unknown_or_not_finite_is_rejected(steps: list[Step]) -> None:
    known = {skill.name for skill in HOUSEHOLD_SKILLS}
    numbers = [value for step in steps for value in step.arguments.values() if isinstance(value, float)]
    is_bad = any(step.skill not in known for step in steps) or not all(map(math.isfinite, numbers))
    if is_bad:
        assert decide(JUDGE.judge_plan(Plan(steps=tuple(steps)), WORLD, 100.0)) is Decision.REJECT


@settings(max_examples=30)
@given(st.lists(st.sampled_from(['kitchen', 'sink', 'table', 'living_room']), min_size=1, max_size=6))
def test_plan_that_only_drives_about_an_empty_home_is_allowed(places: list[str]) -> None:
    steps = tuple(Step(skill='navigate', arguments={'target': place}) for place in places)
    assert JUDGE.judge_plan(Plan(steps=steps), WORLD, 100.0) == ()


def test_too_many_ways_through_the_branches_break_the_budget() -> None:
    condition = Condition(target='cup', property='fill_level', operator=Operator.AT_LEAST, value=0.5)
    count = MAX_LANES.bit_length()
    plan = Plan(
        steps=tuple(Step(skill='dock', branch_id=index) for index in range(1, count + 1)),
        branches=tuple(Branch(branch_id=index, condition=condition) for index in range(1, count + 1)),
    )
    assert {finding.rule_id for finding in JUDGE.judge_plan(plan, WORLD, 100.0)} == {'plan.budget'}


def test_rehearsal_that_breaks_is_a_no() -> None:
    def broken(world: WorldState, robot_id: str, step: Step) -> Prediction:
        raise KeyError('bug')

    judge = Judge('robot1', HOUSEHOLD_SKILLS, Law(policy=POLICY, predict=broken))
    findings = judge.judge_plan(Plan(steps=(Step(skill='dock'),)), WORLD, 100.0)
    assert {finding.rule_id for finding in findings} == {GATE_ERROR}


def test_condition_on_a_thing_that_does_not_exist_is_refused() -> None:
    condition = Condition(target='unicorn', property='fill_level', operator=Operator.AT_LEAST, value=0.5)
    plan = Plan(steps=(Step(skill='dock', branch_id=1),), branches=(Branch(branch_id=1, condition=condition),))
    assert {finding.rule_id for finding in JUDGE.judge_plan(plan, WORLD, 100.0)} == {'name.unknown'}


def test_rule_ids_are_unique_and_stable() -> None:
    assert [rule_id for rule_id, _ in REQUEST_RULES + WORLD_RULES] == [
        'skill.unknown',
        'argument.schema',
        'argument.range',
        'name.unknown',
        'object.ambiguous',
        'world.stale',
        'pour.target',
        'category.forbidden',
        'precondition',
        'zone.keep_out',
        'person.near',
        'battery.reserve',
        'approval.required',
    ]


def test_robot_nobody_has_observed_does_nothing() -> None:
    world = replace(WORLD, robots=())
    findings = JUDGE.judge_plan(Plan(steps=(Step(skill='dock'),)), world, 100.0)
    assert 'world.stale' in {finding.rule_id for finding in findings}
