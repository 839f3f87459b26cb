"""The mutable part of one simulated robot: battery, motion, what its step may not see. SimulatedHome owns it."""

from collections import deque
from dataclasses import dataclass, field

from kv_agent_ros.robot.base import Pose, Velocity
from kv_agent_ros.robot.home_file import Point

DRAIN_PER_S = 2e-5  # fraction of the battery
DRAIN_PER_M = 2e-3
CHARGE_PER_S = 2e-3
DEADMAN_S = 0.5
PATH_STEP_M = 0.05
PATH_POINTS = 20_000


@dataclass(kw_only=True, slots=True)
class Drive:
    """A velocity command that acts from `since_s` until `until_s` (steady clock)."""

    velocity: Velocity = Velocity()
    since_s: float = 0.0
    until_s: float = 0.0


@dataclass(kw_only=True, slots=True)
class Body:
    """One robot's own state; `settled_s` is the simulated time up to which the battery is accounted for."""

    robot_id: str
    battery: float
    settled_s: float
    is_docked: bool = True
    velocity: Velocity = Velocity()
    is_busy: bool = False
    is_halted: bool = False
    drive: Drive = field(default_factory=Drive)
    unseen: frozenset[str] = frozenset()  # objects that the current step's detections miss
    last_seen: dict[str, Point] = field(default_factory=dict)
    path: deque[tuple[float, float, float]] = field(default_factory=lambda: deque(maxlen=PATH_POINTS))

    def spend_until(self, now_s: float) -> None:
        """Account for the time up to now: charge at the dock, drain elsewhere."""
        elapsed_s = max(0.0, now_s - self.settled_s)
        self.settled_s = max(self.settled_s, now_s)
        rate = CHARGE_PER_S if self.is_docked else -DRAIN_PER_S
        self.battery = min(1.0, max(0.0, self.battery + rate * elapsed_s))

    def has_moved(self, pose: Pose, distance_m: float, now_s: float) -> None:
        """Account for a movement that ended at `pose`."""
        self.is_docked = False
        self.battery = max(0.0, self.battery - DRAIN_PER_M * distance_m)
        last = self.path[-1] if self.path else (0.0, float('inf'), float('inf'))
        if max(abs(pose.x_m - last[1]), abs(pose.y_m - last[2])) >= PATH_STEP_M:
            self.path.append((now_s, pose.x_m, pose.y_m))

    def stand_still(self) -> None:
        """Forget every command to move."""
        self.velocity = Velocity()
        self.drive = Drive()
