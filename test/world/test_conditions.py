"""Conditions of plans: true, false, unknown."""

from dataclasses import replace

import pytest

from kv_agent_ros.robot.base import Argument
from kv_agent_ros.robot.plan import Condition, Operator
from kv_agent_ros.world.conditions import Truth, evaluate
from kv_agent_ros.world.fake import example_cup, example_world, with_objects
from kv_agent_ros.world.state import WorldState

HOME = example_world('robot1', 10.0)
FULL = with_objects(HOME, example_cup('cup_1', 0.9, 10.0))
TWO = with_objects(HOME, example_cup('cup_1', 0.9, 10.0), example_cup('cup_2', 0.1, 10.0))
GLANCE = with_objects(
    HOME, replace(example_cup('cup_1', 0.0, 100.0), properties={'fill_level': 0.9, 'fill_level_seen_s': 10.0})
)


CASES: list[tuple[WorldState, str, str, str, Argument, Truth]] = [
    (FULL, 'cup', 'fill_level', '>=', 0.9, Truth.TRUE),
    (FULL, 'cup', 'fill_level', '>=', 0.95, Truth.FALSE),
    (FULL, 'cup', 'fill_level', '<=', 0.9, Truth.TRUE),
    (FULL, 'cup_1', 'fill_level', '==', 0.895, Truth.TRUE),
    (FULL, 'cup_1', 'fill_level', '==', 0.5, Truth.FALSE),
    (FULL, 'cup', 'contains', '==', 'water', Truth.TRUE),
    (FULL, 'cup', 'location', '==', 'table', Truth.FALSE),
    (FULL, 'cup', 'contains', '>=', 'water', Truth.UNKNOWN),
    (FULL, 'cup', 'fill_level', '>=', 'half', Truth.UNKNOWN),
    (FULL, 'cup', 'fill_level', '>=', float('nan'), Truth.UNKNOWN),
    (FULL, 'cup', 'temperature', '>=', 0.5, Truth.UNKNOWN),
    (FULL, 'bowl', 'fill_level', '>=', 0.5, Truth.UNKNOWN),
    (TWO, 'cup', 'fill_level', '>=', 0.5, Truth.UNKNOWN),
    (TWO, 'cup_2', 'fill_level', '>=', 0.5, Truth.FALSE),
    (HOME, 'kitchen_door', 'state', '==', 'open', Truth.TRUE),
    (HOME, 'kitchen_door', 'state', '==', 'closed', Truth.FALSE),
    (HOME, 'kitchen_door', 'fill_level', '==', 0.5, Truth.UNKNOWN),
]


@pytest.mark.parametrize(('world', 'target', 'name', 'operator', 'value', 'truth'), CASES)
def test_a_condition_is_true_false_or_unknown(
    world: WorldState, target: str, name: str, operator: str, value: Argument, truth: Truth
) -> None:
    condition = Condition(target=target, property=name, operator=Operator(operator), value=value)
    evaluation = evaluate(condition, world, 11.0, 30.0)
    assert evaluation.truth is truth, evaluation.reason
    assert evaluation.reason


def test_a_level_measured_too_long_ago_is_unknown_even_if_the_object_was_just_seen() -> None:
    condition = Condition(target='cup', property='fill_level', operator=Operator.AT_LEAST, value=0.5)
    assert evaluate(condition, GLANCE, 39.0, 30.0).truth is Truth.TRUE
    stale = evaluate(condition, GLANCE, 101.0, 30.0)
    assert (stale.truth, '91 s old' in stale.reason) == (Truth.UNKNOWN, True)
