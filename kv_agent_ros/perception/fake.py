"""The public fake Detector, and a frame to feed to any: for tests."""

import numpy as np

from kv_agent_ros.perception.base import Detection
from kv_agent_ros.robot.base import RobotState
from kv_agent_ros.robot.sensing import Frame, LidarScan


class FakeDetector:
    """Sees the same detections in every frame; `num_frames` counts how often it was asked."""

    def __init__(self, *detections: Detection) -> None:
        self.num_frames = 0
        self._detections = detections

    @property
    def name(self) -> str:
        return 'fake'

    def detect(self, frame: Frame) -> tuple[Detection, ...]:
        self.num_frames += 1
        return self._detections


def example_scan(*ranges_m: float) -> LidarScan:
    """A scan all around with these ranges, up to 8 m."""
    return LidarScan(
        angle_min_rad=-np.pi,
        angle_increment_rad=2 * np.pi / max(1, len(ranges_m)),
        range_max_m=8.0,
        ranges_m=np.array(ranges_m, dtype=np.float32),
    )


def example_frame(robot: RobotState, *ranges_m: float) -> Frame:
    """What that robot senses with nothing in view of its camera."""
    return Frame(
        robot=robot,
        stamp_s=robot.stamp_s,
        lidar=example_scan(*ranges_m),
        sightings=(),
        gone=(),
        people=(),
        doors=(),
    )
