"""The evidence after an act: an observation later than it, and what it says of the step's post-condition."""

from kv_agent_ros.deadline import Deadline
from kv_agent_ros.errors import DeadlineError, UnreachableError
from kv_agent_ros.robot.base import Step
from kv_agent_ros.world.base import EffectCheck, World
from kv_agent_ros.world.effects import check_effect
from kv_agent_ros.world.state import WorldState

MAX_LOOKS = 3  # one look may miss a thing; after this many the world has spoken


class Witness:
    """Looks at the world after an act. `timeout_s`: the observations must come within."""

    def __init__(self, world: World, timeout_s: float) -> None:
        self._world = world
        self._timeout_s = timeout_s

    def check(self, step: Step, robot_id: str, before: WorldState, acted_s: float, deadline: Deadline) -> EffectCheck:
        """Whether the post-condition is seen in an observation later than `acted_s` (ROS time).

        Raises CanceledError or DeadlineError when `deadline` ends first.
        """
        patience = deadline.within(self._timeout_s)
        since_s, verdict = acted_s, _unseen(robot_id, acted_s, self._timeout_s)
        for _ in range(MAX_LOOKS):
            try:
                after = self._world.wait_newer(robot_id, since_s, patience)
            except UnreachableError as error:
                return EffectCheck(is_met=False, evidence=f'the world model is unreachable: {error}')
            except DeadlineError:
                deadline.check()
                return verdict
            verdict = check_effect(step, robot_id, before, after)
            robot = after.robot(robot_id)
            if verdict.is_met or robot is None:
                return verdict
            since_s = robot.stamp_s
        return verdict


def _unseen(robot_id: str, acted_s: float, timeout_s: float) -> EffectCheck:
    evidence = f'{robot_id} was not observed after {acted_s:.2f} s within {timeout_s:g} s; there is no evidence'
    return EffectCheck(is_met=False, evidence=evidence)
