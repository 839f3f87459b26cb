"""The simulator's truth as a WorldState, so that it has the same form as what is believed."""

from dataclasses import replace

from kv_agent_ros.robot.base import Argument
from kv_agent_ros.robot.sensing import HomeTruth, TrueObject
from kv_agent_ros.world.state import ObjectState, PersonState, WorldMap, WorldState


def truth_to_world(truth: HomeTruth, home: WorldMap) -> WorldState:
    """Everything as it is."""
    is_open = {reading.name: reading.is_open for reading in truth.doors}
    return WorldState(
        map=home,
        stamp_s=truth.stamp_s,
        robots=truth.robots,
        objects=tuple(_object(thing, truth.stamp_s) for thing in truth.objects),
        people=tuple(
            PersonState(person_id=person.person_id, seen_s=truth.stamp_s, position=person.position)
            for person in truth.people
        ),
        doors=tuple(
            replace(door, is_open=is_open.get(door.name, door.is_open), seen_s=truth.stamp_s) for door in home.doors
        ),
    )


def _object(thing: TrueObject, stamp_s: float) -> ObjectState:
    vessel: dict[str, Argument] = {'fill_level': thing.fill_level, 'contains': thing.contains}
    return ObjectState(
        object_id=thing.object_id,
        category=thing.category,
        seen_s=stamp_s,
        pose=thing.pose,
        location=thing.location,
        room=thing.room,
        properties=vessel if thing.contains else {},
    )
