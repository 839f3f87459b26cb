"""The guard on velocity commands: limits, acceleration, watchdog, e-stop, and no driving forward into an obstacle.

Pure but for its clock. `tick` gives the velocity to send; call it at a steady rate (10 Hz or more) and after a command.
Slowing down is never limited: the drive has its own ramp.
"""

from collections.abc import Callable
import math
import threading

from kv_agent_ros.harness.policy import VelocityPolicy
from kv_agent_ros.robot.base import Velocity

STILL = Velocity()


class VelocityGuard:
    """Turns wished velocities into allowed ones. Thread-safe. `clock`: steady seconds, not ROS time."""

    def __init__(
        self, policy: VelocityPolicy, timeout_s: float, is_stopped: Callable[[], bool], clock: Callable[[], float]
    ) -> None:
        self._policy = policy
        self._timeout_s = timeout_s
        self._is_stopped = is_stopped
        self._clock = clock
        self._wished = STILL
        self._wished_at_s = -math.inf
        self._nearest_m = 0.0
        self._seen_at_s = -math.inf
        self._sent = STILL
        self._sent_at_s = clock()
        self._lock = threading.Lock()

    def command(self, velocity: Velocity) -> None:
        """Wish for a velocity; it holds for `timeout_s`. One that is not finite is a wish to stand still."""
        is_finite = math.isfinite(velocity.linear_mps) and math.isfinite(velocity.angular_radps)
        with self._lock:
            self._wished = velocity if is_finite else STILL
            self._wished_at_s = self._clock()

    def observe(self, nearest_obstacle_m: float) -> None:
        """Tell the distance to the nearest obstacle by the newest scan; NaN counts as touching."""
        with self._lock:
            self._nearest_m = 0.0 if math.isnan(nearest_obstacle_m) else nearest_obstacle_m
            self._seen_at_s = self._clock()

    def tick(self) -> Velocity:
        """The velocity to send now."""
        is_stopped = self._is_stopped()
        with self._lock:
            now_s = self._clock()
            elapsed_s = max(0.0, now_s - self._sent_at_s)
            self._sent = STILL if is_stopped else self._allowed(now_s, elapsed_s)
            self._sent_at_s = now_s
            if is_stopped:
                self._wished = STILL
            return self._sent

    def _allowed(self, now_s: float, elapsed_s: float) -> Velocity:
        policy, wished = self._policy, self._wished
        if now_s - self._wished_at_s > self._timeout_s:
            return STILL
        linear = _clamp(wished.linear_mps, policy.max_linear_mps)
        if linear > 0.0 and not self._is_clear(now_s):
            linear = 0.0
        return Velocity(
            linear_mps=_ramp(self._sent.linear_mps, linear, policy.max_linear_mps2 * elapsed_s),
            angular_radps=_ramp(
                self._sent.angular_radps,
                _clamp(wished.angular_radps, policy.max_angular_radps),
                policy.max_angular_radps2 * elapsed_s,
            ),
        )

    def _is_clear(self, now_s: float) -> bool:
        is_fresh = now_s - self._seen_at_s <= self._policy.scan_max_age_s
        return self._policy.stop_distance_m == 0.0 or (is_fresh and self._nearest_m >= self._policy.stop_distance_m)


def _clamp(value: float, limit: float) -> float:
    return max(-limit, min(limit, value))


def _ramp(now: float, wished: float, step: float) -> float:
    """`wished`, but no faster than `now` by more than `step`; turning round passes through standing still."""
    start = now if now * wished > 0.0 else 0.0
    return math.copysign(min(abs(wished), abs(start) + step), wished)
