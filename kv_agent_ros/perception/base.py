"""The seam to the detectors: a sensor frame in, detections out.

A detector only says what it believes to see. Names, numbers and places in a Detection are untrusted; fusion.py judges.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

from kv_agent_ros.robot.base import NO_ARGUMENTS, Argument, Pose
from kv_agent_ros.robot.sensing import Frame


@dataclass(frozen=True, kw_only=True, slots=True)
class Detection:
    """One object that a detector believes to see in a frame. `location`, `room`: '' when it cannot tell."""

    object_id: str
    label: str
    pose: Pose
    confidence: float  # 0..1
    location: str = ''
    room: str = ''
    properties: Mapping[str, Argument] = field(default_factory=lambda: NO_ARGUMENTS)  # what was measured in this frame


class Detector(Protocol):
    """Finds objects in a frame. Implementations: simulated sightings, the public fake; later fiducials and a VLM."""

    @property
    def name(self) -> str:
        """Stable word for counters and logs."""
        ...

    def detect(self, frame: Frame) -> tuple[Detection, ...]:
        """What is in view; () when nothing is. Thread-safe."""
        ...
