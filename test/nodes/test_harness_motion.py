"""Velocities and observations that were long on their way do not move the robot."""

from collections.abc import Iterator
from pathlib import Path

from builtin_interfaces.msg import Time
from geometry_msgs.msg import TwistStamped
import pytest
import rclpy
from rclpy.context import Context
from rclpy.node import Node
from rclpy.signals import SignalHandlerOptions

from kv_agent_ros.build.safety import SafetyRecords
from kv_agent_ros.config import HarnessConfig
from kv_agent_ros.harness.fake import Lab
from kv_agent_ros.harness.policy import load_policy
from kv_agent_ros.msg import Observation
from kv_agent_ros.nodes.harness_motion import MotionService
from kv_agent_ros.robot.fake import FakeRobot
from kv_agent_ros.ros.conversions.values import time_to_msg
from kv_agent_ros.ros.endpoints import Endpoints

POLICY = Path(__file__).parents[2] / 'config' / 'policies' / 'default.yaml'


@pytest.fixture
def endpoints() -> Iterator[Endpoints]:
    context = Context()
    rclpy.init(args=[], context=context, signal_handler_options=SignalHandlerOptions.NO)
    node = Node('motion', context=context)
    endpoints = Endpoints(node)
    yield endpoints
    endpoints.close()
    node.destroy_node()
    rclpy.try_shutdown(context=context)


class Bench:
    """The service, the robot behind it, and a remote control whose messages are as old as is asked."""

    def __init__(self, directory: Path, endpoints: Endpoints) -> None:
        lab = Lab(directory, load_policy(POLICY))
        records = SafetyRecords(
            policy=lab.policy, audit=lab.audit, key=lab.key, directory=directory / 'audit', latch=lab.latch
        )
        self.latch = lab.latch
        self.robot = FakeRobot()
        self.endpoints = endpoints
        self.service = MotionService(lab.harness(self.robot), records, HarnessConfig(), endpoints)

    def stamp(self, age_s: float) -> Time:
        return time_to_msg(self.endpoints.now_s() - age_s)

    def turn(self, stamp: Time) -> None:
        message = TwistStamped()
        message.header.stamp = stamp
        message.twist.angular.z = 0.5
        self.service.drive(message)

    def forward(self) -> None:
        message = TwistStamped()
        message.twist.linear.x = 0.5
        self.service.drive(message)

    def observe(self, age_s: float) -> None:
        message = Observation(nearest_obstacle_m=5.0)
        message.header.stamp = self.stamp(age_s)
        self.service.observe(message)

    @property
    def has_moved(self) -> bool:
        return any(each.linear_mps != 0.0 or each.angular_radps != 0.0 for each in self.robot.velocities)


@pytest.fixture
def bench(tmp_path: Path, endpoints: Endpoints) -> Bench:
    return Bench(tmp_path, endpoints)


def test_velocity_with_an_old_stamp_is_dropped(bench: Bench) -> None:
    bench.turn(bench.stamp(0.6))
    assert bench.robot.velocities == []


def test_velocity_of_now_and_one_without_a_stamp_are_driven(bench: Bench) -> None:
    bench.turn(bench.stamp(0.0))
    assert bench.has_moved
    bench.robot.velocities.clear()
    bench.turn(Time())
    assert bench.has_moved


@pytest.mark.parametrize('age_s', [1.5, -60.0])
def test_observation_that_is_not_of_now_does_not_free_the_way(bench: Bench, age_s: float) -> None:
    bench.observe(age_s)
    bench.forward()
    assert not bench.has_moved


def test_observation_of_now_frees_the_way(bench: Bench) -> None:
    bench.observe(0.1)
    bench.forward()
    assert bench.has_moved


def test_a_latched_stop_and_its_reset_are_logged_once_each(bench: Bench, capfd: pytest.CaptureFixture[str]) -> None:
    bench.service.watch()
    bench.latch.latch('robot1', 'a person shouted')
    bench.service.watch()
    bench.service.watch()
    bench.latch.release('robot1')
    bench.service.watch()
    bench.service.watch()
    told = [line for line in capfd.readouterr().err.splitlines() if 'e-stop' in line]
    assert [line.split()[0] for line in told] == ['[WARN]', '[INFO]']
    assert 'a person shouted' in told[0]
