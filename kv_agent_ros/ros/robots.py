"""A robot behind ROS, as the harness holds it: skills by action, velocity by topic, a stop that goes both ways.

The driver (simulator_node here; a node around Nav2 and MoveIt on a real robot) serves `driver/perform_skill` and
`driver/stop` and publishes `driver/state`, relative to the robot's namespace.
"""

import threading
import time

from geometry_msgs.msg import TwistStamped
from std_srvs.srv import Trigger

from kv_agent_ros.action import PerformSkill
from kv_agent_ros.deadline import Deadline
from kv_agent_ros.errors import UnreachableError
from kv_agent_ros.msg import RobotState as RobotMsg
from kv_agent_ros.robot.base import RobotState, Skill, Step, StepResult, Velocity
from kv_agent_ros.ros.conversions.plan import step_to_msg
from kv_agent_ros.ros.conversions.values import status_from_msg, time_to_msg, velocity_to_msg
from kv_agent_ros.ros.conversions.world import robot_from_msg
from kv_agent_ros.ros.endpoints import Endpoints
from kv_agent_ros.ros.qos import COMMAND, SENSOR


class DriverRobot:
    """The Robot protocol over a driver's endpoints. A driver that falls silent is unreachable, hence stopped."""

    def __init__(self, endpoints: Endpoints, skills: tuple[Skill, ...], timeout_s: float) -> None:
        self._endpoints = endpoints
        self._skills = skills
        self._timeout_s = timeout_s
        self._lock = threading.Lock()
        self._latest: list[tuple[float, RobotState]] = []
        self._is_stop_confirmed = False  # an earlier harness may have left a skill running
        self._perform = endpoints.action_caller(PerformSkill, 'driver/perform_skill')
        self._stop = endpoints.service_caller(Trigger, 'driver/stop')
        self._cmd_vel = endpoints.publisher(TwistStamped, 'cmd_vel', COMMAND)
        endpoints.subscription(RobotMsg, 'driver/state', SENSOR, self._receive)

    def skills(self) -> tuple[Skill, ...]:
        return self._skills

    def state(self) -> RobotState:
        silence = self._silence()
        if silence:
            raise UnreachableError(silence)
        with self._lock:
            return self._latest[0][1]

    def execute(self, step: Step, deadline: Deadline) -> StepResult:
        if not self._is_stop_confirmed:  # it may come late and halt this step, and who does not stop must not go
            self.stop()
        goal = PerformSkill.Goal(step=step_to_msg(step), timeout_s=max(deadline.remaining_s, 0.001))
        result = self._perform.call(goal, deadline, lambda _: None, self._silence)
        status = status_from_msg(result.result)
        return StepResult(outcome=status.outcome, message=status.message, duration_s=result.duration_s)

    def drive(self, velocity: Velocity) -> None:
        message = TwistStamped(twist=velocity_to_msg(velocity))
        message.header.stamp = time_to_msg(self._endpoints.now_s())
        message.header.frame_id = 'base_link'
        self._cmd_vel.publish(message)

    def stop(self) -> None:
        self._is_stop_confirmed = False
        self.drive(Velocity())
        answer = self._stop.call(Trigger.Request(), self._timeout_s)
        if not answer.success:
            raise UnreachableError(f'{self._stop.name}: expected the robot to stop, got: {answer.message}')
        self._is_stop_confirmed = True

    def _silence(self) -> str:
        """Why the driver counts as silent, '' when it does not."""
        with self._lock:
            is_fresh = any(time.monotonic() - at_s < self._timeout_s for at_s, _ in self._latest)
        return '' if is_fresh else f'driver/state: expected a state within {self._timeout_s} s, got none'

    def _receive(self, message: RobotMsg) -> None:
        with self._lock:
            self._latest = [(time.monotonic(), robot_from_msg(message))]
