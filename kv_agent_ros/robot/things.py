"""The movable objects of a pyrobosim world: on furniture, in grippers, or taken out of the world."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
import math

import numpy as np
from pyrobosim.core.locations import ObjectSpawn
from pyrobosim.core.objects import Object as SimObject
from pyrobosim.core.robot import Robot as SimRobot
from pyrobosim.core.types import set_parent
from pyrobosim.core.world import World
from pyrobosim.utils.polygon import transform_polygon
from pyrobosim.utils.pose import Pose as SimPose

from kv_agent_ros.robot.base import Pose
from kv_agent_ros.robot.home_file import Point

SPOT_M = 0.1  # grid of the places on a surface


@dataclass(frozen=True, kw_only=True, slots=True)
class Thing:
    """A movable object. `location`: its furniture, or the id of the robot that holds it."""

    object_id: str
    category: str
    location: str
    pose: Pose


class Things:
    """Where the objects are; not thread-safe."""

    def __init__(self, world: World, robots: Mapping[str, SimRobot]) -> None:
        self._world = world
        self._robots = robots

    def all(self) -> tuple[Thing, ...]:
        """Every object of the world, in the order of its file."""
        return tuple(_thing(thing) for thing in self._world.objects)

    def held_by(self, robot_id: str) -> str:
        """The object in that robot's gripper, '' when it is empty."""
        held = self._robots[robot_id].manipulated_object
        return str(held.name) if held else ''

    def take(self, robot_id: str, object_id: str) -> None:
        """Move an object from its furniture into a gripper."""
        robot, thing = self._robots[robot_id], self._world.get_object_by_name(object_id)
        set_parent(thing, robot)
        robot.manipulated_object = thing

    def put(self, robot_id: str, location: str) -> bool:
        """Move the held object to the free spot of a location nearest to the robot; False when there is none."""
        robot = self._robots[robot_id]
        thing = robot.manipulated_object
        here = robot.get_pose()
        for spawn in self._world.get_location_by_name(location).children:
            for spot in sorted(_spots(spawn), key=lambda at: math.dist(at, (here.x, here.y))):
                if _fits(thing, spawn, spot):
                    self._world.update_object(thing, spawn, SimPose(x=spot[0], y=spot[1]))
                    robot.manipulated_object = None
                    return True
        return False

    def remove(self, object_id: str) -> bool:
        """Take an object out of the world; False when there is none of that id."""
        thing = self._world.get_object_by_name(object_id)
        for robot in self._robots.values():
            if robot.manipulated_object is thing:
                robot.manipulated_object = None
        return thing is not None and bool(self._world.remove_object(thing, show=False))


def _thing(thing: SimObject) -> Thing:
    is_held = isinstance(thing.parent, SimRobot)
    at = thing.parent.get_pose() if is_held else thing.pose
    return Thing(
        object_id=thing.name,
        category=thing.category,
        location=thing.parent.name if is_held else thing.parent.parent.name,
        pose=Pose(x_m=float(at.x), y_m=float(at.y), yaw_rad=float(at.get_yaw())),
    )


def _spots(spawn: ObjectSpawn) -> Iterator[Point]:
    x_min, y_min, x_max, y_max = spawn.polygon.bounds
    for x in np.arange(x_min + SPOT_M, x_max, SPOT_M):
        for y in np.arange(y_min + SPOT_M, y_max, SPOT_M):
            yield float(x), float(y)


def _fits(thing: SimObject, spawn: ObjectSpawn, spot: Point) -> bool:
    outline = transform_polygon(thing.raw_collision_polygon, SimPose(x=spot[0], y=spot[1]))
    if not outline.within(spawn.polygon):
        return False
    return not any(outline.intersects(other.collision_polygon) for other in spawn.children)
