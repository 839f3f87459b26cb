"""What a robot's camera shows: objects of its own room, in range and angle, not behind a wall.

Pure functions of the engine's state. A held object is always in view of its holder.
"""

from collections.abc import Mapping
import math

from kv_agent_ros.robot.base import NO_ARGUMENTS, Argument, Pose
from kv_agent_ros.robot.engine import Engine
from kv_agent_ros.robot.home_file import Content, Point
from kv_agent_ros.robot.sensing import CLOSE_RANGE_M, VIEW_ANGLE_RAD, VIEW_RANGE_M, PersonPosition, Sighting
from kv_agent_ros.robot.things import Thing

SAME_PLACE_M = 0.2  # an object this near to where it was has not gone


def in_view(engine: Engine, eye: Pose, point: Point) -> bool:
    """Whether a point is in the camera's picture: room, range, angle and line of sight."""
    here = (eye.x_m, eye.y_m)
    bearing = math.atan2(point[1] - eye.y_m, point[0] - eye.x_m)
    return (
        math.dist(here, point) <= VIEW_RANGE_M
        and abs(math.remainder(bearing - eye.yaw_rad, math.tau)) <= VIEW_ANGLE_RAD / 2
        and engine.room_at(here) == engine.room_at(point)
        and engine.can_see(here, point)
    )


def sightings(engine: Engine, contents: Mapping[str, Content], robot_id: str) -> tuple[Sighting, ...]:
    """The objects in view of a robot."""
    eye = engine.pose(robot_id)
    return tuple(
        _sighting(engine, contents, thing, eye)
        for thing in engine.things.all()
        if thing.location == robot_id or in_view(engine, eye, (thing.pose.x_m, thing.pose.y_m))
    )


def _sighting(engine: Engine, contents: Mapping[str, Content], thing: Thing, eye: Pose) -> Sighting:
    at = (thing.pose.x_m, thing.pose.y_m)
    distance_m = math.dist((eye.x_m, eye.y_m), at)
    properties: Mapping[str, Argument] = NO_ARGUMENTS
    if thing.object_id in contents and distance_m <= CLOSE_RANGE_M:
        content = contents[thing.object_id]
        properties = {'contains': content.contains, 'fill_level': round(content.fill_level, 4)}
    return Sighting(
        object_id=thing.object_id,
        category=thing.category,
        location=thing.location,
        room=engine.room_at(at),
        pose=thing.pose,
        confidence=round(1.0 - 0.1 * distance_m / VIEW_RANGE_M, 3),
        properties=properties,
    )


def gone(engine: Engine, robot_id: str, last_seen: Mapping[str, Point]) -> tuple[str, ...]:
    """The objects that are no longer where the robot saw them last, when it sees that place now."""
    eye = engine.pose(robot_id)
    now = {thing.object_id: (thing.pose.x_m, thing.pose.y_m) for thing in engine.things.all()}
    return tuple(
        object_id
        for object_id, point in last_seen.items()
        if in_view(engine, eye, point) and (object_id not in now or math.dist(now[object_id], point) > SAME_PLACE_M)
    )


def people_in_view(engine: Engine, robot_id: str) -> tuple[PersonPosition, ...]:
    """The people in view of a robot."""
    eye = engine.pose(robot_id)
    return tuple(
        PersonPosition(person_id=name, position=point)
        for name, point in engine.people.items()
        if in_view(engine, eye, point)
    )
