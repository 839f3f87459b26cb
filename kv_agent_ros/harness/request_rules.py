"""Rules about what is asked: known skill, well-formed arguments within limits, names that exist and mean one thing.

They need no rehearsal; a step they object to is not rehearsed.
"""

from collections.abc import Iterator
import difflib
import math

from kv_agent_ros.harness.base import StepContext
from kv_agent_ros.harness.objections import Law, Objection, defer, reject
from kv_agent_ros.robot.base import Argument, ArgumentKind, Parameter
from kv_agent_ros.robot.plan import enclosing_arms
from kv_agent_ros.robot.skills import skill_by_name
from kv_agent_ros.world.names import Ambiguous, Missing, clean_name, resolve_door, resolve_object, resolve_place
from kv_agent_ros.world.state import WorldState

SEARCH_SKILLS = frozenset({'find'})  # skills whose target may be any of a category


def skill_is_known(law: Law, context: StepContext) -> Iterator[Objection]:
    """skill.unknown: the robot has the skill and the policy allows it; everything else is denied."""
    name = context.step.skill
    known = {skill.name for skill in context.skills}
    if name not in known:
        yield reject(f'{clean_name(name)!r} is no skill of {context.robot_id}{_nearest(name, known)}')
    elif name not in law.policy.skills.allowed:
        yield reject(f'{name!r} is not allowed by the policy {law.policy.name!r}')


def arguments_fit_the_skill(law: Law, context: StepContext) -> Iterator[Objection]:
    """argument.schema: no argument missing, unknown or of the wrong type."""
    parameters = _parameters(context)
    for name in context.step.arguments:
        if name not in parameters:
            yield reject(f'{context.step.skill} takes no argument {clean_name(name)!r}, expected {sorted(parameters)}')
    for parameter in parameters.values():
        if parameter.name not in context.step.arguments:
            if parameter.is_required:
                yield reject(f'{context.step.skill} needs the argument {parameter.name!r}')
        elif not _has_type(context.step.arguments[parameter.name], parameter):
            got = context.step.arguments[parameter.name]
            yield reject(f'{parameter.name}: expected a {_type_name(parameter)}, got {got!r:.60}')


def numbers_are_in_range(law: Law, context: StepContext) -> Iterator[Objection]:
    """argument.range: finite, within the skill's range, and within the policy's tighter one, defaults included."""
    limits = law.policy.skills.limits.get(context.step.skill, {})
    for parameter in _parameters(context).values():
        value = context.step.arguments.get(parameter.name, parameter.default)
        if parameter.kind is not ArgumentKind.NUMBER or not _has_type(value, parameter):
            continue
        low, high = parameter.minimum, parameter.maximum
        if parameter.name in limits:
            low, high = max(low, limits[parameter.name].minimum), min(high, limits[parameter.name].maximum)
        number = float(value)
        if not math.isfinite(number) or not low <= number <= high:
            yield reject(f'{parameter.name}: expected {low:g} to {high:g} {parameter.unit}, got {number:g}')


def names_are_known(law: Law, context: StepContext) -> Iterator[Objection]:
    """name.unknown: every place, door and object named by the step and by the conditions around it exists."""
    for parameter in _parameters(context).values():
        name = context.step.arguments.get(parameter.name)
        if isinstance(name, str) and parameter.kind is not ArgumentKind.NUMBER:
            yield from _unknown_name(context.world, parameter.kind, name)
    for branch, _ in enclosing_arms(context.plan, context.step):
        target = branch.condition.target
        if isinstance(resolve_door(context.world, target), Missing):
            yield from _unknown_name(context.world, ArgumentKind.OBJECT, target)


def names_mean_one_thing(law: Law, context: StepContext) -> Iterator[Objection]:
    """object.ambiguous: a name that fits several things needs a person to say which."""
    for parameter in _parameters(context).values():
        name = context.step.arguments.get(parameter.name)
        if not isinstance(name, str) or context.step.skill in SEARCH_SKILLS:
            continue
        found = _resolve(context.world, parameter.kind, name)
        if isinstance(found, Ambiguous):
            yield defer(found.reason)


def _unknown_name(world: WorldState, kind: ArgumentKind, name: str) -> Iterator[Objection]:
    if kind is ArgumentKind.OBJECT and name in world.map.categories:
        return
    found = _resolve(world, kind, name)
    if isinstance(found, Missing):
        yield reject(found.reason)


def _resolve(world: WorldState, kind: ArgumentKind, name: str) -> object:
    if kind is ArgumentKind.PLACE:
        return resolve_place(world.map, name)
    if kind is ArgumentKind.DOOR:
        return resolve_door(world, name)
    return resolve_object(world, name)


def _parameters(context: StepContext) -> dict[str, Parameter]:
    skill = skill_by_name(context.skills).get(context.step.skill)
    return {} if skill is None else {parameter.name: parameter for parameter in skill.parameters}


def _has_type(value: Argument, parameter: Parameter) -> bool:
    if parameter.kind is ArgumentKind.NUMBER:
        return isinstance(value, (int, float)) and not isinstance(value, bool)
    return isinstance(value, str) and bool(value)


def _type_name(parameter: Parameter) -> str:
    is_number = parameter.kind is ArgumentKind.NUMBER
    return f'number ({parameter.unit})' if is_number else f'{parameter.kind.value} name'


def _nearest(name: str, known: set[str]) -> str:
    nearest = difflib.get_close_matches(name, sorted(known), n=3, cutoff=0.5)
    return f'; nearest: {", ".join(nearest)}' if nearest else ''
