"""A small home to try agents in, without simulator, model or ROS: the real world model and harness, a pretended robot.

What is true and what is known differ: a thing becomes known when the robot is in its room, its fill level when the
robot inspects or holds it. Public, like robot/fake.py.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from pathlib import Path

from kv_agent_ros.agent.planner import CopilotPlanner
from kv_agent_ros.agent.robot_agent import RobotAgent
from kv_agent_ros.agent.session_store import MemorySessions, SessionStore
from kv_agent_ros.harness.audit import open_audit_log
from kv_agent_ros.harness.audit_key import load_audit_key
from kv_agent_ros.harness.estop import open_estop_latch
from kv_agent_ros.harness.harness import AgentHarness
from kv_agent_ros.harness.policy import Policy
from kv_agent_ros.inference.base import InferenceBackend
from kv_agent_ros.kvcache.block import SessionKey
from kv_agent_ros.memory.base import SHARED, MemoryKind, MemoryRecord, Recollection
from kv_agent_ros.memory.fake import HashingEmbedder
from kv_agent_ros.robot.base import RobotState, Step, StepResult
from kv_agent_ros.robot.fake import NO_RESULTS, FakeRobot
from kv_agent_ros.robot.skills import HOUSEHOLD_SKILLS
from kv_agent_ros.world.fake import example_map, example_robot
from kv_agent_ros.world.model import WorldModel
from kv_agent_ros.world.predict import predict_step
from kv_agent_ros.world.properties import is_stamp
from kv_agent_ros.world.state import ObjectState, Observation, WorldState

ACT_S = 1.0
LATENCY_S = 0.01


class ListSessionCache:
    """A SessionCache that only keeps what it was asked, in order."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, SessionKey]] = []

    def warm(self, session: SessionKey, duration_s: float) -> None:
        self.asked.append(('warm', session))

    def forget(self, session: SessionKey) -> None:
        self.asked.append(('forget', session))


class ListMemory:
    """A Memory in a list; alike means spelled alike."""

    def __init__(self) -> None:
        self.records: dict[str, MemoryRecord] = {}
        self._embedder = HashingEmbedder()

    def remember(self, record: MemoryRecord) -> None:
        self.records[record.record_id] = record

    def recall(self, text: str, robot_id: str, kind: MemoryKind, limit: int) -> tuple[Recollection, ...]:
        readable = [r for r in self.records.values() if r.kind is kind and r.robot_id in (robot_id, SHARED)]
        if not readable:
            return ()
        rows = self._embedder.embed([text, *(record.text for record in readable)])
        found = [
            Recollection(record=record, similarity=float(rows[0] @ row))
            for record, row in zip(readable, rows[1:], strict=True)
        ]
        return tuple(sorted(found, key=lambda each: -each.similarity)[:limit])

    def forget(self, record_id: str) -> bool:
        return self.records.pop(record_id, None) is not None

    def count(self) -> int:
        return len(self.records)


class FakeHome:
    """The example home with one robot. `truth` is what is; `world` what has been observed; `now_s` the ROS time."""

    def __init__(
        self,
        directory: Path,
        policy: Policy,
        things: tuple[ObjectState, ...],
        *,
        results: Mapping[str, Iterable[StepResult]] = NO_RESULTS,
        blocking_skills: Iterable[str] = (),
        robot_id: str = 'robot1',
        after_step: Callable[['FakeHome', Step], None] = lambda home, step: None,
    ) -> None:
        self.robot_id = robot_id
        self.now_s = 100.0
        home = example_map()
        robot = example_robot(robot_id, self.now_s)
        self.truth = WorldState(map=home, stamp_s=self.now_s, robots=(robot,), objects=things, doors=home.doors)
        self.world = WorldModel(home)
        self.memory = ListMemory()
        self.cache = ListSessionCache()
        self.robot = FakeRobot(robot_id, results=results, blocking_skills=blocking_skills, effect=self._act)
        self._after_step = after_step
        key = load_audit_key(directory / 'keys' / 'audit.key', directory / 'audit')
        self.gate = AgentHarness(
            robots={robot_id: self.robot},
            world=self.world,
            policy=policy,
            audit=open_audit_log(directory / 'audit', key, self.clock),
            latch=open_estop_latch(directory / 'estop.json', (robot_id,)),
            clock=self.clock,
            observation_timeout_s=0.05,
        )
        self.observe()

    def clock(self) -> float:
        """ROS time in seconds."""
        return self.now_s

    def state(self) -> RobotState:
        """The robot as it really is."""
        robot = self.truth.robot(self.robot_id)
        if robot is None:
            raise LookupError(f'expected the robot {self.robot_id} in the truth')
        return robot

    def thing(self, object_id: str) -> ObjectState:
        """A thing as it really is."""
        return next(thing for thing in self.truth.objects if thing.object_id == object_id)

    def executed(self) -> list[str]:
        """The skills that reached the robot."""
        return [step.skill for step in self.robot.executed]

    def agent(self, backend: InferenceBackend, sessions: SessionStore | None = None) -> RobotAgent:
        """An agent over this home, with that model."""
        return RobotAgent(
            planner=CopilotPlanner(backend=backend, skills=HOUSEHOLD_SKILLS, predict=self.world.predict),
            gate=self.gate,
            world=self.world,
            memory=self.memory,
            sessions=sessions or MemorySessions(),
            cache=self.cache,
            clock=self.clock,
        )

    def see_room_of(self, object_id: str) -> None:
        """That thing comes into view, as if another robot had passed by."""
        self.now_s += LATENCY_S
        thing = _sighting(self.thing(object_id), self.now_s, is_close=False)
        robot = replace(self.state(), stamp_s=self.now_s)
        self.world.apply(Observation(robot=robot, stamp_s=self.now_s, objects=(thing,)))

    def observe(self, *measured: str) -> None:
        """One observation: the things of the robot's room, and the fill level of those looked at closely."""
        self.now_s += LATENCY_S
        robot = replace(self.state(), stamp_s=self.now_s)
        near = [thing for thing in self.truth.objects if thing.room == robot.room]
        close = {robot.holding, *measured}
        seen = tuple(
            _sighting(thing, self.now_s, is_close=thing.object_id in close or thing.category in close) for thing in near
        )
        doors = tuple(door for door in self.truth.doors if robot.room in door.rooms)
        self.world.apply(Observation(robot=robot, stamp_s=self.now_s, objects=seen, doors=doors))
        self.now_s -= LATENCY_S

    def _act(self, state: RobotState, step: Step) -> RobotState:
        """What the robot does is what would happen in the truth; a thing that is not there is not found."""
        self.now_s += ACT_S
        here = replace(self.truth, stamp_s=self.now_s)
        after = predict_step(here, self.robot_id, step, HOUSEHOLD_SKILLS).world
        things = tuple(thing for thing in after.objects if thing.confidence > 0.0)
        self.truth = replace(after, objects=things, stamp_s=self.now_s)
        self._after_step(self, step)
        self.observe(step.text('target') if step.skill == 'inspect' else '')
        return state


def _sighting(thing: ObjectState, now_s: float, *, is_close: bool) -> ObjectState:
    properties = {name: value for name, value in thing.properties.items() if not is_stamp(name)} if is_close else {}
    return replace(thing, seen_s=now_s, properties=properties)
