"""Shortest paths in a free region: pyrobosim's A* on a grid of it, then pulled straight where the region allows.

Knows nothing of robots or rooms: the caller says which region is free for the centre of the robot.
"""

from collections.abc import Sequence
import itertools
import math

import numpy as np
import numpy.typing as npt
from pyrobosim.core.robot import Robot as SimRobot
from pyrobosim.navigation.a_star import AStarPlanner
from pyrobosim.navigation.occupancy_grid import OccupancyGrid
from shapely import LineString, intersects_xy, prepare
from shapely.geometry.base import BaseGeometry

from kv_agent_ros.robot.home_file import Point

Cell = tuple[int, int]
GRID_M = 0.1
CLEARANCE_M = 0.05  # plans keep this far from the region's edge
SNAP_CELLS = 3  # how far from a free cell a start or goal may lie


class PathFinder:
    """A* for one robot of a pyrobosim world."""

    def __init__(self, robot: SimRobot) -> None:
        self._planner = AStarPlanner(grid_resolution=GRID_M, grid_inflation_radius=robot.radius)
        self._planner.robot = robot
        self._planner.reset()

    def find(self, region: BaseGeometry, start: Point, goal: Point) -> tuple[Point, ...]:
        """Way-points from start to goal inside `region`, both included; empty when there is no way."""
        if not intersects_xy(region, *goal):
            return ()
        grid = _grid(region.buffer(-CLEARANCE_M))
        starts, ends = _nearest_free(grid, start), _nearest_free(grid, goal)
        ends = [cell for cell in ends if region.covers(LineString((grid.grid_to_world(cell), goal)))]
        if not starts or not ends:
            return ()
        self._planner.grid = grid
        cells: Sequence[Cell] = list(self._planner.astar(starts[0], ends[0]) or ())
        if not cells:
            return ()
        middle = [grid.grid_to_world(cell) for cell in cells]
        return _pull_straight(region, (start, *((float(x), float(y)) for x, y in middle), goal))


def length_m(path: Sequence[Point]) -> float:
    """The length of a polyline."""
    return sum(math.dist(a, b) for a, b in itertools.pairwise(path))


def _grid(region: BaseGeometry) -> OccupancyGrid:
    x_min, y_min, x_max, y_max = region.bounds
    xs, ys = np.meshgrid(np.arange(x_min, x_max, GRID_M), np.arange(y_min, y_max, GRID_M), indexing='ij')
    prepare(region)
    occupied: npt.NDArray[np.bool_] = ~intersects_xy(region, xs, ys)
    return OccupancyGrid(occupied.astype(float), GRID_M, (x_min, y_min))


def _nearest_free(grid: OccupancyGrid, point: Point) -> list[Cell]:
    """The free cells around the point, nearest first."""
    column = round((point[0] - grid.origin[0]) / GRID_M)
    row = round((point[1] - grid.origin[1]) / GRID_M)
    offsets = itertools.product(range(-SNAP_CELLS, SNAP_CELLS + 1), repeat=2)
    cells = [(column + dx, row + dy) for dx, dy in offsets]
    free = [cell for cell in cells if not grid.is_occupied(cell)]
    return sorted(free, key=lambda cell: math.dist(grid.grid_to_world(cell), point))


def _pull_straight(region: BaseGeometry, path: Sequence[Point]) -> tuple[Point, ...]:
    """Leave out each way-point that a straight line inside the region makes needless."""
    inside = region.buffer(-CLEARANCE_M / 2)
    prepare(inside)
    kept = [path[0]]
    at = 0
    while at < len(path) - 1:
        ahead = (i for i in range(len(path) - 1, at + 1, -1) if inside.covers(LineString((path[at], path[i]))))
        at = next(ahead, at + 1)
        kept.append(path[at])
    return tuple(kept)
