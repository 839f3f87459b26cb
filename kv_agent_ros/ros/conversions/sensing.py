"""What a robot senses ↔ messages: scan, odometry, battery, detections, and the frame that they make together."""

from dataclasses import replace
import math

from nav_msgs.msg import Odometry
import numpy as np
from sensor_msgs.msg import BatteryState, LaserScan

from kv_agent_ros.msg import DetectionArray
from kv_agent_ros.robot.base import RobotState
from kv_agent_ros.robot.sensing import DoorReading, Frame, LidarScan, PersonPosition, Sighting
from kv_agent_ros.ros.conversions.values import (
    pose_from_msg,
    pose_to_msg,
    time_from_msg,
    time_to_msg,
    velocity_from_msg,
    velocity_to_msg,
)
from kv_agent_ros.ros.conversions.world import (
    door_to_msg,
    map_header,
    object_from_detection,
    object_to_detection,
    person_to_msg,
)
from kv_agent_ros.world.state import ObjectState, PersonState, WorldMap

NOMINAL_V = 24.0


def scan_to_msg(scan: LidarScan, stamp_s: float, frame_id: str) -> LaserScan:
    """LidarScan → LaserScan; a ray without echo is inf, as the message says."""
    ranges = np.where(scan.ranges_m >= scan.range_max_m, np.inf, scan.ranges_m).astype(np.float32)
    message = LaserScan(
        angle_min=scan.angle_min_rad,
        angle_max=scan.angle_min_rad + scan.angle_increment_rad * (len(ranges) - 1),
        angle_increment=scan.angle_increment_rad,
        range_min=0.0,
        range_max=scan.range_max_m,
        ranges=ranges,
    )
    message.header.stamp, message.header.frame_id = time_to_msg(stamp_s), frame_id
    return message


def scan_from_msg(message: LaserScan) -> LidarScan:
    """LaserScan → LidarScan."""
    ranges_m = np.asarray(message.ranges, np.float32)
    return LidarScan(
        angle_min_rad=message.angle_min,
        angle_increment_rad=message.angle_increment,
        range_max_m=message.range_max,
        ranges_m=np.where(np.isposinf(ranges_m), np.float32(message.range_max), ranges_m),
    )


def odometry_to_msg(state: RobotState, stamp_s: float, odom_frame: str, base_frame: str) -> Odometry:
    """The robot's pose and velocity as odometry."""
    message = Odometry(child_frame_id=base_frame)
    message.header.stamp, message.header.frame_id = time_to_msg(stamp_s), odom_frame
    message.pose.pose = pose_to_msg(state.pose)
    message.twist.twist = velocity_to_msg(state.velocity)
    return message


def battery_to_msg(state: RobotState, stamp_s: float) -> BatteryState:
    """The charge as BatteryState."""
    status = (
        BatteryState.POWER_SUPPLY_STATUS_CHARGING if state.is_docked else BatteryState.POWER_SUPPLY_STATUS_DISCHARGING
    )
    message = BatteryState(
        voltage=NOMINAL_V,
        current=math.nan,
        charge=math.nan,
        capacity=math.nan,
        design_capacity=math.nan,
        temperature=math.nan,
        percentage=float(state.battery),
        power_supply_status=status,
        present=True,
    )
    message.header.stamp = time_to_msg(stamp_s)
    return message


def detections_to_msg(frame: Frame, stamp_s: float, home: WorldMap) -> DetectionArray:
    """What the camera of a frame sees. Objects, people and doors only; scan and odometry go their own ways."""
    known = {door.name: door for door in home.doors}
    return DetectionArray(
        header=map_header(stamp_s),
        detections=[object_to_detection(_sighted(sighting, stamp_s)) for sighting in frame.sightings],
        people=[
            person_to_msg(PersonState(person_id=person.person_id, seen_s=stamp_s, position=person.position))
            for person in frame.people
        ],
        doors=[
            door_to_msg(replace(known[reading.name], is_open=reading.is_open, seen_s=stamp_s))
            for reading in frame.doors
            if reading.name in known
        ],
        gone=list(frame.gone),
    )


def _sighted(sighting: Sighting, stamp_s: float) -> ObjectState:
    return ObjectState(
        object_id=sighting.object_id,
        category=sighting.category,
        seen_s=stamp_s,
        pose=sighting.pose,
        location=sighting.location,
        room=sighting.room,
        confidence=sighting.confidence,
        properties=sighting.properties,
    )


def frame_from_msgs(
    state: RobotState, odometry: Odometry, scan: LaserScan, battery: BatteryState, seen: DetectionArray
) -> Frame:
    """One frame at the stamp of the detections. Pose and velocity are the odometry's, the charge the battery's."""
    stamp_s = time_from_msg(seen.header.stamp)
    robot = replace(
        state,
        stamp_s=stamp_s,
        pose=pose_from_msg(odometry.pose.pose),
        velocity=velocity_from_msg(odometry.twist.twist),
        battery=float(battery.percentage),
    )
    return Frame(
        robot=robot,
        stamp_s=stamp_s,
        lidar=scan_from_msg(scan),
        sightings=tuple(_sighting(object_from_detection(item, stamp_s)) for item in seen.detections),
        gone=tuple(seen.gone),
        people=tuple(
            PersonPosition(person_id=person.person_id, position=(person.position.x, person.position.y))
            for person in seen.people
        ),
        doors=tuple(DoorReading(name=door.name, is_open=door.is_open) for door in seen.doors),
    )


def _sighting(thing: ObjectState) -> Sighting:
    return Sighting(
        object_id=thing.object_id,
        category=thing.category,
        location=thing.location,
        room=thing.room,
        pose=thing.pose,
        confidence=thing.confidence,
        properties=thing.properties,
    )
