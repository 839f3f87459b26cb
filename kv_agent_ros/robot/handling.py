"""Seeing and handling objects: find, inspect, pick, place, pour, as a simulated robot with one gripper does them.

A robot looks before it acts: it knows an object's place only from what it sees in this step.
"""

import math

from kv_agent_ros.errors import Outcome
from kv_agent_ros.robot.act import DONE, Act, failure
from kv_agent_ros.robot.base import Pose, StepResult
from kv_agent_ros.robot.faults import FaultKind
from kv_agent_ros.robot.home_file import Point
from kv_agent_ros.robot.sensing import VIEW_ANGLE_RAD, Sighting
from kv_agent_ros.robot.travel import face, go_to, in_zone, turn_to

LOOK_S = 0.2  # for a picture
INSPECT_S = 1.0
GRASP_S = 2.0
POUR_S = 4.0  # for a full vessel
POUR_TICK_S = 0.1
REACH_M = 1.2
NUM_LOOKS = math.ceil(math.tau / VIEW_ANGLE_RAD) + 1  # neighbouring pictures overlap
NO_SIGHTINGS: tuple[Sighting, ...] = ()


def find(act: Act) -> StepResult:
    """Look around from where the robot stands, then from the other places of the room."""
    draw_missed(act)
    target = act.step.text('target')
    if _look_around(act, target):
        return DONE
    for stand in _viewpoints(act):
        arrived = go_to(act, [stand])
        if arrived.outcome is Outcome.EXECUTION_FAILURE:
            return arrived
        if _look_around(act, target):
            return DONE
    return failure(Outcome.PRECONDITION_FAILURE, f'no {target} found in {_room(act) or "sight"}')


def inspect(act: Act) -> StepResult:
    """Go to an object and look at it closely."""
    draw_missed(act)
    reached, _ = _reach(act)
    if reached.is_success:
        act.stand(INSPECT_S)
    return reached


def pick(act: Act) -> StepResult:
    """Take an object of this room."""
    if held := _held(act):
        return failure(Outcome.PRECONDITION_FAILURE, f'the gripper already holds {held}')
    reached, sighting = _reach(act)
    if not reached.is_success:
        return reached
    act.stand(GRASP_S)
    if act.home.strikes(FaultKind.SLIP, act.robot_id, sighting.object_id):
        return failure(Outcome.EXECUTION_FAILURE, f'slip: {sighting.object_id} slipped out of the gripper')
    with act.home.engine() as engine:
        where = {thing.object_id: thing.location for thing in engine.things.all()}
        if where.get(sighting.object_id) != sighting.location:
            return failure(Outcome.EXECUTION_FAILURE, f'{sighting.object_id} was moved away before it was grasped')
        engine.things.take(act.robot_id, sighting.object_id)
    return DONE


def place(act: Act) -> StepResult:
    """Put the held object on a location of this room."""
    held, target = _held(act), act.step.text('target')
    if not held:
        return failure(Outcome.PRECONDITION_FAILURE, 'the gripper holds nothing to place')
    reached = _go_to_location(act, target)
    if not reached.is_success:
        return reached
    act.stand(GRASP_S)
    if act.home.strikes(FaultKind.SLIP, act.robot_id, held):
        return failure(Outcome.EXECUTION_FAILURE, f'slip: {held} could not be put down, it is still in the gripper')
    with act.home.engine() as engine:
        is_placed = engine.things.put(act.robot_id, engine.place(target))
    return DONE if is_placed else failure(Outcome.EXECUTION_FAILURE, f'no free spot for {held} on {target}')


def pour(act: Act) -> StepResult:
    """Pour out a fraction of what the held object contains, little by little, at a sink of this room."""
    held, target = _held(act), act.step.text('target')
    if not held:
        return failure(Outcome.PRECONDITION_FAILURE, 'the gripper holds nothing to pour from')
    if held not in act.home.section.contents:
        return failure(Outcome.PRECONDITION_FAILURE, f'{held} is no vessel')
    reached = _go_to_location(act, target)
    if not reached.is_success:
        return reached
    level = act.home.fill_level(held)
    goal = level * (1.0 - act.step.number('fraction', 0.5))
    while level > goal:
        act.stand(POUR_TICK_S)
        level = max(goal, level - POUR_TICK_S / POUR_S)
        act.home.set_fill_level(held, level)
    return DONE


