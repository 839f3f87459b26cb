"""What a robot is to the rest of the suite: skills it has, a state it reports, steps it executes.

Knows nothing of planning, safety or ROS. Units are SI; frames follow REP-103/REP-105 (poses in `map`).
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from types import MappingProxyType
from typing import Protocol

from kv_agent_ros.deadline import Deadline
from kv_agent_ros.errors import Outcome

Argument = str | float
NO_ARGUMENTS: Mapping[str, Argument] = MappingProxyType({})


class ArgumentKind(Enum):
    """What a skill's argument names; the planner's grammar and the gate's checks follow from it."""

    PLACE = 'place'
    """A room or a location (furniture) of the map."""
    OBJECT = 'object'
    """A movable object: its id, or a category when just one is known."""
    DOOR = 'door'
    """A door of the map."""
    NUMBER = 'number'
    """A float in the given unit and range."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Parameter:
    """One argument of a skill. `minimum`/`maximum` and `default` apply to NUMBER only, in `unit`."""

    name: str
    kind: ArgumentKind
    is_required: bool = True
    unit: str = ''
    minimum: float = 0.0
    maximum: float = 0.0
    default: float = 0.0


@dataclass(frozen=True, kw_only=True, slots=True)
class Skill:
    """Something the robot can do, described for the planner (`description`: one English line)."""

    name: str
    description: str
    parameters: tuple[Parameter, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class Step:
    """One call of a skill. `branch_id` 0 = unconditional; `arm` True = the branch's then-arm."""

    skill: str
    arguments: Mapping[str, Argument] = field(default_factory=lambda: NO_ARGUMENTS)
    branch_id: int = 0
    arm: bool = True

    def text(self, name: str) -> str:
        """The argument as a string, '' when absent."""
        return str(self.arguments.get(name, ''))

    def number(self, name: str, default: float) -> float:
        """The argument as a float; `default` when absent. Raises ValueError when it is not a number."""
        return float(self.arguments.get(name, default))

    def __str__(self) -> str:
        inner = ', '.join(f'{k}={v}' for k, v in self.arguments.items())
        return f'{self.skill}({inner})'


@dataclass(frozen=True, kw_only=True, slots=True)
class StepResult:
    """How a step ended, by the robot's own account (the harness asks the world as well)."""

    outcome: Outcome
    message: str = ''
    duration_s: float = 0.0

    @property
    def is_success(self) -> bool:
        return self.outcome is Outcome.SUCCESS


@dataclass(frozen=True, kw_only=True, slots=True)
class Pose:
    """Planar pose in `map`: metres, radians counter-clockwise from x."""

    x_m: float = 0.0
    y_m: float = 0.0
    yaw_rad: float = 0.0


@dataclass(frozen=True, kw_only=True, slots=True)
class Velocity:
    """Planar velocity in `base_link`."""

    linear_mps: float = 0.0
    angular_radps: float = 0.0


@dataclass(frozen=True, kw_only=True, slots=True)
class RobotState:
    """What the robot knows of itself at `stamp_s` (seconds, ROS time)."""

    robot_id: str
    stamp_s: float
    pose: Pose = Pose()
    velocity: Velocity = Velocity()
    battery: float = 1.0  # fraction, 0..1
    is_docked: bool = False
    holding: str = ''  # object id, '' when the gripper is empty
    room: str = ''  # name of the room or hallway it stands in, '' when unknown

    @property
    def is_moving(self) -> bool:
        return abs(self.velocity.linear_mps) > 1e-3 or abs(self.velocity.angular_radps) > 1e-3


class Robot(Protocol):
    """A thing that moves. Implementations: simulated, ROS drivers, the harness's GuardedRobot, the public fake."""

    def skills(self) -> tuple[Skill, ...]:
        """The skills it has, in a stable order."""
        ...

    def state(self) -> RobotState:
        """Its latest own state; raises UnreachableError when there is none."""
        ...

    def execute(self, step: Step, deadline: Deadline) -> StepResult:
        """Do the step; end early, standing still, when `deadline` is cancelled (CANCELED) or over (TIMEOUT)."""
        ...

    def drive(self, velocity: Velocity) -> None:
        """Command a velocity; it holds until the next command or the robot's own watchdog."""
        ...

    def stop(self) -> None:
        """Stand still now; safe to call at any time, from any thread, repeatedly."""
        ...
