"""The simulated home as a node: each robot's sensors and driver, and the truth for demonstrations and tests."""

from collections.abc import Callable
from dataclasses import dataclass

from geometry_msgs.msg import TwistStamped
from nav_msgs.msg import Odometry
from rclpy.action.server import ServerGoalHandle
from rosgraph_msgs.msg import Clock
from sensor_msgs.msg import BatteryState, LaserScan

from kv_agent_ros.action import PerformSkill
from kv_agent_ros.build.home import load_world
from kv_agent_ros.build.simulation import open_simulation
from kv_agent_ros.config import SimulatorConfig
from kv_agent_ros.deadline import Deadline
from kv_agent_ros.errors import BadRequestError, Status
from kv_agent_ros.msg import DetectionArray
from kv_agent_ros.msg import RobotState as RobotMsg
from kv_agent_ros.robot.base import Pose
from kv_agent_ros.robot.faults import ANY_TARGET, FaultKind
from kv_agent_ros.robot.home import SimulatedHome
from kv_agent_ros.robot.simulated import SimulatedRobot
from kv_agent_ros.ros.conversions.plan import step_from_msg
from kv_agent_ros.ros.conversions.sensing import battery_to_msg, detections_to_msg, odometry_to_msg, scan_to_msg
from kv_agent_ros.ros.conversions.simulation import truth_to_world
from kv_agent_ros.ros.conversions.values import point_to_msg, time_to_msg, velocity_from_msg
from kv_agent_ros.ros.conversions.world import robot_to_msg, world_to_msg
from kv_agent_ros.ros.endpoints import Endpoints
from kv_agent_ros.ros.goals import cancel_with
from kv_agent_ros.ros.heartbeat import GateHeartbeat
from kv_agent_ros.ros.qos import COMMAND, SENSOR
from kv_agent_ros.ros.runtime import ManagedNode, NodeSpec, run_node
from kv_agent_ros.ros.tf import TfPublisher, transform
from kv_agent_ros.srv import GetSimulationState, InjectFault
from kv_agent_ros.world.state import WorldMap

CLEAR = 'clear'


@dataclass(frozen=True, kw_only=True, slots=True)
class SimulationCore:
    """The home and its map."""

    home: SimulatedHome
    map: WorldMap

    def close(self) -> None:
        """Every robot stands still."""
        for robot_id in self.home.robot_ids:
            self.home.stop(robot_id)


class DriverService:
    """One robot's driver and sensors, relative to its namespace."""

    def __init__(
        self, core: SimulationCore, robot_id: str, gate_timeout_s: float, endpoints: Endpoints, tf: TfPublisher
    ) -> None:
        self._core = core
        self._robot = SimulatedRobot(core.home, robot_id)
        self._robot_id = robot_id
        self._tf = tf
        topic: Callable[[str], str] = (robot_id + '/{}').format
        self._odometry = endpoints.publisher(Odometry, topic('odom'), SENSOR)
        self._scan = endpoints.publisher(LaserScan, topic('scan'), SENSOR)
        self._battery = endpoints.publisher(BatteryState, topic('battery_state'), SENSOR)
        self._state = endpoints.publisher(RobotMsg, topic('driver/state'), SENSOR)
        self._detections = endpoints.publisher(DetectionArray, topic('detections'), SENSOR)
        self._gate = GateHeartbeat(endpoints, topic('safety_state'), gate_timeout_s)
        endpoints.action(PerformSkill, topic('driver/perform_skill'), self.perform)
        endpoints.trigger(topic('driver/stop'), self._robot.stop)
        endpoints.subscription(TwistStamped, topic('cmd_vel'), COMMAND, self.drive)

    def perform(self, goal: ServerGoalHandle, result: PerformSkill.Result) -> Status:
        """driver/perform_skill; it ends when the gate falls silent."""
        self._gate.check()
        with cancel_with(goal, Deadline(goal.request.timeout_s), self._gate.is_silent) as deadline:
            done = self._robot.execute(step_from_msg(goal.request.step), deadline)
        result.duration_s = done.duration_s
        return Status(outcome=done.outcome, message=done.message)

    def drive(self, message: TwistStamped) -> None:
        """cmd_vel."""
        self._robot.drive(velocity_from_msg(message.twist))

    def publish(self, now_s: float) -> None:
        """One frame of all sensors, stamped with ROS time."""
        frame = self._core.home.sense(self._robot_id)
        base, odom = f'{self._robot_id}/base_link', f'{self._robot_id}/odom'
        self._odometry.publish(odometry_to_msg(frame.robot, now_s, odom, base))
        self._scan.publish(scan_to_msg(frame.lidar, now_s, f'{self._robot_id}/laser'))
        self._battery.publish(battery_to_msg(frame.robot, now_s))
        state = robot_to_msg(frame.robot)
        state.header.stamp = time_to_msg(now_s)
        self._state.publish(state)
        self._detections.publish(detections_to_msg(frame, now_s, self._core.map))
        self._tf.send([transform(now_s, odom, base, frame.robot.pose)])


