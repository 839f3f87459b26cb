"""The evidence after an act: an observation later than it, and what it says of the step's post-condition."""

from collections.abc import Callable
import time

from kv_agent_ros.deadline import Deadline
from kv_agent_ros.errors import DeadlineError, UnreachableError
from kv_agent_ros.robot.base import Step
from kv_agent_ros.world.base import EffectCheck, World
from kv_agent_ros.world.effects import check_effect
from kv_agent_ros.world.state import WorldState

MAX_LOOKS = 3  # one look may miss a thing; after this many the world has spoken
SLICE_S = 0.25  # how late a cancel is noticed while waiting


class Witness:
    """Looks at the world after an act. `timeout_s`: an observation must come within, of the steady `clock`."""

    def __init__(self, world: World, timeout_s: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._world = world
        self._timeout_s = timeout_s
        self._clock = clock

    def check(self, step: Step, robot_id: str, before: WorldState, acted_s: float, deadline: Deadline) -> EffectCheck:
        """Whether the post-condition is seen in an observation later than `acted_s` (ROS time).

        Raises CanceledError or DeadlineError when `deadline` ends first.
        """
        patience = Deadline(self._timeout_s, self._clock)
        since_s, verdict = acted_s, _unseen(robot_id, acted_s, self._timeout_s)
        for _ in range(MAX_LOOKS):
            try:
                after = self._look(robot_id, since_s, patience, deadline)
            except UnreachableError as error:
                return EffectCheck(is_met=False, evidence=f'the world model is unreachable: {error}')
            robot = None if after is None else after.robot(robot_id)
            if after is None or robot is None:
                return verdict
            verdict = check_effect(step, robot_id, before, after)
            if verdict.is_met:
                return verdict
            since_s = robot.stamp_s
        return verdict

    def _look(self, robot_id: str, since_s: float, patience: Deadline, deadline: Deadline) -> WorldState | None:
        """A state later than `since_s`; None when patience runs out."""
        while not patience.is_over:
            deadline.check()
            slice_s = min(SLICE_S, patience.remaining_s, deadline.remaining_s)
            if slice_s <= 0.0:
                continue
            try:
                return self._world.wait_newer(robot_id, since_s, Deadline(slice_s, self._clock))
            except DeadlineError:
                continue
        return None


def _unseen(robot_id: str, acted_s: float, timeout_s: float) -> EffectCheck:
    evidence = f'{robot_id} was not observed after {acted_s:.2f} s within {timeout_s:g} s; there is no evidence'
    return EffectCheck(is_met=False, evidence=evidence)
