"""The safety harness as a node: the only holder of the robot."""

from contextlib import suppress
import time

from geometry_msgs.msg import TwistStamped
from rclpy.action.server import ServerGoalHandle

from kv_agent_ros.action import ExecuteStep, MakeSafe
from kv_agent_ros.build.safety import SafetyRecords, open_harness, open_safety_records
from kv_agent_ros.config import HarnessConfig
from kv_agent_ros.deadline import Deadline
from kv_agent_ros.errors import Status, UnreachableError
from kv_agent_ros.harness.base import StepCommand
from kv_agent_ros.harness.guarded import GuardedRobot
from kv_agent_ros.harness.harness import AgentHarness
from kv_agent_ros.inspector.metrics import Metric
from kv_agent_ros.msg import Observation as ObservationMsg
from kv_agent_ros.msg import SafetyState
from kv_agent_ros.nodes.harness_services import GateServices, OversightServices, ProgramService
from kv_agent_ros.robot.base import StepResult
from kv_agent_ros.robot.skills import HOUSEHOLD_SKILLS
from kv_agent_ros.ros.conversions.values import time_to_msg, velocity_from_msg
from kv_agent_ros.ros.endpoints import Endpoints
from kv_agent_ros.ros.goals import cancel_with
from kv_agent_ros.ros.heartbeat import HEARTBEAT_S
from kv_agent_ros.ros.metrics import to_metrics
from kv_agent_ros.ros.qos import COMMAND, EVENT, STATE
from kv_agent_ros.ros.robots import DriverRobot
from kv_agent_ros.ros.runtime import ManagedNode, NodeSpec, run_node
from kv_agent_ros.ros.world_client import RosWorld
from kv_agent_ros.srv import RunSkillProgram

WATCH_PERIOD_S = 0.05
NOTICE = 'this gate is software, not a certified safety function: keep the hardware e-stop and your risk assessment'


class MotionService:
    """The two ways to a motor, steps and velocities, and what watches over both."""

    def __init__(self, harness: AgentHarness, records: SafetyRecords, robot_id: str, endpoints: Endpoints) -> None:
        self._harness = harness
        self._records = records
        self._robot_id = robot_id
        self._endpoints = endpoints
        self._published: list[tuple[bool, int]] = []
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
        """cmd_vel_in."""
        for robot in self._robots():
            robot.drive(velocity_from_msg(message.twist))

    def observe(self, message: ObservationMsg) -> None:
        """The nearest obstacle limits what cmd_vel_in may do."""
        for robot in self._robots():
            robot.observe_obstacle(float(message.nearest_obstacle_m))

    def watch(self) -> None:
        """Velocities that are due; the safety state when it has changed, and as the gate's heartbeat."""
        self._harness.tick()
        is_estopped = self._records.latch.is_latched(self._robot_id)
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

    def _robots(self) -> list[GuardedRobot]:
        robot = self._harness.robot(self._robot_id)
        return [] if robot is None else [robot]


def _status(done: StepResult) -> Status:
    return Status(outcome=done.outcome, message=done.message)


def open_core(config: HarnessConfig, node: ManagedNode) -> SafetyRecords:
    """Policy, audit and latch, or no harness at all."""
    node.get_logger().warning(NOTICE)
    return open_safety_records(config, node.now_s)


def serve(records: SafetyRecords, config: HarnessConfig, endpoints: Endpoints) -> None:
    """The robot's driver behind the gate, then what the gate offers."""
    robot = DriverRobot(endpoints, HOUSEHOLD_SKILLS, config.driver_timeout_s)
    world = RosWorld(endpoints, config.shared_namespace, HOUSEHOLD_SKILLS)
    harness = open_harness(config, records, robot, world, endpoints.now_s)
    GateServices(harness, records, config.robot_id).offer(endpoints)
    OversightServices(harness, records, config.robot_id).offer(endpoints)
    program = ProgramService(harness, world, config.robot_id, endpoints.now_s)
    endpoints.service(RunSkillProgram, 'run_skill_program', program.run)
    motion = MotionService(harness, records, config.robot_id, endpoints)
    endpoints.action(ExecuteStep, 'execute_step', motion.execute)
    endpoints.action(MakeSafe, 'make_safe', motion.make_safe)
    endpoints.subscription(TwistStamped, 'cmd_vel_in', COMMAND, motion.drive)
    endpoints.subscription(ObservationMsg, 'observation', EVENT, motion.observe)
    endpoints.steady_timer(WATCH_PERIOD_S, motion.watch)
    endpoints.stats(lambda: to_metrics(motion.metrics()))
    endpoints.on_close(motion.stand_still)


SPEC = NodeSpec(name='harness_node', config=HarnessConfig, open=open_core, serve=serve)


def main() -> int:
    """Entry point."""
    return run_node(SPEC)
