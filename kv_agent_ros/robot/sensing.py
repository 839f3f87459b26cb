"""What a simulated robot senses at one instant, and what is truly there: the values that leave the simulator."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from kv_agent_ros.robot.base import Argument, Pose, RobotState
from kv_agent_ros.robot.home_file import Point

VIEW_RANGE_M = 4.0
VIEW_ANGLE_RAD = 2.2  # of the camera, centred on the robot's heading
CLOSE_RANGE_M = 1.5  # within it the fill level of a vessel is visible


@dataclass(frozen=True, kw_only=True, slots=True)
class LidarScan:
    """One planar scan, as in sensor_msgs/LaserScan; a ray without echo has `range_max_m`."""

    angle_min_rad: float
    angle_increment_rad: float
    range_max_m: float
    ranges_m: npt.NDArray[np.float32]  # (num_rays,)


@dataclass(frozen=True, kw_only=True, slots=True)
class Sighting:
    """An object in view. `properties` has `contains` and `fill_level` (0..1) only when it was seen closely."""

    object_id: str
    category: str
    location: str
    room: str
    pose: Pose
    confidence: float
    properties: Mapping[str, Argument]


@dataclass(frozen=True, kw_only=True, slots=True)
class PersonPosition:
    """A person and where."""

    person_id: str
    position: Point


@dataclass(frozen=True, kw_only=True, slots=True)
class DoorReading:
    """Whether a door is open."""

    name: str
    is_open: bool


@dataclass(frozen=True, kw_only=True, slots=True)
class Frame:
    """What one robot senses at `stamp_s`. `gone`: ids it saw before, at a place it sees now without them."""

    robot: RobotState
    stamp_s: float
    lidar: LidarScan
    sightings: tuple[Sighting, ...]
    gone: tuple[str, ...]
    people: tuple[PersonPosition, ...]
    doors: tuple[DoorReading, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class TrueObject:
    """An object as it is. `contains` '' and `fill_level` 0 for what is no vessel."""

    object_id: str
    category: str
    location: str
    room: str
    pose: Pose
    contains: str
    fill_level: float


@dataclass(frozen=True, kw_only=True, slots=True)
class HomeTruth:
    """The whole home as it is at `stamp_s`; for judging outcomes, never for planning."""

    stamp_s: float
    objects: tuple[TrueObject, ...]
    robots: tuple[RobotState, ...]
    people: tuple[PersonPosition, ...]
    doors: tuple[DoorReading, ...]

    def object(self, object_id: str) -> TrueObject:
        """That object. Raises KeyError when it is not in the home."""
        return {thing.object_id: thing for thing in self.objects}[object_id]
