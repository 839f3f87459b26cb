import math

from hypothesis import given
from hypothesis import strategies as st
import pytest

from kv_agent_ros.robot.home_file import Walker
from kv_agent_ros.robot.people import position

ROUTE = ((0.0, 0.0), (2.0, 0.0), (2.0, 1.0))


@pytest.mark.parametrize(
    ('time_s', 'expected'),
    [
        (0.0, (0.0, 0.0)),
        (2.0, (1.0, 0.0)),
        (5.0, (2.0, 0.5)),
        (7.0, (2.0, 0.5)),
        (12.0, (0.0, 0.0)),
        (14.0, (1.0, 0.0)),
    ],
)
def test_a_walker_goes_along_the_route_and_back(time_s: float, expected: tuple[float, float]) -> None:
    walker = Walker(name='p', speed_mps=0.5, route=ROUTE)
    assert position(walker, time_s, 0.0) == pytest.approx(expected)


@given(st.floats(0, 1e6), st.floats(0, 1), st.floats(0, 2))
def test_a_walker_never_leaves_the_route(time_s: float, phase: float, speed_mps: float) -> None:
    x, y = position(Walker(name='p', speed_mps=speed_mps, route=ROUTE), time_s, phase)
    assert min(math.dist((min(x, 2.0), 0.0), (x, y)), math.dist((2.0, y), (x, y))) < 1e-6
    assert -1e-9 <= x <= 2.0 + 1e-9
    assert -1e-9 <= y <= 1.0 + 1e-9


def test_a_walker_with_one_point_stands_there() -> None:
    assert position(Walker(name='p', speed_mps=1.0, route=((3.0, 4.0),)), 17.0, 0.5) == (3.0, 4.0)
