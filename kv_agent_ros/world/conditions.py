"""Is a plan's condition true in the world: yes, no, or not known. An unknown is never taken for a yes or a no."""

from dataclasses import dataclass
from enum import Enum
import math

from kv_agent_ros.robot.base import Argument
from kv_agent_ros.robot.plan import Condition, Operator
from kv_agent_ros.world.names import resolve_door, resolve_object
from kv_agent_ros.world.properties import is_stamp, property_seen_s
from kv_agent_ros.world.state import Door, ObjectState, WorldState

EQUAL_TOLERANCE = 0.01  # == between measured numbers


class Truth(Enum):
    """What is known about a condition."""

    TRUE = 'true'
    """It holds, by a measurement young enough."""
    FALSE = 'false'
    """It does not hold, by a measurement young enough."""
    UNKNOWN = 'unknown'
    """Nobody measured it, or too long ago, or the name fits several things."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Evaluation:
    """The truth and the sentence that a person and the planner read."""

    truth: Truth
    reason: str


def evaluate(condition: Condition, world: WorldState, now_s: float, max_age_s: float) -> Evaluation:
    """Evaluate on what was measured within `max_age_s` before `now_s` (ROS time).

    The target is an object (properties: what was measured, plus `location`, `room`, `category`) or a door
    (`state`: 'open' or 'closed').
    """
    door = resolve_door(world, condition.target)
    if isinstance(door, Door):
        return _evaluate_door(condition, door)
    thing = resolve_object(world, condition.target)
    if not isinstance(thing, ObjectState):
        return _unknown(thing.reason)
    own = {'location': thing.location, 'room': thing.room, 'category': thing.category}
    value = own.get(condition.property) or thing.properties.get(condition.property)
    if value is None or value == '' or is_stamp(condition.property):
        return _unknown(f'{thing.object_id}.{condition.property} was never measured')
    seen_s = thing.seen_s if condition.property in own else property_seen_s(thing, condition.property)
    if now_s - seen_s > max_age_s:
        return _unknown(
            f'{thing.object_id}.{condition.property} is {now_s - seen_s:.0f} s old, limit {max_age_s:.0f} s'
        )
    return _compare(condition, value)


def _evaluate_door(condition: Condition, door: Door) -> Evaluation:
    if condition.property != 'state':
        return _unknown(f'a door has a state, no {condition.property}')
    return _compare(condition, 'open' if door.is_open else 'closed')


def _compare(condition: Condition, value: Argument) -> Evaluation:
    wanted = condition.value
    reason = f'{condition.target}.{condition.property} is {value}'
    if isinstance(value, str) or isinstance(wanted, str):
        if condition.operator is not Operator.EQUAL or type(value) is not type(wanted):
            return _unknown(f'{reason}, which cannot be compared by {condition.operator.value} with {wanted!r}')
        return _known(value == wanted, reason)
    if not math.isfinite(value) or not math.isfinite(wanted):
        return _unknown(f'{reason}, compared with {wanted}: expected finite numbers')
    if condition.operator is Operator.AT_LEAST:
        return _known(value >= wanted, reason)
    if condition.operator is Operator.AT_MOST:
        return _known(value <= wanted, reason)
    return _known(abs(value - wanted) <= EQUAL_TOLERANCE, reason)


def _known(is_true: bool, reason: str) -> Evaluation:
    return Evaluation(truth=Truth.TRUE if is_true else Truth.FALSE, reason=reason)


def _unknown(reason: str) -> Evaluation:
    return Evaluation(truth=Truth.UNKNOWN, reason=reason)
