"""A robot behind its driver: a stop that the driver has not confirmed keeps the next step from beginning."""

from collections.abc import Iterator
import threading
from typing import Any

import pytest
from rclpy.action.server import ServerGoalHandle

from kv_agent_ros.action import PerformSkill
from kv_agent_ros.deadline import Deadline
from kv_agent_ros.errors import BadRequestError, Outcome, UnreachableError
from kv_agent_ros.msg import RobotState
from kv_agent_ros.robot.base import Step
from kv_agent_ros.robot.skills import HOUSEHOLD_SKILLS
from kv_agent_ros.ros.endpoints import Endpoints
from kv_agent_ros.ros.qos import SENSOR
from kv_agent_ros.ros.robots import DriverRobot

CALL_S = 20.0
STOP_S = 2.0
WAIT = Step(skill='wait', arguments={'duration_s': 1.0})


class Driver:
    """A driver that can be silent or broken when it is told to stop."""

    def __init__(self, endpoints: Endpoints) -> None:
        self.performed: list[str] = []
        self.num_stops = 0
        self.may_stop = threading.Event()
        self.broken: list[BadRequestError] = []
        self.may_stop.set()
        endpoints.action(PerformSkill, 'driver/perform_skill', self._perform)
        endpoints.trigger('driver/stop', self._stop)
        state = endpoints.publisher(RobotState, 'driver/state', SENSOR)
        endpoints.steady_timer(0.1, lambda: state.publish(RobotState()))

    def _perform(self, goal: ServerGoalHandle, result: Any) -> None:
        self.performed.append(goal.request.step.skill)

    def _stop(self) -> None:
        self.num_stops += 1
        self.may_stop.wait(CALL_S)
        for error in self.broken:
            raise error


@pytest.fixture(scope='module')
def home(endpoints: Endpoints) -> tuple[DriverRobot, Driver]:
    """A robot and its driver."""
    driver = Driver(endpoints)
    return DriverRobot(endpoints, HOUSEHOLD_SKILLS, STOP_S), driver


@pytest.fixture
def driver(home: tuple[DriverRobot, Driver]) -> Iterator[Driver]:
    """The driver, with nothing performed; well again after the test."""
    home[1].performed.clear()
    yield home[1]
    home[1].broken.clear()
    home[1].may_stop.set()


def test_a_step_is_performed_by_the_driver(home: tuple[DriverRobot, Driver], driver: Driver) -> None:
    assert home[0].execute(WAIT, Deadline(CALL_S)).outcome is Outcome.SUCCESS
    assert driver.performed == ['wait']


def test_what_an_earlier_harness_left_running_is_stopped_before_the_first_step(
    endpoints: Endpoints, home: tuple[DriverRobot, Driver], driver: Driver
) -> None:
    num_stops = driver.num_stops
    robot = DriverRobot(endpoints, HOUSEHOLD_SKILLS, STOP_S)
    assert robot.execute(WAIT, Deadline(CALL_S)).outcome is Outcome.SUCCESS
    assert driver.num_stops == num_stops + 1


def test_no_step_begins_while_a_stop_is_unconfirmed(home: tuple[DriverRobot, Driver], driver: Driver) -> None:
    robot = home[0]
    driver.may_stop.clear()
    with pytest.raises(UnreachableError, match='driver/stop'):
        robot.stop()
    with pytest.raises(UnreachableError, match='driver/stop'):
        robot.execute(WAIT, Deadline(CALL_S))
    assert driver.performed == []
    driver.may_stop.set()
    assert robot.execute(WAIT, Deadline(CALL_S)).outcome is Outcome.SUCCESS
    assert driver.performed == ['wait']


def test_a_stop_that_the_driver_refuses_is_no_stop(home: tuple[DriverRobot, Driver], driver: Driver) -> None:
    driver.broken.append(BadRequestError('the brakes are gone'))
    with pytest.raises(UnreachableError, match='the brakes are gone'):
        home[0].stop()
