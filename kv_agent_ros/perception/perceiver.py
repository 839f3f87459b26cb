"""Frames in, observations out: the detectors in their order, then fusion; and the books of what was dropped."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
import threading

from kv_agent_ros.errors import BadRequestError
from kv_agent_ros.perception.base import Detector
from kv_agent_ros.perception.fusion import FusionLimits, fuse
from kv_agent_ros.robot.sensing import Frame
from kv_agent_ros.world.state import Observation, WorldMap

DEFAULT_LIMITS = FusionLimits()


@dataclass(frozen=True, kw_only=True, slots=True)
class PerceptionStats:
    """Counts since the start. `dropped`: reason → values; `num_refused`: frames without usable odometry."""

    num_frames: int
    num_objects: int
    num_refused: int
    dropped: Mapping[str, int]


class Perceiver:
    """Thread-safe; holds no frame."""

    def __init__(self, detectors: Sequence[Detector], home: WorldMap, limits: FusionLimits = DEFAULT_LIMITS) -> None:
        self._detectors = tuple(detectors)
        self._home = home
        self._limits = limits
        self._lock = threading.Lock()
        self._counts: Counter[str] = Counter()
        self._dropped: Counter[str] = Counter()

    def observe(self, frame: Frame) -> Observation:
        """What the frame shows. Raises BadRequestError when its stamp or odometry is not usable."""
        detections = [detection for detector in self._detectors for detection in detector.detect(frame)]
        try:
            fusion = fuse(frame, detections, self._home, self._limits)
        except BadRequestError:
            with self._lock:
                self._counts['refused'] += 1
            raise
        with self._lock:
            self._counts.update(frames=1, objects=len(fusion.observation.objects))
            self._dropped.update(fusion.dropped)
        return fusion.observation

    def stats(self) -> PerceptionStats:
        """The books now."""
        with self._lock:
            return PerceptionStats(
                num_frames=self._counts['frames'],
                num_objects=self._counts['objects'],
                num_refused=self._counts['refused'],
                dropped=dict(sorted(self._dropped.items())),
            )
