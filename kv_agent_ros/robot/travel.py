"""Driving a simulated robot: along planned paths, around what turns out to be in the way, to docks and doors.

Paths keep out of the hazard zones unless the robot stands in one or is sent into one.
"""

from collections.abc import Sequence
import math

from shapely import LineString, Polygon
from shapely import Point as ShapelyPoint

from kv_agent_ros.errors import Outcome
from kv_agent_ros.robot.act import DONE, Act, failure
from kv_agent_ros.robot.base import Pose, StepResult, Velocity
from kv_agent_ros.robot.engine import FREE, Engine
from kv_agent_ros.robot.faults import FaultKind
from kv_agent_ros.robot.home import EMPTY_BATTERY, TICK_S
from kv_agent_ros.robot.home_file import Point

SPEED_MPS = 0.5
TURN_RADPS = 1.5
ARRIVED_M = 0.01
ARRIVED_RAD = 0.01
SOMEBODY = 'another robot or a person'
PATIENCE = 10  # waits without progress before a robot gives up
PROGRESS_M = 0.1
YIELD_S = 1.0  # how long a robot waits for a robot or person in its way before it looks for another way


def go_to(act: Act, stands: Sequence[Pose], speed_mps: float = SPEED_MPS) -> StepResult:
    """Drive to the first of `stands` that can be reached, and turn as it says."""
    patience, obstacle, is_first = PATIENCE, FREE, True
    while patience:
        path, goal = _plan(act, stands)
        if path and is_first:
            _maybe_block(act, path)
            is_first = False
        if not path and not _would_be_free(act, stands):
            break
        start = _here(act)
        obstacle = _follow(act, path, speed_mps) if path else SOMEBODY
        if obstacle == FREE:
            turn_to(act, goal.yaw_rad)
            return DONE
        if obstacle == EMPTY_BATTERY:
            return failure(Outcome.EXECUTION_FAILURE, 'the battery is empty')
        if obstacle in act.home.section.doors.values():
            act.found_blocked.add(obstacle)
            continue
        patience = PATIENCE if math.dist(start, _here(act)) > PROGRESS_M else patience - 1
        act.stand(YIELD_S)
    if obstacle == FREE:
        return failure(Outcome.PLANNING_FAILURE, 'no path: a closed door or a zone is in the way')
    return failure(Outcome.EXECUTION_FAILURE, f'path blocked by {obstacle}')


def turn_to(act: Act, yaw_rad: float) -> None:
    """Turn on the spot."""
    while abs(left := math.remainder(yaw_rad - act.pose().yaw_rad, math.tau)) > ARRIVED_RAD:
        if act.move(Velocity(angular_radps=_clip(left / TICK_S, TURN_RADPS))) != FREE:
            return
    act.home.rest(act.robot_id)


def face(act: Act, point: Point) -> None:
    """Turn towards a point."""
    here = act.pose()
    turn_to(act, math.atan2(point[1] - here.y_m, point[0] - here.x_m))


def in_zone(act: Act, point: Point) -> bool:
    """Whether a point lies in a hazard zone."""
    return any(Polygon(outline).covers(ShapelyPoint(point)) for outline in act.home.section.zones.values())


def _plan(act: Act, stands: Sequence[Pose]) -> tuple[tuple[Point, ...], Pose]:
    """A path to the first reachable stand, and that stand; no path when none is reachable."""
    for stand in stands:
        with act.home.engine() as engine:
            region = engine.region(act.robot_id, _to_avoid(act, engine, stand))
            path = engine.plan(act.robot_id, region, (stand.x_m, stand.y_m))
        if path:
            return path, stand
    return (), Pose()


def _would_be_free(act: Act, stands: Sequence[Pose]) -> bool:
    """Whether there were a path if no robot and no person stood in the way."""
    for stand in stands:
        with act.home.engine() as engine:
            if engine.plan(act.robot_id, engine.floor(_to_avoid(act, engine, stand)), (stand.x_m, stand.y_m)):
                return True
    return False


def _to_avoid(act: Act, engine: Engine, goal: Pose) -> list[Polygon]:
    """The doorways found blocked in this step, and the zones in which the robot neither stands nor is sent."""
    here = engine.pose(act.robot_id)
    ends = [ShapelyPoint(pose.x_m, pose.y_m) for pose in (here, goal)]
    zones = [Polygon(outline) for outline in act.home.section.zones.values()]
    avoided = [zone for zone in zones if not any(zone.covers(end) for end in ends)]
    return avoided + [engine.hallway_leaf(hallway) for hallway in act.found_blocked]


def _maybe_block(act: Act, path: Sequence[Point]) -> None:
    """Give the fault `blocked_path` its chance in each doorway on the path; the robot finds out when it is there."""
    line = LineString(path)
    for door, hallway in act.home.section.doors.items():
        with act.home.engine() as engine:
            is_on_path = line.intersects(engine.hallway_leaf(hallway))
        if is_on_path and act.home.strikes(FaultKind.BLOCKED_PATH, act.robot_id, door, hallway):
            with act.home.engine() as engine:
                engine.blocked[act.robot_id] |= {hallway}


def _follow(act: Act, path: Sequence[Point], speed_mps: float) -> str:
    """Drive along way-points: turn, then straight; FREE when it arrived, else what is in the way."""
    for point in path[1:]:
        if math.dist(point, _here(act)) > ARRIVED_M:
            face(act, point)
        while (left_m := math.dist(point, _here(act))) > ARRIVED_M:
            obstacle = act.move(_towards(act.pose(), point, min(speed_mps, left_m / TICK_S)))
            if obstacle != FREE:
                act.home.rest(act.robot_id)
                return obstacle
    act.home.rest(act.robot_id)
    return FREE


def _towards(here: Pose, point: Point, speed_mps: float) -> Velocity:
    bearing = math.atan2(point[1] - here.y_m, point[0] - here.x_m)
    error = math.remainder(bearing - here.yaw_rad, math.tau)
    return Velocity(linear_mps=speed_mps * max(0.0, math.cos(error)), angular_radps=_clip(error / TICK_S, TURN_RADPS))


def _here(act: Act) -> Point:
    pose = act.pose()
    return pose.x_m, pose.y_m


def _clip(value: float, limit: float) -> float:
    return max(-limit, min(limit, value))
