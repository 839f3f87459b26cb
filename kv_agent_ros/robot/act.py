"""One step in the making: the robot that does it, its deadline, and its own simulated time.

Skills are written in terms of it. Every wait and every movement passes here, so that a cancel, a deadline or a stop
ends any skill within one tick.
"""

from kv_agent_ros.deadline import Deadline
from kv_agent_ros.errors import Outcome
from kv_agent_ros.robot.base import Pose, Step, StepResult, Velocity
from kv_agent_ros.robot.home import TICK_S, SimulatedHome

DONE = StepResult(outcome=Outcome.SUCCESS)


class Act:
    """The running step of one robot."""

    def __init__(self, home: SimulatedHome, robot_id: str, step: Step, deadline: Deadline) -> None:
        self.home = home
        self.robot_id = robot_id
        self.step = step
        self.found_blocked: set[str] = set()  # hallways that turned out to be blocked in this step
        self._deadline = deadline
        self._began_s = self._now_s = home.sim_time_s()

    @property
    def elapsed_s(self) -> float:
        """Simulated seconds since the step began."""
        return self._now_s - self._began_s

    def pose(self) -> Pose:
        """Where the robot is."""
        return self.home.state(self.robot_id).pose

    def move(self, velocity: Velocity) -> str:
        """Let a velocity act for one tick; engine.FREE, or what stands in the way."""
        obstacle = self.home.move(self.robot_id, velocity, TICK_S)
        self._pass_time(TICK_S)
        return obstacle

    def stand(self, duration_s: float) -> None:
        """Stand still for a while."""
        self.home.rest(self.robot_id)
        end_s = self._now_s + duration_s
        while (left_s := end_s - self._now_s) > 1e-9:
            self._pass_time(min(TICK_S, left_s))
            self.home.check_not_stopped(self.robot_id)

    def _pass_time(self, duration_s: float) -> None:
        self._now_s = self.home.pace.pass_time(self.robot_id, self._now_s, duration_s, self._deadline)


def failure(outcome: Outcome, message: str) -> StepResult:
    """A step that ended without success."""
    return StepResult(outcome=outcome, message=message)
