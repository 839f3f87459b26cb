"""The words of the safety gate: findings by rule, a three-way verdict, and what a rule may look at."""

from dataclasses import dataclass
from enum import Enum, IntEnum
from typing import Protocol

from kv_agent_ros.deadline import Deadline
from kv_agent_ros.robot.base import Skill, Step, StepResult
from kv_agent_ros.robot.plan import Plan
from kv_agent_ros.world.state import Prediction, WorldState


class Decision(IntEnum):
    """The worst finding wins; the number is the one on the interface."""

    ALLOW = 0
    """Go."""
    DEFER = 1
    """A person must decide, or more must be known, first."""
    REJECT = 2
    """No."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Finding:
    """What one rule says. `step_index` is the step it concerns, 0-based; -1 = the whole plan."""

    rule_id: str
    decision: Decision
    message: str
    step_index: int = -1


@dataclass(frozen=True, kw_only=True, slots=True)
class Verdict:
    """The judgement of a plan or a step, bound to the plan, the policy and the world it was made for."""

    decision: Decision
    findings: tuple[Finding, ...]
    plan_id: str
    policy_hash: str
    world_sequence: int
    expires_s: float  # ROS time after which a plan's ALLOW is void

    @property
    def rule_ids(self) -> tuple[str, ...]:
        """Ids of the rules that did not allow, in order, once each."""
        return tuple(dict.fromkeys(f.rule_id for f in self.findings if f.decision is not Decision.ALLOW))

    @property
    def reason(self) -> str:
        """One line for a person and for the planner."""
        return '; '.join(f'{f.rule_id}: {f.message}' for f in self.findings if f.decision is not Decision.ALLOW)


@dataclass(frozen=True, kw_only=True, slots=True)
class StepContext:
    """All that a rule may look at when it judges a step. `now_s` is ROS time."""

    robot_id: str
    plan: Plan
    step: Step
    step_index: int
    world: WorldState
    prediction: Prediction
    skills: tuple[Skill, ...]
    now_s: float


class Rule(Protocol):
    """One rule, one idea. Deterministic, no I/O; an exception inside counts as REJECT."""

    @property
    def rule_id(self) -> str:
        """Stable id, e.g. 'skill.unknown'; part of the interface."""
        ...

    def check(self, context: StepContext) -> tuple[Finding, ...]:
        """The findings, empty when the rule has nothing against the step."""
        ...


@dataclass(frozen=True, kw_only=True, slots=True)
class StepCommand:
    """A request to act: step `step_index` of a plan that check_plan has allowed for this robot."""

    robot_id: str
    task_id: str
    plan_id: str
    step_index: int


class Recovery(Enum):
    """What to do after a failed step."""

    RETRY = 'retry'
    """The same step again; the cause is likely gone or random."""
    REPLAN = 'replan'
    """A new plan for the rest, told the cause."""
    MAKE_SAFE = 'make_safe'
    """Stop, return to the dock, report."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Diagnosis:
    """Why a task's last step failed, from the audit and the world; never from the model."""

    root_cause: str  # stable word, e.g. 'slip', 'path_blocked', 'object_missing', 'gate_refusal'
    evidence: tuple[str, ...]
    recovery: Recovery
    message: str


class Gate(Protocol):
    """The only way to a motor, as the agent sees it: AgentHarness here, a ROS client elsewhere. Thread-safe.

    Every method raises UnreachableError when the harness does not answer; callers then treat the robot as stopped.
    """

    def check_plan(self, robot_id: str, plan: Plan) -> Verdict:
        """Judge a plan against the world now; ALLOW and DEFER register it under its plan_id for a while."""
        ...

    def execute(self, command: StepCommand, deadline: Deadline) -> StepResult:
        """Re-check against a fresh world, write the audit record, act, read the post-condition after the act."""
        ...

    def make_safe(self, robot_id: str, task_id: str, deadline: Deadline) -> StepResult:
        """Stand still, then return to the dock when that is possible."""
        ...

    def diagnose(self, robot_id: str, task_id: str) -> Diagnosis:
        """Root cause of the task's last failure."""
        ...

    def audit_head(self, robot_id: str) -> str:
        """Hex hash of the newest audit record."""
        ...
