"""Scan, odometry and detections become one Observation; what cannot be true is dropped and counted by its reason.

Pure. Detections are untrusted: names are cleaned, labels must be categories of the map, places must exist on it, and
a detector cannot say when something was seen. A frame whose odometry is no pose is refused: nothing in it has a place.
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
import math

import numpy as np

from kv_agent_ros.errors import BadRequestError
from kv_agent_ros.perception.base import Detection
from kv_agent_ros.robot.base import Argument, Pose, RobotState
from kv_agent_ros.robot.sensing import Frame, LidarScan
from kv_agent_ros.world.geometry import distance_to_outline_m, point_of, room_at
from kv_agent_ros.world.names import clean_name
from kv_agent_ros.world.properties import is_stamp
from kv_agent_ros.world.state import Door, ObjectState, Observation, PersonState, Point, WorldMap

MAX_PROPERTIES = 8
OUTSIDE_M = 1.0  # how far outside every room a pose may be before it is out of range
MAX_INVALID_RAYS = 0.5  # fraction of a scan; a lidar worse than that is blind


@dataclass(frozen=True, kw_only=True, slots=True)
class FusionLimits:
    """What a detection must reach."""

    min_confidence: float = 0.5


@dataclass(frozen=True, kw_only=True, slots=True)
class Fusion:
    """The observation, and how many values were dropped for which reason (empty when none)."""

    observation: Observation
    dropped: Mapping[str, int]


def fuse(frame: Frame, detections: Iterable[Detection], home: WorldMap, limits: FusionLimits) -> Fusion:
    """The observation of one frame. Raises BadRequestError when its stamp or its odometry is not usable."""
    dropped: Counter[str] = Counter()
    robot = _checked_robot(frame, home)
    objects: dict[str, ObjectState] = {}
    for detection in detections:
        thing = _object(detection, frame, home, limits, dropped)
        if thing is not None and _is_better(thing, objects, dropped):
            objects[thing.object_id] = thing
    observation = Observation(
        robot=robot,
        stamp_s=frame.stamp_s,
        objects=tuple(objects[object_id] for object_id in sorted(objects)),
        people=tuple(_people(frame, home, dropped)),
        doors=tuple(_doors(frame, home, dropped)),
        gone=tuple(name for each in frame.gone if (name := clean_name(each)) and name not in objects),
        nearest_obstacle_m=_nearest_obstacle_m(frame.lidar, dropped),
    )
    return Fusion(observation=observation, dropped=dict(sorted(dropped.items())))


def _checked_robot(frame: Frame, home: WorldMap) -> RobotState:
    robot = frame.robot
    numbers = [frame.stamp_s, robot.stamp_s, robot.pose.x_m, robot.pose.y_m, robot.pose.yaw_rad, robot.battery]
    numbers += [robot.velocity.linear_mps, robot.velocity.angular_radps]
    if not all(math.isfinite(number) for number in numbers):
        raise BadRequestError(f'odometry of {robot.robot_id}: expected finite numbers, got {numbers}; check its driver')
    room = home.room(robot.room) or room_at(home, point_of(robot.pose))
    return replace(
        robot,
        battery=min(1.0, max(0.0, robot.battery)),
        holding=clean_name(robot.holding),
        room='' if room is None else room.name,
    )


def _object(
    detection: Detection, frame: Frame, home: WorldMap, limits: FusionLimits, dropped: Counter[str]
) -> ObjectState | None:
    object_id, label = clean_name(detection.object_id), clean_name(detection.label)
    complaint = _complaint(object_id, label, detection, home, limits)
    if complaint:
        dropped[complaint] += 1
        return None
    is_place = home.location(detection.location) is not None or detection.location == frame.robot.robot_id
    room = home.room(detection.room) or room_at(home, point_of(detection.pose))
    return ObjectState(
        object_id=object_id,
        category=label,
        seen_s=frame.stamp_s,
        pose=detection.pose,
        location=detection.location if is_place else '',
        room='' if room is None else room.name,
        confidence=detection.confidence,
        properties=_properties(detection.properties, dropped),
    )


def _complaint(object_id: str, label: str, detection: Detection, home: WorldMap, limits: FusionLimits) -> str:
    """Why the detection is dropped, '' when it is not."""
    if not object_id:
        return 'id is no name'
    if label not in home.categories:
        return 'label is no category'
    if not _is_on_map(detection.pose, home):
        return 'pose out of range'
    if not 0.0 <= detection.confidence <= 1.0:
        return 'confidence out of range'
    return 'confidence low' if detection.confidence < limits.min_confidence else ''


def _is_on_map(pose: Pose, home: WorldMap) -> bool:
    return math.isfinite(pose.yaw_rad) and _is_near_map(point_of(pose), home)


def _is_near_map(point: Point, home: WorldMap) -> bool:
    return all(math.isfinite(number) for number in point) and any(
        distance_to_outline_m(room.outline, point) <= OUTSIDE_M for room in home.rooms
    )


def _is_better(thing: ObjectState, objects: Mapping[str, ObjectState], dropped: Counter[str]) -> bool:
    """Of two detections with one id, from two detectors or by cleaning, the surer one stays."""
    rival = objects.get(thing.object_id)
    if rival is None:
        return True
    dropped['id seen twice'] += 1
    return thing.confidence > rival.confidence


def _properties(properties: Mapping[str, Argument], dropped: Counter[str]) -> Mapping[str, Argument]:
    kept: dict[str, Argument] = {}
    for key in sorted(properties):
        name, value = clean_name(key), properties[key]
        clean = clean_name(value) if isinstance(value, str) else float(value)
        if not name or is_stamp(name) or not _is_plausible(name, clean) or len(kept) >= MAX_PROPERTIES:
            dropped['property out of range'] += 1
        else:
            kept[name] = clean
    return kept


def _is_plausible(name: str, value: Argument) -> bool:
    if isinstance(value, str):
        return value != ''
    return math.isfinite(value) and (not name.endswith('_level') or 0.0 <= value <= 1.0)


def _people(frame: Frame, home: WorldMap, dropped: Counter[str]) -> Iterable[PersonState]:
    for person in frame.people:
        name = clean_name(person.person_id)
        if name and _is_near_map(person.position, home):
            yield PersonState(person_id=name, seen_s=frame.stamp_s, position=person.position)
        else:
            dropped['person out of range'] += 1


def _doors(frame: Frame, home: WorldMap, dropped: Counter[str]) -> Iterable[Door]:
    known = {door.name: door for door in home.doors}
    for reading in frame.doors:
        if reading.name in known:
            yield replace(known[reading.name], is_open=reading.is_open, seen_s=frame.stamp_s)
        else:
            dropped['door unknown'] += 1


def _nearest_obstacle_m(scan: LidarScan, dropped: Counter[str]) -> float:
    """The shortest echo; inf when there is none or no lidar; 0 when the lidar is blind, since blind is not free."""
    ranges_m = np.asarray(scan.ranges_m, dtype=np.float64)
    is_valid = (ranges_m > 0.0) & ~np.isnan(ranges_m)  # inf and range_max_m are honest: no echo
    invalid = int(ranges_m.size - np.count_nonzero(is_valid))
    if invalid:
        dropped['ray out of range'] += invalid
    if invalid > MAX_INVALID_RAYS * ranges_m.size:
        return 0.0
    echoes = ranges_m[is_valid & (ranges_m < scan.range_max_m)]
    return float(echoes.min()) if echoes.size else math.inf
