"""The plan language: JSON and plan say the same, and what is not plan language is refused."""

from hypothesis import given, settings
from hypothesis import strategies as st
import pytest

from kv_agent_ros.errors import BadRequestError
from kv_agent_ros.robot.base import Step
from kv_agent_ros.robot.plan import (
    MAX_DEPTH,
    Branch,
    Condition,
    Json,
    Operator,
    Plan,
    PlanSource,
    enclosing_arms,
    plan_from_json,
    plan_to_json,
)

NAMES = st.text(min_size=1, max_size=8)
NUMBERS = st.floats(allow_nan=False, allow_infinity=False, width=32)
STEPS = st.builds(
    lambda skill, arguments: {**arguments, 'skill': skill},
    NAMES,
    st.dictionaries(NAMES.filter(lambda name: name not in ('skill', 'if')), st.one_of(NAMES, NUMBERS), max_size=3),
)
CONDITIONS = st.fixed_dictionaries(
    {
        'target': NAMES,
        'property': NAMES,
        'operator': st.sampled_from(['>=', '<=', '==']),
        'value': st.one_of(NAMES, NUMBERS),
    }
)


def arms(depth: int) -> st.SearchStrategy[list[Json]]:
    nodes = STEPS if depth == MAX_DEPTH else st.one_of(STEPS, branches(depth))
    return st.lists(nodes, min_size=1, max_size=3)


def branches(depth: int) -> st.SearchStrategy[Json]:
    inner = st.deferred(lambda: arms(depth + 1))
    return st.fixed_dictionaries({'if': CONDITIONS, 'then': inner}, optional={'else': inner})


@settings(deadline=None)
@given(arms(1).map(lambda nodes: {'plan': nodes}))
def test_a_plan_survives_the_way_to_json_and_back(document: Json) -> None:
    plan = plan_from_json(document, PlanSource.MODEL)
    assert plan_from_json(plan_to_json(plan), PlanSource.MODEL) == plan
    assert plan_to_json(plan) == document


@settings(deadline=None)
@given(
    st.recursive(
        st.none() | st.booleans() | NUMBERS | NAMES, lambda inner: st.lists(inner) | st.dictionaries(NAMES, inner)
    )
)
def test_any_json_is_a_plan_or_a_bad_request(document: Json) -> None:
    for candidate in (document, {'plan': document}, {'plan': [document]}):
        try:
            plan_from_json(candidate, PlanSource.MODEL)
        except BadRequestError:
            continue


@pytest.mark.parametrize(
    ('document', 'complaint'),
    [
        ({'plan': []}, 'at least one step'),
        ({'plan': [{'skill': 'dock'}] * 65}, 'at most 64 steps'),
        ({'plan': [{'skill': 'wait', 'duration_s': float('inf')}]}, 'finite'),
        ({'plan': [{'skill': 'wait', 'duration_s': True}]}, 'finite'),
        ({'plan': [{'target': 'kitchen'}]}, '"skill"'),
        ({'plan': [{'if': {'target': 'cup'}, 'then': []}]}, 'condition'),
        ({'plan': [{'skill': 'dock'}], 'note': 'obey'}, 'one key'),
        ({'plan': [{'skill': 'dock', 'then': []}]}, "'then'"),
    ],
)
def test_what_is_no_plan_is_refused_with_its_reason(document: Json, complaint: str) -> None:
    with pytest.raises(BadRequestError, match=complaint):
        plan_from_json(document, PlanSource.MODEL)


def test_equal_plans_have_equal_ids_whoever_wrote_them() -> None:
    document: Json = {'plan': [{'skill': 'dock'}]}
    model, rule = (plan_from_json(document, source) for source in (PlanSource.MODEL, PlanSource.RULE))
    assert model.plan_id == rule.plan_id
    assert model.plan_id != plan_from_json({'plan': [{'skill': 'dock'}] * 2}, PlanSource.MODEL).plan_id


def step(skill: str, **place: int | bool) -> Step:
    return Step(skill=skill, branch_id=int(place.get('branch_id', 0)), arm=bool(place.get('arm', True)))


IF_FULL = Branch(
    branch_id=1, condition=Condition(target='cup', property='fill_level', operator=Operator.AT_LEAST, value=0.9)
)


@pytest.mark.parametrize(
    ('one', 'other'),
    [
        pytest.param(
            Plan(steps=(step('open', arm=False),)), Plan(steps=(step('close', arm=False),)), id='of steps without arm'
        ),
        pytest.param(
            Plan(steps=(step('pour', branch_id=1), step('dock'), step('place', branch_id=1)), branches=(IF_FULL,)),
            Plan(steps=(step('pour', branch_id=1), step('place', branch_id=1), step('dock')), branches=(IF_FULL,)),
            id='of another order',
        ),
        pytest.param(
            Plan(steps=(step('pour', branch_id=1),), branches=(IF_FULL,)),
            Plan(steps=(step('pour', branch_id=1, arm=False),), branches=(IF_FULL,)),
            id='of the other arm',
        ),
    ],
)
def test_plans_that_do_different_things_have_different_ids(one: Plan, other: Plan) -> None:
    assert one.plan_id != other.plan_id


def test_a_step_outside_of_all_branches_has_no_arm_to_tell_apart() -> None:
    plans = [Plan(steps=(step('dock', arm=arm),)) for arm in (True, False)]
    assert plans[0].plan_id == plans[1].plan_id
    assert [plan_to_json(plan) for plan in plans] == [{'plan': [{'skill': 'dock'}]}] * 2


def test_a_whole_number_is_the_same_argument_as_its_float() -> None:
    ids = {Plan(steps=(Step(skill='wait', arguments={'duration_s': value}),)).plan_id for value in (5, 5.0)}
    assert len(ids) == 1


def test_a_step_knows_its_arms_from_the_inside_out() -> None:
    inner = {
        'if': {'target': 'b', 'property': 'p', 'operator': '==', 'value': 1.0},
        'then': [],
        'else': [{'skill': 'x'}],
    }
    document: Json = {
        'plan': [{'if': {'target': 'a', 'property': 'p', 'operator': '>=', 'value': 1.0}, 'then': [inner]}]
    }
    plan = plan_from_json(document, PlanSource.MODEL)
    assert plan.steps == (Step(skill='x', branch_id=2, arm=False),)
    assert [(branch.condition.target, arm) for branch, arm in enclosing_arms(plan, plan.steps[0])] == [
        ('b', False),
        ('a', True),
    ]
