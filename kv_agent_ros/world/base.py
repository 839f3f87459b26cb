"""The seam to the world model: a snapshot now, or one that is newer than an act."""

from dataclasses import dataclass
from typing import Protocol

from kv_agent_ros.deadline import Deadline
from kv_agent_ros.robot.base import Step
from kv_agent_ros.world.state import Prediction, WorldState


@dataclass(frozen=True, kw_only=True, slots=True)
class EffectCheck:
    """Whether a step's post-condition holds in an observation, with the evidence in words."""

    is_met: bool
    evidence: str


class World(Protocol):
    """The shared world model: in this process (WorldModel) or behind ROS. Thread-safe."""

    def snapshot(self) -> WorldState:
        """The latest state. Raises UnreachableError when there is none."""
        ...

    def wait_newer(self, robot_id: str, stamp_s: float, deadline: Deadline) -> WorldState:
        """A state in which that robot was observed later than `stamp_s`. Raises DeadlineError or CanceledError."""
        ...

    def predict(self, world: WorldState, robot_id: str, step: Step) -> Prediction:
        """Rehearse one step in a state, without changing it. Pure: the same input gives the same output."""
        ...
