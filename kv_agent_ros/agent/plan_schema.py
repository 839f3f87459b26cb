"""The plan language as a JSON schema for one robot in one home: only its skills, only names that exist, bounded length.

An engine that follows the schema cannot write an unknown skill or place; what remains to be judged is the sense.
"""

from collections.abc import Sequence
import json

from kv_agent_ros.agent.intent import FILL_LEVEL
from kv_agent_ros.robot.base import ArgumentKind, Parameter, Skill
from kv_agent_ros.robot.plan import Json, Operator, Plan
from kv_agent_ros.world.names import clean_name
from kv_agent_ros.world.state import LocationKind, WorldState

MAX_ITEMS = 10  # steps and branches on the top level
MAX_ARM_ITEMS = 6
NUMBER_STEP = 0.01  # keeps a model from writing digits without end
_PLACE_KIND = {'pour': LocationKind.SINK, 'place': LocationKind.SURFACE}  # what the target of these must be


def plan_schema(skills: Sequence[Skill], world: WorldState) -> str:
    """The schema as JSON text; equal worlds give equal text, so that engines compile it once."""
    steps = [_step_schema(skill, world) for skill in skills]
    steps = [step for step in steps if step]
    branch: dict[str, Json] = _object(
        {
            'if': _condition_schema(world),
            'then': {'type': 'array', 'minItems': 1, 'maxItems': MAX_ARM_ITEMS, 'items': {'anyOf': steps}},
            'else': {'type': 'array', 'minItems': 1, 'maxItems': MAX_ARM_ITEMS, 'items': {'anyOf': steps}},
        },
        required=['if', 'then'],
    )
    items: Json = {'anyOf': [*steps, branch]} if object_names(world) else {'anyOf': steps}
    plan: Json = {'type': 'array', 'minItems': 1, 'maxItems': MAX_ITEMS, 'items': items}
    return json.dumps(_object({'plan': plan}, required=['plan']), separators=(',', ':'))


def object_names(world: WorldState) -> tuple[str, ...]:
    """Categories, and ids where a category alone would be ambiguous; only names that are safe to show."""
    names = set(world.map.categories)
    for category in world.map.categories:
        alike = [thing.object_id for thing in world.objects if thing.category == category]
        names.update(alike if len(alike) > 1 else ())
    return tuple(sorted(name for name in names if name and clean_name(name) == name))


def names_of(kind: ArgumentKind, skill: str, world: WorldState) -> tuple[str, ...]:
    """What an argument of that kind may say, in a stable order."""
    if kind is ArgumentKind.OBJECT:
        return object_names(world)
    if kind is ArgumentKind.DOOR:
        return tuple(door.name for door in world.map.doors)
    wanted = _PLACE_KIND.get(skill)
    places = tuple(place.name for place in world.map.locations if wanted in (None, place.kind))
    return places if wanted else (*(room.name for room in world.map.rooms), *places)


def is_speakable(plan: Plan, skills: Sequence[Skill], world: WorldState) -> bool:
    """Whether a plan says only what the schema allows: the test that a remembered plan must pass to be shown."""
    by_name = {skill.name: skill for skill in skills}
    if any(branch.condition.target not in object_names(world) for branch in plan.branches):
        return False
    return all(
        step.skill in by_name
        and all(
            _fits(parameter, step.skill, step.text(parameter.name), world)
            for parameter in by_name[step.skill].parameters
            if parameter.is_required
        )
        and set(step.arguments) <= {parameter.name for parameter in by_name[step.skill].parameters}
        for step in plan.steps
    )


def _fits(parameter: Parameter, skill: str, value: str, world: WorldState) -> bool:
    if parameter.kind is ArgumentKind.NUMBER:
        return value.replace('.', '', 1).isdigit()
    return value in names_of(parameter.kind, skill, world)


def _step_schema(skill: Skill, world: WorldState) -> dict[str, Json]:
    """Required arguments only; {} when this home has nothing that the skill could be about."""
    properties: dict[str, Json] = {'skill': {'const': skill.name}}
    for parameter in skill.parameters:
        if not parameter.is_required:
            continue
        if parameter.kind is ArgumentKind.NUMBER:
            properties[parameter.name] = _number(parameter.minimum, parameter.maximum)
            continue
        names = names_of(parameter.kind, skill.name, world)
        if not names:
            return {}
        properties[parameter.name] = {'enum': list(names)}
    return _object(properties, required=list(properties))


def _condition_schema(world: WorldState) -> Json:
    properties: dict[str, Json] = {
        'target': {'enum': list(object_names(world))},
        'property': {'const': FILL_LEVEL},
        'operator': {'enum': [Operator.AT_LEAST.value, Operator.AT_MOST.value]},
        'value': _number(0.0, 1.0),
    }
    return _object(properties, required=list(properties))


def _number(minimum: float, maximum: float) -> Json:
    return {'type': 'number', 'minimum': minimum, 'maximum': maximum, 'multipleOf': NUMBER_STEP}


def _object(properties: dict[str, Json], required: list[str]) -> dict[str, Json]:
    return {'type': 'object', 'properties': properties, 'required': required, 'additionalProperties': False}
