"""The world as text for a prompt: few tokens, always the same order, no clock.

`describe_map` is part of the fixed head, so it names no robot and nothing that moves; `describe_state` comes last.
Names of objects come from detectors: they are cleaned again here, so that a label never reads as an instruction.
"""

from collections.abc import Iterable

from kv_agent_ros.robot.base import RobotState
from kv_agent_ros.world.names import clean_name
from kv_agent_ros.world.properties import is_stamp
from kv_agent_ros.world.routes import is_doorway
from kv_agent_ros.world.standing import is_at
from kv_agent_ros.world.state import LocationKind, ObjectState, WorldMap, WorldState

AT_M = 0.75
MAX_OBJECTS = 40  # a flood of sightings must not push the task out of the context


def describe_map(home: WorldMap) -> str:
    """Rooms with their locations, doors, zones, and the kinds of objects that can be found; ends with a newline."""
    lines = [_room_line(home, room.name) for room in home.rooms if not is_doorway(home, room)]
    lines += [f'door {door.name}: {door.rooms[0]}-{door.rooms[1]}' for door in home.doors]
    if home.zones:
        lines.append(f'keep out: {_listed(zone.name for zone in home.zones)}')
    if home.categories:
        lines.append(f'kinds of objects: {_listed(sorted(home.categories))}')
    return '\n'.join(lines) + '\n'


def describe_state(world: WorldState, robot_id: str) -> str:
    """Where the robot is and what it holds, closed doors, other robots, known objects; ends with a newline."""
    robot = world.robot(robot_id)
    lines = ['you: position unknown' if robot is None else _own_line(world, robot)]
    closed = [door.name for door in world.doors if not door.is_open]
    if closed:
        lines.append(f'closed doors: {_listed(closed)}')
    others = [each for each in world.robots if each.robot_id != robot_id]
    lines += [f'{clean_name(each.robot_id)}: in {each.room or "an unknown room"}' for each in others]
    named = sorted(world.objects, key=lambda thing: thing.object_id)[:MAX_OBJECTS]
    lines += [_object_line(thing, robot_id) for thing in named if clean_name(thing.object_id)]
    if not world.objects:
        lines.append('no objects seen yet')
    return '\n'.join(lines) + '\n'


def _room_line(home: WorldMap, room: str) -> str:
    places = [
        place.name
        if place.kind is LocationKind.SURFACE or place.name == place.kind.value
        else _with_kind(place.name, place.kind)
        for place in home.locations
        if place.room == room
    ]
    return f'{room}: {_listed(places)}' if places else room


def _with_kind(name: str, kind: LocationKind) -> str:
    return f'{name} ({kind.value})'


def _own_line(world: WorldState, robot: RobotState) -> str:
    at = next((place.name for place in world.map.locations if is_at(robot, place, AT_M)), '')
    parts = [f'in {robot.room or "an unknown room"}']
    parts += [f'at {at}'] if at else []
    parts += ['docked'] if robot.is_docked else []
    parts += [f'battery {robot.battery:.0%}', f'holding {clean_name(robot.holding) or "nothing"}']
    return 'you: ' + ', '.join(parts)


def _object_line(thing: ObjectState, robot_id: str) -> str:
    name, category = clean_name(thing.object_id), clean_name(thing.category)
    kind = f' ({category})' if category and category != name else ''
    if thing.location == robot_id:
        where = 'in your gripper'
    elif thing.location:
        where = f'on {clean_name(thing.location)} in {thing.room}' if thing.room else f'on {clean_name(thing.location)}'
    else:
        where = f'in {thing.room}' if thing.room else 'place unknown'
    return f'{name}{kind}: ' + ', '.join([where, *_properties(thing)])


def _properties(thing: ObjectState) -> Iterable[str]:
    for key in sorted(thing.properties):
        value = thing.properties[key]
        name = clean_name(key)
        if is_stamp(key) or not name:
            continue
        if isinstance(value, str):
            yield f'{name} {clean_name(value) or "unreadable"}'
        else:
            yield f'{name} {value:.0%}' if name.endswith('_level') else f'{name} {value:g}'


def _listed(names: Iterable[str]) -> str:
    return ', '.join(names)
