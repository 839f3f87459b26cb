"""A task from instruction to result, and the goal against which success is measured."""

from dataclasses import dataclass
from enum import Enum

from kv_agent_ros.errors import Outcome
from kv_agent_ros.inference.base import Turn
from kv_agent_ros.robot.base import Step
from kv_agent_ros.robot.plan import Plan


class TaskMode(Enum):
    """What is to become of a task."""

    DO = 'do'
    """The robot does it."""
    REHEARSE = 'rehearse'
    """It is planned and judged; nothing moves."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Task:
    """What a person asked of a robot. `timeout_s` counts from acceptance."""

    task_id: str
    robot_id: str
    instruction: str
    timeout_s: float = 600.0
    mode: TaskMode = TaskMode.DO


class TaskPhase(Enum):
    """Where a task is."""

    QUEUED = 'queued'
    """Accepted; another task of this robot is running."""
    RECALLING = 'recalling'
    """Asking memory."""
    PLANNING = 'planning'
    """Waiting for a plan and its verdict."""
    EXECUTING = 'executing'
    """Doing a step."""
    RECOVERING = 'recovering'
    """A step failed; retrying, re-planning or making safe."""
    DONE = 'done'
    """Ended; the result is final."""


class StepStatus(Enum):
    """Where a step is."""

    PENDING = 'pending'
    RUNNING = 'running'
    SUCCEEDED = 'succeeded'
    SKIPPED = 'skipped'
    """Its branch's condition chose the other arm."""
    FAILED = 'failed'
    REFUSED = 'refused'
    """The harness said no."""


@dataclass(frozen=True, kw_only=True, slots=True)
class StepRecord:
    """One step as it went; `evidence` is what the world said after it."""

    index: int
    step: Step
    status: StepStatus
    outcome: Outcome
    message: str = ''
    evidence: str = ''
    attempt: int = 1
    duration_s: float = 0.0


@dataclass(frozen=True, kw_only=True, slots=True)
class TaskProgress:
    """A moment of a running task, for feedback and for people."""

    task_id: str
    phase: TaskPhase
    message: str
    plan: Plan | None = None
    step_index: int = -1
    step_status: StepStatus = StepStatus.PENDING
    num_steps: int = 0
    record: StepRecord | None = None  # of a step that has just ended
    turn: Turn | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class TaskResult:
    """How a task ended. `plans` in order of use, so a re-plan and its source are visible."""

    task_id: str
    outcome: Outcome
    message: str
    plans: tuple[Plan, ...] = ()
    steps: tuple[StepRecord, ...] = ()
    turns: tuple[Turn, ...] = ()
    duration_s: float = 0.0
    audit_head: str = ''
    report: str = ''  # the model's own words about the task; never evidence
