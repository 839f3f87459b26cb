"""How one observation changes what is known: pure functions from a ledger and an observation to the next ledger.

Later stamps win, per robot, object, person and door. What a robot holds moves with it. What should be in view and is
not, is forgotten, and an older sighting cannot bring it back.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType

from kv_agent_ros.robot.base import RobotState
from kv_agent_ros.world.properties import merged_properties, with_stamps
from kv_agent_ros.world.state import Door, ObjectState, Observation, PersonState, WorldState

MAX_OBJECTS = 500  # detectors are untrusted: a flood of ids must not fill the memory
NO_STAMPS: Mapping[str, float] = MappingProxyType({})
NEVER = float('-inf')


@dataclass(frozen=True, kw_only=True, slots=True)
class Ledger:
    """The world and the stamps of what is no more in it."""

    world: WorldState
    gone_s: Mapping[str, float] = field(default_factory=lambda: NO_STAMPS)  # object or person id → when found missing


def apply_observation(ledger: Ledger, seen: Observation) -> Ledger:
    """The ledger after the observation; the same ledger when it says nothing later than what is known."""
    after = _with_robot(ledger, seen.robot)
    after = _with_objects(after, seen.objects)
    after = _with_people(after, seen.people)
    after = _with_doors(after, seen.doors, seen.stamp_s)
    after = _without_gone(after, seen.gone, seen.stamp_s)
    if after == ledger:
        return ledger
    world = after.world
    stamp_s = max(world.stamp_s, seen.stamp_s)
    return replace(after, world=replace(world, stamp_s=stamp_s, sequence=world.sequence + 1))


def carried_by(robot: RobotState, thing: ObjectState, seen_s: float) -> ObjectState:
    """The object in that robot's gripper at `seen_s`."""
    return replace(with_stamps(thing), seen_s=seen_s, pose=robot.pose, location=robot.robot_id, room=robot.room)


def _with_robot(ledger: Ledger, robot: RobotState) -> Ledger:
    world = ledger.world
    known = world.robot(robot.robot_id)
    if known is not None and robot.stamp_s <= known.stamp_s:
        return ledger
    robots = {each.robot_id: each for each in (*world.robots, robot)}
    ordered = tuple(robots[robot_id] for robot_id in sorted(robots))
    objects = tuple(_held_or_dropped(robot, thing) for thing in world.objects)
    return replace(ledger, world=replace(world, robots=ordered, objects=objects))


def _held_or_dropped(robot: RobotState, thing: ObjectState) -> ObjectState:
    if thing.object_id == robot.holding:
        return carried_by(robot, thing, max(thing.seen_s, robot.stamp_s))
    if thing.location == robot.robot_id:
        return replace(thing, location='')  # it left the gripper; only a sighting says where it is now
    return thing


def _with_objects(ledger: Ledger, sightings: tuple[ObjectState, ...]) -> Ledger:
    known = {thing.object_id: thing for thing in ledger.world.objects}
    for seen in sightings:
        if seen.seen_s > ledger.gone_s.get(seen.object_id, NEVER):
            known[seen.object_id] = _seen_object(ledger.world, known.get(seen.object_id), seen)
    objects = _bounded(ledger.world, tuple(known[object_id] for object_id in sorted(known)))
    return replace(ledger, world=replace(ledger.world, objects=objects))


def _seen_object(world: WorldState, before: ObjectState | None, seen: ObjectState) -> ObjectState:
    """The later sighting's place, each property's later measurement, and the gripper's place when it is held."""
    latest = with_stamps(seen)
    if before is not None:
        placed = seen if seen.seen_s > before.seen_s else before
        latest = replace(placed, properties=merged_properties(before, seen))
    holder = next((robot for robot in world.robots if robot.holding == seen.object_id), None)
    return latest if holder is None else carried_by(holder, latest, latest.seen_s)


def _bounded(world: WorldState, objects: tuple[ObjectState, ...]) -> tuple[ObjectState, ...]:
    if len(objects) <= MAX_OBJECTS:
        return objects
    held = {robot.holding for robot in world.robots}
    newest = sorted(objects, key=lambda thing: (thing.object_id in held, thing.seen_s, thing.object_id))[-MAX_OBJECTS:]
    return tuple(sorted(newest, key=lambda thing: thing.object_id))


def _with_people(ledger: Ledger, sightings: tuple[PersonState, ...]) -> Ledger:
    known = {person.person_id: person for person in ledger.world.people}
    for seen in sightings:
        before = known.get(seen.person_id)
        if seen.seen_s > max(NEVER if before is None else before.seen_s, ledger.gone_s.get(seen.person_id, NEVER)):
            known[seen.person_id] = seen
    newest = sorted(known.values(), key=lambda person: (person.seen_s, person.person_id))[-MAX_OBJECTS:]
    people = tuple(sorted(newest, key=lambda person: person.person_id))
    return replace(ledger, world=replace(ledger.world, people=people))


def _with_doors(ledger: Ledger, sightings: tuple[Door, ...], stamp_s: float) -> Ledger:
    doors = {door.name: door for door in ledger.world.doors}
    for seen in sightings:
        if seen.name in doors and stamp_s > doors[seen.name].seen_s:
            doors[seen.name] = replace(doors[seen.name], is_open=seen.is_open, seen_s=stamp_s)
    return replace(ledger, world=replace(ledger.world, doors=tuple(doors.values())))


def _without_gone(ledger: Ledger, gone: tuple[str, ...], stamp_s: float) -> Ledger:
    world = ledger.world
    held = {robot.holding for robot in world.robots}
    seen_s = {thing.object_id: thing.seen_s for thing in world.objects}
    seen_s |= {person.person_id: person.seen_s for person in world.people}
    lost = {name for name in gone if name in seen_s and name not in held and stamp_s > seen_s[name]}
    objects = tuple(thing for thing in world.objects if thing.object_id not in lost)
    people = tuple(person for person in world.people if person.person_id not in lost)
    gone_s = {**ledger.gone_s, **dict.fromkeys(sorted(lost), stamp_s)}
    kept = dict(sorted(gone_s.items(), key=lambda item: item[1])[-MAX_OBJECTS:])
    return replace(ledger, gone_s=kept, world=replace(world, objects=objects, people=people))
