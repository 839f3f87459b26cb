"""Where a robot stands for a place, and whether it stands there."""

from kv_agent_ros.robot.base import Pose, RobotState
from kv_agent_ros.world.geometry import centroid, distance_m, point_of
from kv_agent_ros.world.state import Location, Room

SLACK_M = 0.15  # what a controller may stop short of a pose


def standing_pose(place: Location | Room) -> Pose:
    """Before the furniture, or in the middle of the room."""
    if isinstance(place, Location):
        return place.approach
    x_m, y_m = centroid(place.outline)
    return Pose(x_m=x_m, y_m=y_m)


def is_at(robot: RobotState, place: Location, reach_m: float) -> bool:
    """Whether the robot is within reach of the approach pose, or as near to the furniture on another side of it."""
    if robot.room not in ('', place.room):
        return False
    here, approach, furniture = point_of(robot.pose), point_of(place.approach), point_of(place.pose)
    is_as_near = distance_m(here, furniture) <= distance_m(approach, furniture) + SLACK_M
    return is_as_near or distance_m(here, approach) <= reach_m
