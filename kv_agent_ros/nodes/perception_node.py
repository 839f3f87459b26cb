"""A robot's perception as a node: scan, odometry, battery and detections in, `observation` out."""

from dataclasses import dataclass
from functools import partial
import threading
from typing import Any

from nav_msgs.msg import Odometry
from sensor_msgs.msg import BatteryState, LaserScan

from kv_agent_ros.build.home import load_world
from kv_agent_ros.config import PerceptionConfig
from kv_agent_ros.errors import BadRequestError
from kv_agent_ros.inspector.metrics import Metric
from kv_agent_ros.msg import DetectionArray
from kv_agent_ros.msg import Observation as ObservationMsg
from kv_agent_ros.msg import RobotState as RobotMsg
from kv_agent_ros.perception.fusion import FusionLimits
from kv_agent_ros.perception.perceiver import Perceiver
from kv_agent_ros.perception.simulated import SimulatedDetector
from kv_agent_ros.ros.conversions.sensing import frame_from_msgs
from kv_agent_ros.ros.conversions.values import time_from_msg
from kv_agent_ros.ros.conversions.world import observation_to_msg, robot_from_msg
from kv_agent_ros.ros.endpoints import Endpoints
from kv_agent_ros.ros.metrics import to_metrics
from kv_agent_ros.ros.qos import EVENT, SENSOR
from kv_agent_ros.ros.runtime import ManagedNode, NodeSpec, run_node

SENSORS = ((RobotMsg, 'driver/state'), (Odometry, 'odom'), (LaserScan, 'scan'), (BatteryState, 'battery_state'))


@dataclass(frozen=True, kw_only=True, slots=True)
class PerceptionCore:
    """The perceiver; it holds nothing open."""

    perceiver: Perceiver

    def close(self) -> None:
        """Nothing to free."""


class PerceptionService:
    """Keeps the newest of each sensor and makes a frame for each set of detections."""

    def __init__(self, perceiver: Perceiver, config: PerceptionConfig, endpoints: Endpoints) -> None:
        self._perceiver = perceiver
        self._robot_id = config.robot_id
        self._max_skew_s = config.max_skew_s
        self._lock = threading.Lock()
        self._latest: dict[str, Any] = {}  # topic -> newest message
        self._num_skewed = 0
        self._num_foreign = 0
        self._publisher = endpoints.publisher(ObservationMsg, 'observation', EVENT)
        for message_type, topic in SENSORS:
            endpoints.subscription(message_type, topic, SENSOR, partial(self._keep, topic))
        endpoints.subscription(DetectionArray, 'detections', SENSOR, self.observe)

    def _keep(self, topic: str, message: object) -> None:
        with self._lock:
            self._latest[topic] = message

    def observe(self, seen: DetectionArray) -> None:
        """Fuse with the newest of the other sensors; a set that does not belong together is dropped and counted."""
        with self._lock:
            if len(self._latest) < len(SENSORS):
                return
            state, odometry, scan, battery = (self._latest[topic] for _, topic in SENSORS)
        if state.robot_id != self._robot_id:
            self._num_foreign += 1
            raise BadRequestError(f'driver/state: expected the state of {self._robot_id}, got {state.robot_id!r}')
        stamps = [time_from_msg(message.header.stamp) for message in (state, odometry, scan, seen)]
        if max(stamps) - min(stamps) > self._max_skew_s:
            self._num_skewed += 1
            return
        frame = frame_from_msgs(robot_from_msg(state), odometry, scan, battery, seen)
        self._publisher.publish(observation_to_msg(self._perceiver.observe(frame)))

    def metrics(self) -> list[Metric]:
        """What was seen and what was dropped."""
        stats = self._perceiver.stats()
        return [
            Metric(name='frames', value=stats.num_frames),
            Metric(name='refused_frames', value=stats.num_refused),
            Metric(name='skewed_frames', value=self._num_skewed),
            Metric(name='foreign_frames', value=self._num_foreign),
            Metric(name='objects', value=stats.num_objects),
            *(Metric(name=f'dropped {reason}', value=count) for reason, count in stats.dropped.items()),
        ]


def open_perception(config: PerceptionConfig, node: ManagedNode) -> PerceptionCore:
    """Detectors and fusion for the configured map."""
    limits = FusionLimits(min_confidence=config.min_confidence)
    return PerceptionCore(perceiver=Perceiver([SimulatedDetector()], load_world(config.world), limits))


def serve(core: PerceptionCore, config: PerceptionConfig, endpoints: Endpoints) -> None:
    """Topics."""
    service = PerceptionService(core.perceiver, config, endpoints)
    endpoints.stats(lambda: to_metrics(service.metrics()))


SPEC = NodeSpec(name='perception_node', config=PerceptionConfig, open=open_perception, serve=serve)


def main() -> int:
    """Entry point."""
    return run_node(SPEC)
