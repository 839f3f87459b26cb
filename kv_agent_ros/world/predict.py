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
from kv_agent_ros.world.geometry import distance_m, point_of
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
from kv_agent_ros.world.standing import is_at, standing_pose
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
    thing = _known_object(act)
    if isinstance(thing, Prediction):
        return thing
    furniture = act.world.map.location(thing.location)
    if thing.object_id == act.robot.holding or (is_hypothetical(thing) and thing.room == act.robot.room):
        driven = act.done(act.world, act.costs.inspect_s)
    elif furniture is not None:
        driven = act.drive_to(furniture.approach, furniture.room, act.costs.speed_mps, act.costs.inspect_s)
    else:
        driven = act.drive_to(thing.pose, thing.room, act.costs.speed_mps, act.costs.inspect_s)
    if not driven.is_feasible:
        return driven
    return replace(driven, world=with_object(driven.world, measured(thing, driven.world.stamp_s)))


def _pick(act: Rehearsal) -> Prediction:
    if act.robot.holding:
        return act.fail(f'the gripper holds {act.robot.holding}; place it first')
    thing = _known_object(act)
    if isinstance(thing, Prediction):
        return thing
    if not _is_in_reach(act, thing):
        return act.fail(f'{thing.object_id} is out of reach ({_whereabouts(act, thing)}); go there first')
    holding = replace(act.robot, holding=thing.object_id, is_docked=False)
    return act.done(with_robot(act.world, holding), act.costs.pick_s)


def _place(act: Rehearsal) -> Prediction:
    held = _held_object(act)
    if isinstance(held, Prediction):
        return held
    target = _furniture_at_hand(act, LocationKind.SURFACE)
    if isinstance(target, Prediction):
        return target
    empty = with_robot(act.world, replace(act.robot, holding=''))
    put = replace(held, pose=target.pose, location=target.name, room=target.room)
    return act.done(with_object(empty, put), act.costs.place_s)


def _pour(act: Rehearsal) -> Prediction:
    held = _held_object(act)
    if isinstance(held, Prediction):
        return held
    sink = _furniture_at_hand(act, LocationKind.SINK)
    if isinstance(sink, Prediction):
        return sink
    if property_seen_s(held, FILL_LEVEL) == float('-inf'):
        return act.fail(f'the fill level of {held.object_id} was never measured; inspect it first')
    before, stamp_s = number(held, FILL_LEVEL), act.world.stamp_s + act.costs.pour_s
    left = {} if before is None else {FILL_LEVEL: before * (1.0 - _number(act, 'fraction', 1.0))}
    poured = replace(held, properties={**held.properties, **left, FILL_LEVEL + SEEN_SUFFIX: stamp_s})
    return act.done(with_object(act.world, poured), act.costs.pour_s)


def _turn_door(act: Rehearsal) -> Prediction:
    door = resolve_door(act.world, act.step.text('target'))
    if isinstance(door, (Missing, Ambiguous)):
        return act.fail(door.reason)
    if act.robot.room and act.robot.room not in door.rooms and not _is_near(act, door.position):
        return act.fail(f'{door.name} is out of reach: it joins {" and ".join(door.rooms)}; go there first')
    turned = replace(door, is_open=act.step.skill == 'open')
    return act.done(with_door(act.world, turned), act.costs.door_s)


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


def _known_object(act: Rehearsal) -> ObjectState | Prediction:
    thing = resolve_object(act.world, act.step.text('target'))
    if isinstance(thing, Missing):
        return act.fail(f'{thing.reason}; find it first')
    if isinstance(thing, Ambiguous):
        return act.fail(thing.reason)
    holder = next((r.robot_id for r in act.world.robots if r.holding == thing.object_id), act.robot.robot_id)
    if holder != act.robot.robot_id:
        return act.fail(f'{thing.object_id} is held by {holder}')
    return thing


def _held_object(act: Rehearsal) -> ObjectState | Prediction:
    if not act.robot.holding:
        return act.fail('the gripper is empty; pick an object first')
    held = resolve_object(act.world, act.robot.holding)
    return held if isinstance(held, ObjectState) else act.fail(f'nothing is known of the held {act.robot.holding}')


def _furniture_at_hand(act: Rehearsal, kind: LocationKind) -> Location | Prediction:
    place = resolve_place(act.world.map, act.step.text('target'))
    if isinstance(place, (Missing, Ambiguous)):
        return act.fail(place.reason)
    if not isinstance(place, Location) or place.kind is not kind:
        return act.fail(f'{place.name} is no {kind.value}')
    if not is_at(act.robot, place, act.costs.reach_m):
        return act.fail(f'{place.name} is out of reach; navigate to {place.name} first')
    return place


def _is_in_reach(act: Rehearsal, thing: ObjectState) -> bool:
    if is_hypothetical(thing):
        return thing.room == act.robot.room
    furniture = act.world.map.location(thing.location)
    if furniture is not None and is_at(act.robot, furniture, act.costs.reach_m):
        return True
    return _is_near(act, point_of(thing.pose)) and act.robot.room in ('', thing.room)


def _is_near(act: Rehearsal, point: tuple[float, float]) -> bool:
    return distance_m(point_of(act.robot.pose), point) <= act.costs.reach_m


def _whereabouts(act: Rehearsal, thing: ObjectState) -> str:
    away_m = distance_m(point_of(act.robot.pose), point_of(thing.pose))
    where = f'on {thing.location}' if thing.location else f'in {thing.room or "an unknown room"}'
    return f'{where}, {away_m:.1f} m away, reach is {act.costs.reach_m:.1f} m'


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
