"""pyrobosim behind a typed face: geometry, collisions, doors, and where robots and objects are.

With paths.py and things.py the only one that knows pyrobosim; headless, no threads. Not thread-safe: SimulatedHome
owns it. It has no clock: the caller says how long a velocity acts.
"""

from collections.abc import Mapping, Sequence
import logging
import math
from pathlib import Path

import numpy as np
import numpy.typing as npt
from pyrobosim.core.robot import Robot as SimRobot
from pyrobosim.core.yaml_utils import WorldYamlLoader
from pyrobosim.utils.pose import Pose as SimPose
from shapely import LineString, Polygon, intersects_xy
from shapely import Point as ShapelyPoint
from shapely.geometry.base import BaseGeometry
from shapely.ops import unary_union

from kv_agent_ros.robot.base import Pose, Velocity
from kv_agent_ros.robot.home_file import Point
from kv_agent_ros.robot.lidar import cast, edges_of
from kv_agent_ros.robot.paths import PathFinder
from kv_agent_ros.robot.things import Things

ROBOT_RADIUS_M = 0.2
PERSON_RADIUS_M = 0.25
FREE = ''
WALL = 'a wall or furniture'
OTHER_ROBOT = 'another robot in the doorway'
GATE_M = 1.0  # how far from a door leaf a robot waits while another one passes


