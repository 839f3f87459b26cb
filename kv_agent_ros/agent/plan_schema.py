"""The plan language as a JSON schema for one goal in one home: names that exist, skills and numbers that can serve it.

An engine that follows the schema cannot write an unknown skill or place, nor touch what the goal is not about; what
remains to be judged is the sense. The smaller the choice, the smaller the model that can make it.
"""

from collections.abc import Iterable, Mapping, Sequence
import json
from types import MappingProxyType

from kv_agent_ros.agent.intent import FILL_LEVEL, Intent, Verb
from kv_agent_ros.robot.base import ArgumentKind, Parameter, Skill
from kv_agent_ros.robot.plan import Json, Operator, Plan
from kv_agent_ros.world.names import clean_name
from kv_agent_ros.world.state import LocationKind, WorldState

MAX_ITEMS = 10  # steps and branches on the top level
MAX_ARM_ITEMS = 6
_PLACE_KIND = {'pour': LocationKind.SINK, 'place': LocationKind.SURFACE}  # what the target of these must be
_LOOK = ('navigate', 'find', 'inspect')
_SKILLS_FOR: Mapping[Verb, tuple[str, ...]] = MappingProxyType(
    {
        Verb.GO: ('navigate',),
        Verb.FIND: ('navigate', 'find'),
        Verb.CHECK: _LOOK,
        Verb.PICK: (*_LOOK, 'pick'),
        Verb.PUT: (*_LOOK, 'pick', 'place'),
        Verb.POUR: (*_LOOK, 'pick', 'place', 'pour'),
        Verb.OPEN: ('navigate', 'open'),
        Verb.CLOSE: ('navigate', 'close'),
        Verb.WAIT: ('wait',),
        Verb.DOCK: ('dock',),
    }
)


def plan_schema(skills: Sequence[Skill], goal: Sequence[Intent], world: WorldState) -> str:
    """The schema as JSON text; equal goals in equal worlds give equal text, so that engines compile it once."""
    guards = [guard for intent in goal for guard in intent.guards]
    useful = {name for intent in goal for name in _SKILLS_FOR[intent.verb]} | set(_LOOK if guards else ())
    if any(not door.is_open for door in world.doors):
        useful.add('open')
    steps = [_step_schema(skill, goal, world) for skill in skills if skill.name in useful]
    steps = [step for step in steps if step]
    has_else = any(not guard.arm for guard in guards)
    arm: Json = {
        'type': 'array',
        'minItems': 0 if has_else else 1,
        'maxItems': MAX_ARM_ITEMS,
        'items': {'anyOf': steps},
    }
    branch: dict[str, Json] = {'if': _condition_schema(goal), 'then': arm}
    if has_else:
        branch['else'] = arm
    items = [*steps, _object(branch, required=['if', 'then'])] if guards else steps
    plan: Json = {'type': 'array', 'minItems': 1, 'maxItems': MAX_ITEMS, 'items': {'anyOf': items}}
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


def _step_schema(skill: Skill, goal: Sequence[Intent], world: WorldState) -> dict[str, Json]:
    """Required arguments only; {} when there is nothing that the skill could be about."""
    properties: dict[str, Json] = {'skill': {'const': skill.name}}
    for parameter in skill.parameters:
        if not parameter.is_required:
            continue
        allowed = _allowed(parameter, skill.name, goal, world)
        if not allowed:
            return {}
        properties[parameter.name] = {'enum': allowed}
    return _object(properties, required=list(properties))


def _allowed(parameter: Parameter, skill: str, goal: Sequence[Intent], world: WorldState) -> list[Json]:
    if parameter.kind is ArgumentKind.NUMBER:
        return _once(intent.amount for intent in goal if intent.verb.value == skill)
    if parameter.kind is ArgumentKind.OBJECT:
        return _once(subjects(goal))
    names = names_of(parameter.kind, skill, world)
    if parameter.kind is ArgumentKind.DOOR:
        return list(names)
    near = _near(goal, world)
    return [name for name in names if name in near] or list(names)


def _near(goal: Sequence[Intent], world: WorldState) -> set[str]:
    """The rooms that the goal and its known objects name or stand in, with their furniture."""
    places = {intent.place for intent in goal} | {
        place for name in subjects(goal) for thing in world.find_objects(name) for place in (thing.room, thing.location)
    }
    rooms = {place.room for place in world.map.locations if place.name in places}
    rooms |= {room.name for room in world.map.rooms if room.name in places}
    return rooms | {place.name for place in world.map.locations if place.room in rooms}


def subjects(goal: Sequence[Intent]) -> list[str]:
    """The objects that the goal is about."""
    named = [intent.subject for intent in goal if intent.subject and intent.verb not in (Verb.OPEN, Verb.CLOSE)]
    return [*named, *(guard.condition.target for intent in goal for guard in intent.guards)]


def _condition_schema(goal: Sequence[Intent]) -> Json:
    conditions = [guard.condition for intent in goal for guard in intent.guards]
    properties: dict[str, Json] = {
        'target': {'enum': _once(condition.target for condition in conditions)},
        'property': {'const': FILL_LEVEL},
        'operator': {'enum': [each.value for each in Operator if each in {c.operator for c in conditions}]},
        'value': {'enum': _once(condition.value for condition in conditions)},
    }
    return _object(properties, required=list(properties))


def _once(values: Iterable[str | float]) -> list[Json]:
    return sorted(set(values), key=str)


def _object(properties: dict[str, Json], required: list[str]) -> dict[str, Json]:
    return {'type': 'object', 'properties': properties, 'required': required, 'additionalProperties': False}
