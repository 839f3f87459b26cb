"""The seam between the agent on a robot and the planner that may be elsewhere. The planner keeps no state."""

from dataclasses import dataclass
from typing import Protocol

from kv_agent_ros.agent.task import Task
from kv_agent_ros.deadline import Deadline
from kv_agent_ros.errors import Outcome
from kv_agent_ros.inference.base import Message, Turn
from kv_agent_ros.kvcache.block import SessionKey
from kv_agent_ros.memory.base import Recollection
from kv_agent_ros.robot.plan import Plan
from kv_agent_ros.world.state import WorldState


@dataclass(frozen=True, kw_only=True, slots=True)
class PlanRequest:
    """All that the planner needs. `history`: the session's turns so far, without the fixed head."""

    session: SessionKey
    history: tuple[Message, ...]
    task: Task
    world: WorldState
    recollections: tuple[Recollection, ...] = ()
    refusal: str = ''  # why the previous proposal was refused or what failed; '' at first


@dataclass(frozen=True, kw_only=True, slots=True)
class PlanProposal:
    """A plan and how it came about. `appended`: messages the session keeps; `notes`: drafts refused and why."""

    outcome: Outcome
    message: str
    plan: Plan | None
    appended: tuple[Message, ...] = ()
    turns: tuple[Turn, ...] = ()
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class Explanation:
    """The model's words about a failure or a finished task; for people, never evidence."""

    text: str
    appended: tuple[Message, ...] = ()
    turns: tuple[Turn, ...] = ()


class Planner(Protocol):
    """CopilotPlanner here, a ROS client elsewhere. Thread-safe."""

    def plan(self, request: PlanRequest, deadline: Deadline) -> PlanProposal:
        """Propose a plan. A failure is a proposal without plan. Raises UnreachableError."""
        ...

    def explain(self, request: PlanRequest, facts: str, deadline: Deadline) -> Explanation:
        """Put `facts` (what happened) into a sentence for a person. Raises UnreachableError."""
        ...