class Engine:
    """One pyrobosim world with its robots. Its owner sets `people`, `blocked` (hallways, per robot) and `busy`."""

    def __init__(self, path: Path, starts: Mapping[str, Pose]) -> None:
        for name in (path.stem, *starts):
            _silence(name)
        self._world = WorldYamlLoader().from_file(path)
        self._world.logger.setLevel(logging.ERROR)
        self._robots = {name: self._add_robot(name, pose) for name, pose in starts.items()}
        self._finders = {name: PathFinder(robot) for name, robot in self._robots.items()}
        self._gates = [hallway.closed_polygon.buffer(GATE_M) for hallway in self._world.hallways]
        self._edges = edges_of(self._world.total_external_polygon)
        self.things = Things(self._world, self._robots)
        self.people: dict[str, Point] = {}
        self.blocked: dict[str, frozenset[str]] = {}
        self.busy: set[str] = set()  # robots that do a step

    def _add_robot(self, name: str, pose: Pose) -> SimRobot:
        robot = SimRobot(name=name, radius=ROBOT_RADIUS_M)
        self._world.add_robot(robot, pose=_to_sim(pose))
        robot.logger.setLevel(logging.ERROR)
        return robot

    def pose(self, robot_id: str) -> Pose:
        """Where that robot is."""
        return _from_sim(self._robots[robot_id].get_pose())

    def move(self, robot_id: str, velocity: Velocity, duration_s: float) -> str:
        """Let a velocity act; FREE, or what stands in the way, and then the robot has not moved."""
        robot = self._robots[robot_id]
        target = robot.dynamics.step((velocity.linear_mps, 0.0, velocity.angular_radps), duration_s)
        obstacle = self._obstacle(robot_id, (target.x, target.y)) if velocity.linear_mps else FREE
        if obstacle == FREE:
            robot.dynamics.pose = target
        return obstacle

    def _obstacle(self, robot_id: str, point: Point) -> str:
        """What a robot standing at `point` would touch. Moving away from a robot or person is always free."""
        if not intersects_xy(self._world.total_internal_polygon, *point):
            return WALL
        for hallway in self.blocked.get(robot_id, ()):
            if intersects_xy(self._world.get_hallway_by_name(hallway).inflated_closed_polygon, *point):
                return hallway
        here = self.pose(robot_id)
        if self._is_doorway_taken(robot_id, (here.x_m, here.y_m), point):
            return OTHER_ROBOT
        for name, (other, distance_m) in self._bodies(robot_id).items():
            near = math.dist(point, other)
            if near < distance_m and near < math.dist((here.x_m, here.y_m), other):
                return name
        return FREE

    def _is_doorway_taken(self, robot_id: str, here: Point, point: Point) -> bool:
        """Whether the step leads to a doorway at which another robot is busy: robots cannot pass each other there."""
        others = [self.pose(name) for name in self.busy - {robot_id}]
        entered = [gate for gate in self._gates if intersects_xy(gate, *point) and not intersects_xy(gate, *here)]
        return any(intersects_xy(gate, other.x_m, other.y_m) for gate in entered for other in others)

    def _bodies(self, robot_id: str) -> dict[str, tuple[Point, float]]:
        """The other robots and the people: where, and how near the centre of this robot may come."""
        robots = {name: self.pose(name) for name in self._robots if name != robot_id}
        bodies = {name: ((pose.x_m, pose.y_m), 2 * ROBOT_RADIUS_M) for name, pose in robots.items()}
        people = {name: (point, ROBOT_RADIUS_M + PERSON_RADIUS_M) for name, point in self.people.items()}
        return bodies | people

    def floor(self, avoid: Sequence[Polygon]) -> BaseGeometry:
        """Where the centre of a robot alone in the world may be."""
        return self._world.total_internal_polygon.difference(unary_union(avoid))

    def region(self, robot_id: str, avoid: Sequence[Polygon]) -> BaseGeometry:
        """The part of the floor that is free for this robot, with other robots and people as they stand now."""
        bodies = [ShapelyPoint(point).buffer(distance) for point, distance in self._bodies(robot_id).values()]
        return self.floor([*bodies, *avoid])

    def hallway_leaf(self, hallway: str) -> Polygon:
        """The door leaf of a hallway, grown by the robot's radius."""
        return self._world.get_hallway_by_name(hallway).inflated_closed_polygon

    def plan(self, robot_id: str, region: BaseGeometry, goal: Point) -> tuple[Point, ...]:
        """Way-points for this robot through a region to the goal; empty when there is no way."""
        here = self.pose(robot_id)
        return self._finders[robot_id].find(region, (here.x_m, here.y_m), goal)

    def room_at(self, point: Point) -> str:
        """The room, else the hallway, around a point; '' outside."""
        for place in (*self._world.rooms, *self._world.hallways):
            if intersects_xy(place.polygon, *point):
                return str(place.name)
        return ''

    def place(self, name: str) -> str:
        """The room, hallway or location of that name, else the only location of that category; '' when none."""
        if self._world.get_entity_by_name(name) in (*self._world.rooms, *self._world.hallways, *self._world.locations):
            return name
        found = [place.name for place in self._world.get_locations([name])]
        return str(found[0]) if len(found) == 1 else ''

    def stands(self, name: str) -> tuple[Pose, ...]:
        """Where a robot can stand for such a place, best first; empty when there is none."""
        entity = self._world.get_entity_by_name(self.place(name))
        if entity is None:
            return ()
        if entity in self._world.hallways:
            (ax, ay), (bx, by) = entity.points
            return (Pose(x_m=(ax + bx) / 2, y_m=(ay + by) / 2, yaw_rad=math.atan2(by - ay, bx - ax)),)
        poses = entity.nav_poses if entity in self._world.rooms else entity.children[0].nav_poses
        return tuple(_from_sim(pose) for pose in poses)

    def locations(self) -> dict[str, str]:
        """Location name → category."""
        return {place.name: place.category for place in self._world.locations}

    def can_see(self, eye: Point, point: Point) -> bool:
        """Whether no wall and no closed door lies between two points."""
        return bool(self._world.total_sensing_polygon.covers(LineString((eye, point))))

    def is_open(self, hallway: str) -> bool:
        """Whether the door in a hallway is open."""
        return bool(self._world.get_hallway_by_name(hallway).is_open)

    def hallways(self) -> tuple[str, ...]:
        """The names of the hallways."""
        return tuple(hallway.name for hallway in self._world.hallways)

    def hallway_rooms(self, hallway: str) -> tuple[str, str]:
        """The two rooms that a hallway joins."""
        entity = self._world.get_hallway_by_name(hallway)
        return str(entity.room_start.name), str(entity.room_end.name)

    def hallway_ends(self, hallway: str) -> tuple[Pose, Pose]:
        """Where to stand on either side of a hallway, facing it."""
        (ax, ay), (bx, by) = self._world.get_hallway_by_name(hallway).points
        yaw = math.atan2(by - ay, bx - ax)
        return (
            Pose(x_m=ax, y_m=ay, yaw_rad=yaw),
            Pose(x_m=bx, y_m=by, yaw_rad=math.remainder(yaw + math.pi, math.tau)),
        )

    def open_door(self, hallway: str) -> bool:
        """Open the door in a hallway; whether it is open now."""
        self._world.open_location(hallway)
        self._edges = edges_of(self._world.total_external_polygon)
        return self.is_open(hallway)

    def close_door(self, hallway: str) -> bool:
        """Close the door in a hallway; False when a robot stands in it."""
        self._world.close_location(hallway)
        self._edges = edges_of(self._world.total_external_polygon)
        return not self.is_open(hallway)

    def scan(self, robot_id: str) -> npt.NDArray[np.float32]:
        """What the robot's lidar measures; see lidar.cast."""
        robots = [((p.x_m, p.y_m), ROBOT_RADIUS_M) for p in (self.pose(n) for n in self._robots if n != robot_id)]
        people = [(point, PERSON_RADIUS_M) for point in self.people.values()]
        return cast(self.pose(robot_id), self._edges, [*robots, *people])


def _silence(name: str) -> None:
    """pyrobosim logs under the names of its world and robots, to the console unless they have a sink."""
    logging.getLogger(name).addHandler(logging.NullHandler())


def _to_sim(pose: Pose) -> SimPose:
    return SimPose(x=pose.x_m, y=pose.y_m, yaw=pose.yaw_rad)


def _from_sim(pose: SimPose) -> Pose:
    yaw = math.remainder(float(pose.get_yaw()), math.tau)
    return Pose(x_m=float(pose.x), y_m=float(pose.y), yaw_rad=yaw)
