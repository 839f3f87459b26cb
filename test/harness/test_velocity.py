"""What a commanded velocity becomes before it reaches the wheels."""

from dataclasses import replace
import math
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st
import pytest

from kv_agent_ros.harness.policy import load_policy
from kv_agent_ros.harness.velocity import STILL, VelocityGuard
from kv_agent_ros.robot.base import Velocity

POLICY = load_policy(Path(__file__).parents[2] / 'config' / 'policies' / 'default.yaml').velocity


class Bench:
    """A guard with a clock to turn and an e-stop to press."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self.is_stopped = False
        self.guard = VelocityGuard(POLICY, 0.4, lambda: self.is_stopped, lambda: self.now_s)
        self.guard.observe(5.0)

    def after(self, seconds: float) -> Velocity:
        self.now_s += seconds
        return self.guard.tick()

    def at_full_speed(self) -> None:
        for _ in range(10):
            self.guard.command(Velocity(linear_mps=0.6))
            self.guard.observe(5.0)
            self.after(0.1)
        assert self.guard.tick().linear_mps == pytest.approx(0.6)


@pytest.fixture
def bench() -> Bench:
    return Bench()


def test_speed_is_limited_and_grows_no_faster_than_allowed(bench: Bench) -> None:
    bench.guard.command(Velocity(linear_mps=99.0, angular_radps=-99.0))
    assert bench.after(0.1) == Velocity(linear_mps=pytest.approx(0.1), angular_radps=pytest.approx(-0.3))
    bench.at_full_speed()


@pytest.mark.parametrize('value', [math.nan, math.inf, -math.inf])
def test_command_that_is_not_finite_stands_still(bench: Bench, value: float) -> None:
    bench.at_full_speed()
    bench.guard.command(Velocity(linear_mps=0.5, angular_radps=value))
    assert bench.after(0.1) == STILL


def test_silence_stops_the_robot(bench: Bench) -> None:
    bench.at_full_speed()
    assert bench.after(0.29) != STILL
    assert bench.after(0.02) == STILL


def test_estop_stops_at_once_and_the_old_command_does_not_come_back(bench: Bench) -> None:
    bench.at_full_speed()
    bench.is_stopped = True
    assert bench.after(0.01) == STILL
    bench.is_stopped = False
    assert bench.after(0.01) == STILL


def test_near_obstacle_forbids_forward_but_not_back_or_round(bench: Bench) -> None:
    bench.at_full_speed()
    bench.guard.observe(0.1)
    bench.guard.command(Velocity(linear_mps=0.5, angular_radps=0.5))
    assert bench.after(0.1) == Velocity(linear_mps=0.0, angular_radps=pytest.approx(0.3))
    bench.guard.command(Velocity(linear_mps=-0.5))
    assert bench.after(0.1).linear_mps == pytest.approx(-0.1)


def test_old_or_broken_scan_forbids_forward(bench: Bench) -> None:
    bench.now_s = 1.5
    bench.guard.command(Velocity(linear_mps=0.5))
    assert bench.after(0.1) == STILL
    bench.guard.observe(math.nan)
    assert bench.after(0.1) == STILL


def test_no_scan_is_asked_for_where_the_policy_has_no_stop_distance() -> None:
    guard = VelocityGuard(replace(POLICY, stop_distance_m=0.0), 0.4, lambda: False, iter([0.0, 0.0, 0.2]).__next__)
    guard.command(Velocity(linear_mps=0.5))
    assert guard.tick().linear_mps == pytest.approx(0.2)


def test_turning_round_passes_through_standing_still(bench: Bench) -> None:
    bench.at_full_speed()
    bench.guard.command(Velocity(linear_mps=-0.6))
    assert bench.after(0.1).linear_mps == pytest.approx(-0.1)


@given(
    st.lists(
        st.tuples(st.floats(), st.floats(), st.floats(min_value=0.0, max_value=2.0), st.floats(), st.booleans()),
        max_size=20,
    )
)
def test_no_history_of_commands_breaks_the_limits(
    history: list[tuple[float, float, float, float, bool]],
) -> None:
    bench = Bench()
    for linear, angular, pause_s, nearest_m, is_stopped in history:
        bench.is_stopped = is_stopped
        bench.guard.observe(nearest_m)
        bench.guard.command(Velocity(linear_mps=linear, angular_radps=angular))
        sent = bench.after(pause_s)
        assert abs(sent.linear_mps) <= 0.6
        assert abs(sent.angular_radps) <= 1.2
        assert not (is_stopped and sent != STILL)
        assert not (sent.linear_mps > 0.0 and not nearest_m >= 0.3)
