from pathlib import Path

import numpy as np
import pytest

from kv_agent_ros.errors import BadRequestError
from kv_agent_ros.robot.base import Pose
from kv_agent_ros.robot.engine import Engine
from kv_agent_ros.world.grid import FREE, OCCUPIED, OccupancyGrid, occupancy
from kv_agent_ros.world.map_file import load_furniture, load_map

HOME = Path(__file__).parents[2] / 'config' / 'worlds' / 'home.yaml'


def _home_grid() -> OccupancyGrid:
    return occupancy(load_map(HOME), load_furniture(HOME), 0.05)


def _at(grid: OccupancyGrid, x: float, y: float) -> int:
    column = int((x - grid.origin[0]) / grid.resolution_m)
    row = int((y - grid.origin[1]) / grid.resolution_m)
    return int(grid.cells[row, column])


@pytest.mark.parametrize(
    ('x', 'y', 'value'),
    [
        (2.4, 2.2, FREE),  # the kitchen floor
        (4.25, 2.0, FREE),  # its doorway
        (4.25, 3.5, OCCUPIED),  # the wall beside it
        (1.1, 3.7, OCCUPIED),  # the counter
        (10.6, 2.0, OCCUPIED),  # outside
    ],
)
def test_floors_are_free_walls_and_furniture_are_not(x: float, y: float, value: int) -> None:
    assert _at(_home_grid(), x, y) == value


def test_the_grid_covers_the_home_with_a_margin() -> None:
    grid = _home_grid()
    assert grid.origin == pytest.approx((-0.3, -0.3))
    assert grid.cells.shape == (172, 222)
    assert grid.cells.dtype == np.int8
    assert set(np.unique(grid.cells)) == {FREE, OCCUPIED}


def test_a_robot_of_pyrobosim_stands_on_free_cells_only() -> None:
    grid = _home_grid()
    engine = Engine(HOME, {'robot1': Pose(x_m=9.8, y_m=3.2)})
    stands = [stand for place in engine.locations() for stand in engine.stands(place)]
    assert {_at(grid, stand.x_m, stand.y_m) for stand in stands} == {FREE}


def test_a_resolution_that_is_no_length_is_refused() -> None:
    for resolution_m in (0.0, -1.0, float('nan')):
        with pytest.raises(BadRequestError, match='resolution_m'):
            occupancy(load_map(HOME), (), resolution_m)
