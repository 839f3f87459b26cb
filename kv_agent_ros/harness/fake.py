"""A small laboratory for tests of the gate and of its callers: the example home, a world model, a clock, a harness.

Its robots are public fakes whose acts take one second and are observed a moment later. Public, like robot/fake.py.
"""

from dataclasses import replace
from pathlib import Path

from kv_agent_ros.harness.audit import open_audit_log
from kv_agent_ros.harness.audit_key import load_audit_key
from kv_agent_ros.harness.base import Rule
from kv_agent_ros.harness.estop import open_estop_latch
from kv_agent_ros.harness.harness import AgentHarness
from kv_agent_ros.harness.policy import Policy
from kv_agent_ros.robot.base import Robot, RobotState, Step
from kv_agent_ros.robot.fake import FakeRobot
from kv_agent_ros.world.fake import example_cup, example_map, example_robot
from kv_agent_ros.world.model import WorldModel
from kv_agent_ros.world.properties import is_stamp
from kv_agent_ros.world.state import ObjectState, Observation, PersonState, WorldState

ROBOT_ID = 'robot1'
ACT_S = 1.0
LATENCY_S = 0.01


class Lab:
    """`now_s` is the ROS time. A full cup stands on the counter, the robot on the dock, nobody is at home."""

    def __init__(self, directory: Path, policy: Policy) -> None:
        self.directory = directory
        self.policy = policy
        self.now_s = 100.0
        self.is_blind = False  # True: nothing is observed any more
        self.world = WorldModel(example_map())
        self.key = load_audit_key(directory / 'keys' / 'audit.key', directory / 'audit')
        self.audit = open_audit_log(directory / 'audit', self.key, self.clock)
        self.latch = open_estop_latch(directory / 'estop.json', (ROBOT_ID,))
        self.see(example_robot(ROBOT_ID, self.now_s), (example_cup('cup_1', 1.0, self.now_s),), ())

    def clock(self) -> float:
        """ROS time in seconds."""
        return self.now_s

    def state(self) -> RobotState:
        """The robot as last observed."""
        robot = self.world.snapshot().robot(ROBOT_ID)
        if robot is None:
            raise LookupError(f'expected an observation of {ROBOT_ID}')
        return robot

    def see(self, robot: RobotState, objects: tuple[ObjectState, ...], people: tuple[PersonState, ...]) -> None:
        """One observation, now."""
        self._apply(Observation(robot=robot, stamp_s=self.now_s, objects=objects, people=people))

    def see_objects(self, *objects: ObjectState) -> None:
        """These things come into view."""
        self.now_s += LATENCY_S
        self.see(self.state(), tuple(replace(thing, seen_s=self.now_s) for thing in objects), ())

    def see_person(self, position: tuple[float, float]) -> None:
        """A person comes into view."""
        self.now_s += LATENCY_S
        self.see(self.state(), (), (PersonState(person_id='person_1', seen_s=self.now_s, position=position),))

    def see_robot(self, robot: RobotState) -> None:
        """The robot is observed in another state."""
        self.now_s += LATENCY_S
        self.see(robot, (), ())

    def predicted(self, state: RobotState, step: Step) -> RobotState:
        """The effect of a robot that does what the world model predicts."""
        self._observe(self.world.predict(self.world.snapshot(), ROBOT_ID, step).world)
        return state

    def obedient_robot(self) -> FakeRobot:
        """A robot that does what the world model predicts."""
        return FakeRobot(ROBOT_ID, effect=self.predicted)

    def lying_robot(self) -> FakeRobot:
        """A robot that says it did, and did nothing."""
        return FakeRobot(ROBOT_ID, effect=self._unchanged)

    def harness(self, robot: Robot, *extra_rules: Rule) -> AgentHarness:
        """A harness around the robot, with this lab's policy, audit and latch."""
        return AgentHarness(
            robots={ROBOT_ID: robot},
            world=self.world,
            policy=self.policy,
            audit=self.audit,
            latch=self.latch,
            clock=self.clock,
            observation_timeout_s=0.05,
            extra_rules=extra_rules,
        )

    def _unchanged(self, state: RobotState, step: Step) -> RobotState:
        self._observe(self.world.snapshot())
        return state

    def _apply(self, seen: Observation) -> None:
        self.world.apply(replace(seen, robot=replace(seen.robot, stamp_s=seen.stamp_s)))

    def _observe(self, after: WorldState) -> None:
        self.now_s += ACT_S
        robot = after.robot(ROBOT_ID)
        if robot is None or self.is_blind:
            return
        self.now_s += LATENCY_S
        things = tuple(_seen(thing, self.now_s) for thing in after.objects)
        self._apply(Observation(robot=robot, stamp_s=self.now_s, objects=things, doors=after.doors))
        self.now_s -= LATENCY_S


def _seen(thing: ObjectState, now_s: float) -> ObjectState:
    properties = {name: value for name, value in thing.properties.items() if not is_stamp(name)}
    return replace(thing, seen_s=now_s, properties=properties)