def draw_missed(act: Act) -> None:
    """Decide which objects this robot's detections miss until its next step."""
    with act.home.engine() as engine:
        things = engine.things.all()
    missed = frozenset(
        thing.object_id
        for thing in things
        if act.home.strikes(FaultKind.MISSED_DETECTION, act.robot_id, thing.object_id)
    )
    act.home.miss(act.robot_id, missed)


def _look_around(act: Act, target: str) -> tuple[Sighting, ...]:
    """Turn once around until the target is in view: the nearest match, facing it; empty when it is not seen."""
    yaw = act.pose().yaw_rad
    for look in range(NUM_LOOKS + 1):
        turn_to(act, yaw + look * math.tau / NUM_LOOKS)
        act.stand(LOOK_S)
        if match := _nearest(act, target):
            face(act, (match[0].pose.x_m, match[0].pose.y_m))
            return match
    return NO_SIGHTINGS


def _nearest(act: Act, target: str) -> tuple[Sighting, ...]:
    seen = act.home.sightings(act.robot_id)
    matches = [s for s in seen if s.object_id == target] or [s for s in seen if s.category == target]
    return tuple(sorted(matches, key=lambda sighting: _distance_m(act, sighting.pose))[:1])


def _reach(act: Act) -> tuple[StepResult, Sighting]:
    """See the target, drive within reach of it and face it; the sighting is the one on which to act."""
    target = act.step.text('target')
    match = _look_around(act, target)
    if not match:
        return failure(Outcome.PRECONDITION_FAILURE, f'no {target} in sight in {_room(act)}'), _nothing(target)
    sighting = match[0]
    if sighting.location == act.robot_id:
        return DONE, sighting
    with act.home.engine() as engine:
        stands = engine.stands(sighting.location)
    if not stands:
        return failure(Outcome.PRECONDITION_FAILURE, f'{target} is held by {sighting.location}'), sighting
    arrived = go_to(act, sorted(stands, key=lambda stand: _gap_m(stand, sighting.pose)))
    if not arrived.is_success:
        return arrived, sighting
    face(act, (sighting.pose.x_m, sighting.pose.y_m))
    if _distance_m(act, sighting.pose) > REACH_M:
        return failure(Outcome.PRECONDITION_FAILURE, f'{target} is out of reach'), sighting
    return DONE, sighting


def _go_to_location(act: Act, target: str) -> StepResult:
    with act.home.engine() as engine:
        stands = engine.stands(target)
        room = engine.room_at((stands[0].x_m, stands[0].y_m))
    if room != _room(act):
        return failure(Outcome.PRECONDITION_FAILURE, f'{target} is out of reach: it is in {room}')
    return go_to(act, sorted(stands, key=lambda stand: _distance_m(act, stand)))


def _viewpoints(act: Act) -> tuple[Pose, ...]:
    """The places of the robot's room from which it can look, zones left out."""
    room = _room(act)
    with act.home.engine() as engine:
        places = [room, *engine.locations()]
        stands = [stand for place in places for stand in engine.stands(place)[:1]]
        inside = [stand for stand in stands if engine.room_at((stand.x_m, stand.y_m)) == room]
    return tuple(stand for stand in inside if not in_zone(act, (stand.x_m, stand.y_m)))


def _nothing(target: str) -> Sighting:
    return Sighting(object_id=target, category='', location='', room='', pose=Pose(), confidence=0.0, properties={})


def _held(act: Act) -> str:
    return act.home.state(act.robot_id).holding


def _room(act: Act) -> str:
    return act.home.state(act.robot_id).room


def _distance_m(act: Act, pose: Pose) -> float:
    return _gap_m(act.pose(), pose)


def _gap_m(a: Pose, b: Pose) -> float:
    return math.dist(_point(a), _point(b))


def _point(pose: Pose) -> Point:
    return pose.x_m, pose.y_m
