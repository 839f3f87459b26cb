"""The public fake Robot for tests: does nothing, remembers everything, answers what it was told to answer.

A skill without a scripted result succeeds at once. A skill in `blocking_skills` runs until its deadline ends it.
"""

from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
import threading
from types import MappingProxyType

from kv_agent_ros.deadline import Deadline
from kv_agent_ros.errors import Outcome
from kv_agent_ros.robot.base import RobotState, Skill, Step, StepResult, Velocity
from kv_agent_ros.robot.skills import HOUSEHOLD_SKILLS

Effect = Callable[[RobotState, Step], RobotState]
NO_RESULTS: Mapping[str, Iterable[StepResult]] = MappingProxyType({})
BLOCK_POLL_S = 60.0


def keep_state(state: RobotState, step: Step) -> RobotState:
    """The effect of a robot that no skill changes."""
    return state


def gripper_and_dock(state: RobotState, step: Step) -> RobotState:
    """The effect of a robot whose pick, place and dock always work."""
    if step.skill == 'pick':
        return replace(state, holding=step.text('target'))
    if step.skill == 'place':
        return replace(state, holding='')
    return replace(state, is_docked=step.skill == 'dock')


class FakeRobot:
    """A Robot whose answers are scripted; `executed`, `velocities` and `num_stops` say what was asked of it."""

    def __init__(
        self,
        robot_id: str = 'robot1',
        *,
        results: Mapping[str, Iterable[StepResult]] = NO_RESULTS,
        blocking_skills: Iterable[str] = (),
        effect: Effect = keep_state,
        skills: tuple[Skill, ...] = HOUSEHOLD_SKILLS,
    ) -> None:
        self.executed: list[Step] = []
        self.velocities: list[Velocity] = []
        self.num_stops = 0
        self.is_blocking = threading.Event()  # set once a blocking skill has begun, for tests that cancel it
        self._state = RobotState(robot_id=robot_id, stamp_s=0.0)
        self._results = {skill: deque(queue) for skill, queue in results.items()}
        self._blocking_skills = frozenset(blocking_skills)
        self._effect = effect
        self._skills = skills
        self._lock = threading.Lock()

    def skills(self) -> tuple[Skill, ...]:
        return self._skills

    def state(self) -> RobotState:
        with self._lock:
            return self._state

    def execute(self, step: Step, deadline: Deadline) -> StepResult:
        with self._lock:
            self.executed.append(step)
            queue = self._results.get(step.skill)
            scripted = queue.popleft() if queue else StepResult(outcome=Outcome.SUCCESS)
        if step.skill in self._blocking_skills:
            return self._block(deadline)
        with self._lock:
            if scripted.is_success:
                self._state = self._effect(self._state, step)
        return scripted

    def drive(self, velocity: Velocity) -> None:
        with self._lock:
            self.velocities.append(velocity)
            self._state = replace(self._state, velocity=velocity)

    def stop(self) -> None:
        with self._lock:
            self.num_stops += 1
            self._state = replace(self._state, velocity=Velocity())

    def _block(self, deadline: Deadline) -> StepResult:
        self.is_blocking.set()
        while not deadline.wait(BLOCK_POLL_S):
            continue
        outcome = Outcome.CANCELED if deadline.is_canceled else Outcome.TIMEOUT
        return StepResult(outcome=outcome, message='the fake robot was told to block')
