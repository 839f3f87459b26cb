"""The seams between the agent on a robot, the planner, and the cache that has its conversation's KV.

All may be elsewhere. The planner keeps no state.
"""

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


class SessionCache(Protocol):
    """Where the KV of a robot's conversation waits between its turns. A cache that does not answer costs only time."""

    def warm(self, session: SessionKey, duration_s: float) -> None:
        """A turn comes soon: bring what the session used last to memory, and keep it there for so long."""
        ...

    def forget(self, session: SessionKey) -> None:
        """The conversation starts anew: what it used is as good as anybody's."""
        ...


class NoSessionCache:
    """For engines that keep KV to themselves, or none."""

    def warm(self, session: SessionKey, duration_s: float) -> None:
        """Nothing to bring."""

    def forget(self, session: SessionKey) -> None:
        """Nothing to drop."""


UNCACHED = NoSessionCache()
