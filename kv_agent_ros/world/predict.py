"""The rehearsal: can this robot do this step in this world, what would it cost, what would the world be after it.

Pure, and honest about what is not known: a `find` of a category the detectors can name is feasible although nobody has
seen one, and leaves a hypothetical object (id = category, confidence 0, no fill level) in the predicted world, so that
the steps after it can be rehearsed. A rehearsed look at an object whose fill level is unknown leaves it unknown, but
counts as measured, which is what `pour` requires. Preconditions are about the possible; the allowed is the gate's.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace

from kv_agent_ros.robot.base import ArgumentKind, Skill, Step
from kv_agent_ros.robot.skills import skill_by_name
from kv_agent_ros.world.geometry import point_of
from kv_agent_ros.world.names import Ambiguous, Missing, resolve_door, resolve_object, resolve_place
from kv_agent_ros.world.properties import SEEN_SUFFIX, number, property_seen_s
from kv_agent_ros.world.rehearsal import (
    DEFAULT_COSTS,
    FILL_LEVEL,
    Rehearsal,
    RobotCosts,
    hypothetical,
    is_hypothetical,
    measured,
    with_door,
    with_object,
    with_robot,
)
from kv_agent_ros.world.standing import SLACK_M, is_at, standing_pose
from kv_agent_ros.world.state import Location, LocationKind, ObjectState, Prediction, WorldState


def predict_step(
    world: WorldState, robot_id: str, step: Step, skills: tuple[Skill, ...], costs: RobotCosts = DEFAULT_COSTS
) -> Prediction:
    """Rehearse one step; an infeasible prediction has the reason and the world unchanged."""
    robot = world.robot(robot_id)
    skill = skill_by_name(skills).get(step.skill)
    if robot is None:
        return Prediction(is_feasible=False, reason=f'robot {robot_id!r} has never been observed', world=world)
    if skill is None or step.skill not in REHEARSALS:
        return Prediction(is_feasible=False, reason=f'{step.skill!r} is no skill of {robot_id}', world=world)
    act = Rehearsal(world=world, robot=robot, step=step, skill=skill, costs=costs)
    complaint = _argument_complaint(step, skill)
    return act.fail(complaint) if complaint else REHEARSALS[step.skill](act)


def _argument_complaint(step: Step, skill: Skill) -> str:
    for parameter in skill.parameters:
        value = step.arguments.get(parameter.name)
        if value is None:
            if parameter.is_required:
                return f'{skill.name}: argument {parameter.name} is missing'
        elif parameter.kind is ArgumentKind.NUMBER:
            if not isinstance(value, (int, float)) or not parameter.minimum <= value <= parameter.maximum:
                span = f'{parameter.minimum:g} to {parameter.maximum:g} {parameter.unit}'
                return f'{skill.name}: {parameter.name}: expected {span}, got {value!r}'
        elif not isinstance(value, str):
            return f'{skill.name}: {parameter.name}: expected a name, got {value!r}'
    return ''


def _number(act: Rehearsal, name: str, otherwise: float) -> float:
    default = next((each.default for each in act.skill.parameters if each.name == name), otherwise)
    return act.step.number(name, default)


def _navigate(act: Rehearsal) -> Prediction:
    place = resolve_place(act.world.map, act.step.text('target'))
    if isinstance(place, (Missing, Ambiguous)):
        return act.fail(place.reason)
    room = place.room if isinstance(place, Location) else place.name
    return act.drive_to(standing_pose(place), room, _number(act, 'speed_mps', act.costs.speed_mps), 0.0)


def _find(act: Rehearsal) -> Prediction:
    name = act.step.text('target')
    if act.world.find_objects(name):
        return act.done(act.world, act.costs.find_s)
    if name in act.world.map.categories:
        maybe = hypothetical(name, act.robot, act.world.stamp_s)
        return act.done(with_object(act.world, maybe), act.costs.find_s)
    missing = resolve_object(act.world, name)
    return act.fail(missing.reason if isinstance(missing, Missing) else f'no object {name!r} is known')


def _inspect(act: Rehearsal) -> Prediction:
    thing = _object_in_room(act)
    if isinstance(thing, Prediction):
        return thing
    near = _go_to(act, thing, act.costs.inspect_s)
    if not near.is_feasible:
        return near
    return replace(near, world=with_object(near.world, measured(thing, near.world.stamp_s)))


def _pick(act: Rehearsal) -> Prediction:
    if act.robot.holding:
        return act.fail(f'the gripper holds {act.robot.holding}; place it first')
    thing = _object_in_room(act)
    if isinstance(thing, Prediction):
        return thing
    near = _go_to(act, thing, act.costs.pick_s)
    arrived = near.world.robot(act.robot.robot_id)
    if not near.is_feasible or arrived is None:
        return near
    holding = replace(arrived, holding=thing.object_id, is_docked=False)
    return replace(near, world=with_robot(near.world, holding))


def _place(act: Rehearsal) -> Prediction:
    held = _held_object(act)
    if isinstance(held, Prediction):
        return held
    target = _furniture_in_room(act, LocationKind.SURFACE)
    if isinstance(target, Prediction):
        return target
    near = _go_to(act, target, act.costs.place_s)
    arrived = near.world.robot(act.robot.robot_id)
    if not near.is_feasible or arrived is None:
        return near
    put = replace(held, pose=target.pose, location=target.name, room=target.room, seen_s=near.world.stamp_s)
    return replace(near, world=with_object(with_robot(near.world, replace(arrived, holding='')), put))


def _pour(act: Rehearsal) -> Prediction:
    held = _held_object(act)
    if isinstance(held, Prediction):
        return held
    sink = _furniture_in_room(act, LocationKind.SINK)
    if isinstance(sink, Prediction):
        return sink
    if property_seen_s(held, FILL_LEVEL) == float('-inf'):
        return act.fail(f'the fill level of {held.object_id} was never measured; inspect it first')
    near = _go_to(act, sink, act.costs.pour_s)
    if not near.is_feasible:
        return near
    before = number(held, FILL_LEVEL)
    left = {} if before is None else {FILL_LEVEL: before * (1.0 - _number(act, 'fraction', 1.0))}
    carried = _held_in(near, act) or held
    poured = {**carried.properties, **left, FILL_LEVEL + SEEN_SUFFIX: near.world.stamp_s}
    return replace(near, world=with_object(near.world, replace(carried, properties=poured)))


def _turn_door(act: Rehearsal) -> Prediction:
    door = resolve_door(act.world, act.step.text('target'))
    if isinstance(door, (Missing, Ambiguous)):
        return act.fail(door.reason)
    sides = [act.robot.room] if act.robot.room in door.rooms else [room for room in door.rooms if room]
    ways = [act.drive_near(door.position, room, act.costs.door_s) for room in sides]
    best = min(ways, key=lambda way: (not way.is_feasible, way.distance_m))
    if not best.is_feasible:
        return best
    return replace(best, world=with_door(best.world, replace(door, is_open=act.step.skill == 'open')))


def _wait(act: Rehearsal) -> Prediction:
    return act.done(act.world, _number(act, 'duration_s', 1.0))


def _dock(act: Rehearsal) -> Prediction:
    if act.robot.is_docked:
        return act.done(act.world, act.costs.dock_s)
    docks = [place for place in act.world.map.locations if place.kind is LocationKind.DOCK]
    ways = [act.drive_to(dock.approach, dock.room, act.costs.speed_mps, act.costs.dock_s) for dock in docks]
    if not ways:
        return act.fail('the map has no dock')
    best = min(ways, key=lambda way: (not way.is_feasible, way.distance_m))
    arrived = best.world.robot(act.robot.robot_id)
    if not best.is_feasible or arrived is None:
        return best
    return replace(best, world=with_robot(best.world, replace(arrived, is_docked=True)))


def _object_in_room(act: Rehearsal) -> ObjectState | Prediction:
    """The target, when it is known, free and in the robot's room; skills that handle it drive within one room."""
    thing = resolve_object(act.world, act.step.text('target'))
    if isinstance(thing, Missing):
        return act.fail(f'{thing.reason}; find it first')
    if isinstance(thing, Ambiguous):
        return act.fail(thing.reason)
    holder = next((robot.robot_id for robot in act.world.robots if robot.holding == thing.object_id), '')
    if holder not in ('', act.robot.robot_id):
        return act.fail(f'{thing.object_id} is held by {holder}')
    if holder == '' and not thing.room:
        return act.fail(f'nobody knows where {thing.object_id} is; find it first')
    return thing if _is_here(act, thing.room) else act.fail(_elsewhere(act, thing.object_id, thing.room))


