"""The safety harness as a node: the only holder of the robot."""

from geometry_msgs.msg import TwistStamped

from kv_agent_ros.action import ExecuteStep, MakeSafe
from kv_agent_ros.build.safety import SafetyRecords, open_harness, open_safety_records
from kv_agent_ros.config import HarnessConfig
from kv_agent_ros.msg import Observation as ObservationMsg
from kv_agent_ros.nodes.harness_motion import MotionService
from kv_agent_ros.nodes.harness_services import GateServices, OversightServices, ProgramService
from kv_agent_ros.robot.skills import HOUSEHOLD_SKILLS
from kv_agent_ros.ros.endpoints import Endpoints
from kv_agent_ros.ros.metrics import to_metrics
from kv_agent_ros.ros.qos import COMMAND, NEWEST
from kv_agent_ros.ros.robots import DriverRobot
from kv_agent_ros.ros.runtime import ManagedNode, NodeSpec, run_node
from kv_agent_ros.ros.world_client import RosWorld
from kv_agent_ros.srv import RunSkillProgram

WATCH_PERIOD_S = 0.05
NOTICE = 'this gate is software, not a certified safety function: keep the hardware e-stop and your risk assessment'


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
    motion = MotionService(harness, records, config, endpoints)
    endpoints.action(ExecuteStep, 'execute_step', motion.execute)
    endpoints.action(MakeSafe, 'make_safe', motion.make_safe)
    endpoints.subscription(TwistStamped, 'cmd_vel_in', COMMAND, motion.drive)
    endpoints.subscription(ObservationMsg, 'observation', NEWEST, motion.observe)
    endpoints.steady_timer(WATCH_PERIOD_S, motion.watch)
    endpoints.stats(lambda: to_metrics(motion.metrics()))
    endpoints.on_close(motion.stand_still)


SPEC = NodeSpec(name='harness_node', config=HarnessConfig, open=open_core, serve=serve)


def main() -> int:
    """Entry point."""
    return run_node(SPEC)
