"""The motion endpoints of the harness: steps, velocities, and the watch over both."""

from contextlib import suppress
import time

from builtin_interfaces.msg import Time
from geometry_msgs.msg import TwistStamped
from rclpy.action.server import ServerGoalHandle

from kv_agent_ros.action import ExecuteStep, MakeSafe
from kv_agent_ros.build.safety import SafetyRecords
from kv_agent_ros.config import HarnessConfig
from kv_agent_ros.deadline import Deadline
from kv_agent_ros.errors import Status, UnreachableError
from kv_agent_ros.harness.base import StepCommand
from kv_agent_ros.harness.guarded import GuardedRobot
from kv_agent_ros.harness.harness import AgentHarness
from kv_agent_ros.inspector.metrics import Metric
from kv_agent_ros.msg import Observation as ObservationMsg
from kv_agent_ros.msg import SafetyState
from kv_agent_ros.robot.base import StepResult
from kv_agent_ros.ros.conversions.values import time_from_msg, time_to_msg, velocity_from_msg
from kv_agent_ros.ros.endpoints import Endpoints
from kv_agent_ros.ros.goals import cancel_with
from kv_agent_ros.ros.heartbeat import HEARTBEAT_S
from kv_agent_ros.ros.qos import STATE

WARN_PERIOD_S = 5.0


class MotionService:
    """The two ways to a motor, steps and velocities, and what watches over both."""

    def __init__(
        self, harness: AgentHarness, records: SafetyRecords, config: HarnessConfig, endpoints: Endpoints
    ) -> None:
        self._harness = harness
        self._records = records
        self._robot_id = config.robot_id
        self._command_max_age_s = config.cmd_vel_timeout_s
        self._scan_max_age_s = records.policy.velocity.scan_max_age_s
        self._endpoints = endpoints
        self._published: list[tuple[bool, int]] = []
        self._is_told_estopped = False
        self._state = endpoints.publisher(SafetyState, 'safety_state', STATE)

    def execute(self, goal: ServerGoalHandle, result: ExecuteStep.Result) -> Status:
        """execute_step."""
        asked = goal.request
        command = StepCommand(
            robot_id=asked.robot_id or self._robot_id,
            task_id=asked.task_id,
            plan_id=asked.plan_id,
            step_index=asked.step_index,
        )
        with cancel_with(goal, Deadline(asked.timeout_s)) as deadline:
            done = self._harness.execute(command, deadline)
        result.duration_s = done.duration_s
        return _status(done)

    def make_safe(self, goal: ServerGoalHandle, result: MakeSafe.Result) -> Status:
        """make_safe."""
        asked = goal.request
        with cancel_with(goal, Deadline(asked.timeout_s)) as deadline:
            return _status(self._harness.make_safe(asked.robot_id or self._robot_id, asked.task_id, deadline))

    def drive(self, message: TwistStamped) -> None:
        """cmd_vel_in; one that was long on its way is none. A stamp of zero says nothing of the age."""
        age_s = self._age_s(message.header.stamp)
        if message.header.stamp != Time() and age_s > self._command_max_age_s:
            self._warn(f'cmd_vel_in: {age_s:.2f} s old, expected at most {self._command_max_age_s:g} s; dropped')
            return
        for robot in self._robots():
            robot.drive(velocity_from_msg(message.twist))

    def observe(self, message: ObservationMsg) -> None:
        """The nearest obstacle limits what cmd_vel_in may do; what is not of now says nothing of the way."""
        age_s = self._age_s(message.header.stamp)
        if abs(age_s) > self._scan_max_age_s:
            self._warn(f'observation: {age_s:.2f} s old, expected at most {self._scan_max_age_s:g} s; not counted')
            return
        for robot in self._robots():
            robot.observe_obstacle(float(message.nearest_obstacle_m))

    def watch(self) -> None:
        """Velocities that are due; the safety state when it has changed, and as the gate's heartbeat."""
        self._harness.tick()
        is_estopped = self._records.latch.is_latched(self._robot_id)
        self._tell(is_estopped)
        due = (is_estopped, int(time.monotonic() / HEARTBEAT_S))
        if self._published == [due]:
            return
        self._published = [due]
        message = SafetyState(
            robot_id=self._robot_id,
            is_estopped=is_estopped,
            reason=self._records.latch.reason(self._robot_id),
            policy_hash=self._records.policy.policy_hash,
        )
        message.header.stamp = time_to_msg(self._endpoints.now_s())
        self._state.publish(message)

    def metrics(self) -> list[Metric]:
        """The latch and the length of the audit."""
        return [
            Metric(name='is_estopped', value=float(self._records.latch.is_latched(self._robot_id))),
            Metric(name='audit_records', value=self._records.audit.head().seq),
        ]

    def stand_still(self) -> None:
        """The last thing before the node goes."""
        with suppress(UnreachableError):  # a driver that is gone has stopped by its own watchdog
            for robot in self._robots():
                robot.stop()

    def _tell(self, is_estopped: bool) -> None:
        if is_estopped == self._is_told_estopped:
            return
        self._is_told_estopped = is_estopped
        logger = self._endpoints.node.get_logger()
        if is_estopped:
            reason = self._records.latch.reason(self._robot_id)
            logger.warning(f'e-stop latched: {reason}; a person must reset it')
        else:
            logger.info('e-stop reset; nothing moves by itself')

    def _age_s(self, stamp: Time) -> float:
        return self._endpoints.now_s() - time_from_msg(stamp)

    def _warn(self, message: str) -> None:
        self._endpoints.node.get_logger().warning(message, throttle_duration_sec=WARN_PERIOD_S)

    def _robots(self) -> list[GuardedRobot]:
        robot = self._harness.robot(self._robot_id)
        return [] if robot is None else [robot]


def _status(done: StepResult) -> Status:
    return Status(outcome=done.outcome, message=done.message)