def _furniture_in_room(act: Rehearsal, kind: LocationKind) -> Location | Prediction:
    place = resolve_place(act.world.map, act.step.text('target'))
    if isinstance(place, (Missing, Ambiguous)):
        return act.fail(place.reason)
    if not isinstance(place, Location) or place.kind is not kind:
        return act.fail(f'{place.name} is no {kind.value}')
    return place if _is_here(act, place.room) else act.fail(_elsewhere(act, place.name, place.room))


def _is_here(act: Rehearsal, room: str) -> bool:
    return act.robot.room in ('', room)


def _elsewhere(act: Rehearsal, name: str, room: str) -> str:
    return f'{name} is out of reach: it is in {room}, the robot in {act.robot.room}; navigate to {room} first'


def _held_object(act: Rehearsal) -> ObjectState | Prediction:
    if not act.robot.holding:
        return act.fail('the gripper is empty; pick an object first')
    held = resolve_object(act.world, act.robot.holding)
    return held if isinstance(held, ObjectState) else act.fail(f'nothing is known of the held {act.robot.holding}')


def _held_in(near: Prediction, act: Rehearsal) -> ObjectState | None:
    return next((thing for thing in near.world.objects if thing.object_id == act.robot.holding), None)


def _go_to(act: Rehearsal, target: ObjectState | Location, act_s: float) -> Prediction:
    """Drive within reach of the furniture or the object, when the robot is not there yet, and act."""
    if isinstance(target, ObjectState):
        if target.object_id == act.robot.holding or is_hypothetical(target):
            return act.done(act.world, act_s)
        furniture = act.world.map.location(target.location)
        if furniture is None:
            return act.drive_near(point_of(target.pose), target.room, act_s)
        target = furniture
    if is_at(act.robot, target, SLACK_M):
        return act.done(act.world, act_s)
    return act.drive_to(target.approach, target.room, act.costs.speed_mps, act_s)


REHEARSALS: Mapping[str, Callable[[Rehearsal], Prediction]] = {
    'navigate': _navigate,
    'find': _find,
    'inspect': _inspect,
    'pick': _pick,
    'place': _place,
    'pour': _pour,
    'open': _turn_door,
    'close': _turn_door,
    'wait': _wait,
    'dock': _dock,
}
