import threading

import pytest

from kv_agent_ros.deadline import Deadline
from kv_agent_ros.errors import BadRequestError, CanceledError, DeadlineError
from kv_agent_ros.robot.pace import FastTime, Pace, RealTime


class _Clock:
    """A clock that a test moves by hand."""

    def __init__(self) -> None:
        self.now_s = 50.0

    def __call__(self) -> float:
        return self.now_s


def _paces() -> list[Pace]:
    return [RealTime(10.0, 100.0), FastTime(10.0)]


@pytest.mark.parametrize('pace', _paces(), ids=lambda pace: type(pace).__name__)
def test_time_passes_when_a_step_asks_for_it(pace: Pace) -> None:
    pace.join('robot1')
    began_s = pace.now_s()
    end_s = pace.pass_time('robot1', began_s, 2.0, Deadline(10.0))
    assert end_s == pytest.approx(began_s + 2.0)
    assert pace.now_s() >= end_s - 1e-6


@pytest.mark.parametrize('pace', _paces(), ids=lambda pace: type(pace).__name__)
def test_a_cancelled_or_late_step_gets_no_time(pace: Pace) -> None:
    cancelled = Deadline(10.0)
    cancelled.cancel()
    with pytest.raises(CanceledError):
        pace.pass_time('robot1', pace.now_s(), 100.0, cancelled)
    late = Deadline(1.0, clock=iter([0.0, 2.0, 2.0, 2.0]).__next__)
    with pytest.raises(DeadlineError):
        pace.pass_time('robot1', pace.now_s(), 100.0, late)


def test_real_time_runs_at_its_factor_from_its_start() -> None:
    clock = _Clock()
    pace = RealTime(10.0, 4.0, clock)
    clock.now_s += 2.5
    assert pace.now_s() == 20.0
    assert pace.from_wall_s(0.5) == 2.0


def test_a_step_a_little_late_catches_up_and_a_suspended_one_does_not() -> None:
    clock = _Clock()
    pace = RealTime(0.0, 1.0, clock)
    clock.now_s += 10.0
    assert pace.pass_time('robot1', 9.7, 0.1, Deadline(1.0)) == pytest.approx(9.8)
    assert pace.pass_time('robot1', 2.0, 0.1, Deadline(1.0)) == pytest.approx(10.0)


def test_a_factor_that_is_no_pace_is_refused() -> None:
    for factor in (0.0, -1.0, float('nan')):
        with pytest.raises(BadRequestError, match='realtime_factor'):
            RealTime(0.0, factor)


def test_in_fast_time_a_robot_waits_for_one_that_is_behind() -> None:
    pace = FastTime(0.0)
    pace.join('slow')
    pace.join('quick')
    at_s = pace.pass_time('quick', 0.0, 1.0, Deadline(5.0))
    arrived = threading.Event()

    def go_on() -> None:
        pace.pass_time('quick', at_s, 1.0, Deadline(30.0))
        arrived.set()

    thread = threading.Thread(target=go_on)
    thread.start()
    assert not arrived.wait(0.1)

    pace.pass_time('slow', 0.0, 1.0, Deadline(5.0))

    assert arrived.wait(5.0)
    thread.join(5.0)


def test_in_fast_time_nobody_waits_for_a_robot_whose_step_is_over() -> None:
    pace = FastTime(0.0)
    pace.join('gone')
    pace.join('quick')
    pace.leave('gone')
    assert pace.pass_time('quick', pace.pass_time('quick', 0.0, 1.0, Deadline(5.0)), 1.0, Deadline(5.0)) == 2.0