class SimulatorService:
    """What concerns the whole home."""

    def __init__(self, core: SimulationCore, config: SimulatorConfig, endpoints: Endpoints) -> None:
        self._core = core
        self._endpoints = endpoints
        self._tf = TfPublisher(endpoints)
        self._drivers = [
            DriverService(core, robot, config.gate_timeout_s, endpoints, self._tf) for robot in config.robots
        ]
        self._clocks = [endpoints.publisher(Clock, '/clock', COMMAND)] if config.publish_clock else []

    def publish_static_transforms(self) -> None:
        """map → odom (the odometry of the simulator does not drift) and base_link → laser."""
        now_s = self._endpoints.now_s()
        pairs = [
            pair
            for robot in self._core.home.robot_ids
            for pair in (('map', f'{robot}/odom'), (f'{robot}/base_link', f'{robot}/laser'))
        ]
        self._tf.send_static(transform(now_s, parent, child, Pose()) for parent, child in pairs)

    def publish(self) -> None:
        """All robots' sensors, and the clock when asked for."""
        now_s = self._endpoints.now_s()
        for clock in self._clocks:
            now_s = self._core.home.sim_time_s()
            clock.publish(Clock(clock=time_to_msg(now_s)))
        for driver in self._drivers:
            driver.publish(now_s)

    def truth(self, request: GetSimulationState.Request, response: GetSimulationState.Response) -> None:
        """get_simulation_state."""
        home = self._core.home
        response.world = world_to_msg(truth_to_world(home.truth(), self._core.map))
        response.sim_time_s = home.sim_time_s()
        for robot_id in home.robot_ids:
            points = home.path_history(robot_id)
            response.path_robots += [robot_id] * len(points)
            response.path_points += [point_to_msg((x_m, y_m)) for _, x_m, y_m in points]

    def inject(self, request: InjectFault.Request, response: InjectFault.Response) -> None:
        """inject_fault."""
        kinds = {kind.value: kind for kind in FaultKind}
        if request.kind == CLEAR:
            self._core.home.clear_faults()
            return
        if request.kind not in kinds:
            raise BadRequestError(f'kind: expected one of {", ".join(kinds)}, {CLEAR}, got {request.kind!r}')
        self._core.home.inject_fault(kinds[request.kind], request.target or ANY_TARGET, request.count)


def open_home(config: SimulatorConfig, node: ManagedNode) -> SimulationCore:
    """The home with its robots docked."""
    return SimulationCore(home=open_simulation(config), map=load_world(config.world))


def serve(core: SimulationCore, config: SimulatorConfig, endpoints: Endpoints) -> None:
    """Sensors, drivers and services."""
    service = SimulatorService(core, config, endpoints)
    service.publish_static_transforms()
    endpoints.service(GetSimulationState, 'get_simulation_state', service.truth)
    endpoints.service(InjectFault, 'inject_fault', service.inject)
    endpoints.steady_timer(1.0 / config.rate_hz, service.publish)


SPEC = NodeSpec(name='simulator_node', config=SimulatorConfig, open=open_home, serve=serve)


def main() -> int:
    """Entry point."""
    return run_node(SPEC)
