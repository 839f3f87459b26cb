"""Readings of the simulated home, for a robot and for the judge: its state, a scan, the doors, the objects as they are.

Pure functions of what SimulatedHome holds. What the camera shows is in view.py.
"""

from collections.abc import Mapping
from dataclasses import replace
import math
import zlib

import numpy as np

from kv_agent_ros.robot.base import Pose, RobotState
from kv_agent_ros.robot.body import Body
from kv_agent_ros.robot.engine import Engine
from kv_agent_ros.robot.home_file import Content
from kv_agent_ros.robot.lidar import NUM_RAYS, RANGE_M
from kv_agent_ros.robot.sensing import DoorReading, LidarScan, TrueObject

NO_CONTENT = Content(contains='', fill_level=0.0)


def robot_state(engine: Engine, body: Body, now_s: float) -> RobotState:
    """The robot's own state, exact."""
    pose = engine.pose(body.robot_id)
    return RobotState(
        robot_id=body.robot_id,
        stamp_s=now_s,
        pose=pose,
        velocity=body.velocity,
        battery=body.battery,
        is_docked=body.is_docked,
        holding=engine.things.held_by(body.robot_id),
        room=engine.room_at((pose.x_m, pose.y_m)),
    )


def with_pose_noise(state: RobotState, sigma: float, seed: int) -> RobotState:
    """The state with a localiser's error, `sigma` in metres and radians; it depends on seed, robot and time only."""
    if sigma <= 0.0:
        return state
    words = [seed, zlib.crc32(state.robot_id.encode()), int(state.stamp_s * 1000)]
    dx, dy, dyaw = (float(error) for error in np.random.default_rng(words).normal(0.0, sigma, 3))
    pose = state.pose
    return replace(state, pose=Pose(x_m=pose.x_m + dx, y_m=pose.y_m + dy, yaw_rad=pose.yaw_rad + dyaw))


def lidar_scan(engine: Engine, robot_id: str) -> LidarScan:
    """A scan from where the robot is."""
    return LidarScan(
        angle_min_rad=-math.pi,
        angle_increment_rad=math.tau / NUM_RAYS,
        range_max_m=RANGE_M,
        ranges_m=engine.scan(robot_id),
    )


def door_readings(engine: Engine, doors: Mapping[str, str]) -> tuple[DoorReading, ...]:
    """All doors; `doors` is door name → hallway name."""
    return tuple(DoorReading(name=door, is_open=engine.is_open(hallway)) for door, hallway in doors.items())


def true_objects(engine: Engine, contents: Mapping[str, Content]) -> tuple[TrueObject, ...]:
    """All objects as they are."""
    return tuple(
        TrueObject(
            object_id=thing.object_id,
            category=thing.category,
            location=thing.location,
            room=engine.room_at((thing.pose.x_m, thing.pose.y_m)),
            pose=thing.pose,
            contains=contents.get(thing.object_id, NO_CONTENT).contains,
            fill_level=contents.get(thing.object_id, NO_CONTENT).fill_level,
        )
        for thing in engine.things.all()
    )
