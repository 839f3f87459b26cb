"""Perception makes an observation only of what belongs together: one robot, one instant."""

from collections.abc import Callable
from pathlib import Path
import threading
import time

from nav_msgs.msg import Odometry
import pytest
from sensor_msgs.msg import BatteryState, LaserScan

from kv_agent_ros.config import PerceptionConfig
from kv_agent_ros.msg import DetectionArray, Observation, RobotState
from kv_agent_ros.nodes.perception_node import PerceptionService
from kv_agent_ros.perception.perceiver import Perceiver
from kv_agent_ros.perception.simulated import SimulatedDetector
from kv_agent_ros.ros.conversions.values import time_to_msg
from kv_agent_ros.ros.endpoints import Endpoints
from kv_agent_ros.ros.qos import EVENT, SENSOR
from kv_agent_ros.world.map_file import load_map

HOME = Path(__file__).parents[2] / 'config' / 'worlds' / 'home.yaml'
WAIT_S = 20.0
POLL_S = 0.05
NOW_S = 1000.0


class Sensors:
    """The topics of one robot, and what perception made of them."""

    def __init__(self, endpoints: Endpoints) -> None:
        perceiver = Perceiver([SimulatedDetector()], load_map(HOME))
        self.service = PerceptionService(perceiver, PerceptionConfig(robot_id='robot1'), endpoints)
        self.observed = threading.Semaphore(0)
        endpoints.subscription(Observation, 'observation', EVENT, lambda message: self.observed.release())
        self._state = endpoints.publisher(RobotState, 'driver/state', SENSOR)
        self._odometry = endpoints.publisher(Odometry, 'odom', SENSOR)
        self._scan = endpoints.publisher(LaserScan, 'scan', SENSOR)
        self._battery = endpoints.publisher(BatteryState, 'battery_state', SENSOR)
        self._detections = endpoints.publisher(DetectionArray, 'detections', SENSOR)

    def publish(self, robot_id: str, state_s: float) -> None:
        """All sensors now, the robot's state of that name and stamp; detections after the others have come."""
        state, odometry, scan, seen = RobotState(robot_id=robot_id), Odometry(), LaserScan(), DetectionArray()
        odometry.pose.pose.orientation.w = 1.0
        state.header.stamp = time_to_msg(state_s)
        for message in (odometry, scan, seen):
            message.header.stamp = time_to_msg(NOW_S)
        self._state.publish(state)
        self._odometry.publish(odometry)
        self._scan.publish(scan)
        self._battery.publish(BatteryState(percentage=1.0))
        self._detections.publish(seen)

    def metric(self, name: str) -> float:
        return next(metric.value for metric in self.service.metrics() if metric.name == name)

    def publish_until(self, robot_id: str, state_s: float, is_enough: Callable[[], bool]) -> None:
        ends_s = time.monotonic() + WAIT_S
        while not is_enough() and time.monotonic() < ends_s:
            self.publish(robot_id, state_s)
            self.observed.acquire(timeout=POLL_S)
        assert is_enough()


@pytest.fixture(scope='module')
def sensors(endpoints: Endpoints) -> Sensors:
    return Sensors(endpoints)


def test_what_belongs_together_is_an_observation(sensors: Sensors) -> None:
    sensors.publish_until('robot1', NOW_S, lambda: sensors.metric('frames') >= 1)


def test_an_old_state_of_the_robot_is_not_taken_for_a_fresh_one(sensors: Sensors) -> None:
    num_skewed = sensors.metric('skewed_frames')
    sensors.publish_until('robot1', NOW_S - 5.0, lambda: sensors.metric('skewed_frames') >= num_skewed + 3)


def test_the_state_of_another_robot_makes_no_observation(sensors: Sensors) -> None:
    num_foreign = sensors.metric('foreign_frames')
    sensors.publish_until('robot2', NOW_S, lambda: sensors.metric('foreign_frames') >= num_foreign + 3)
