"""The map as an occupancy grid, for RViz and Nav2: rooms and hallways are free, walls and furniture are not."""

from collections.abc import Sequence
from dataclasses import dataclass
import math

import numpy as np
import numpy.typing as npt

from kv_agent_ros.errors import BadRequestError
from kv_agent_ros.world.state import Point, WorldMap

FREE = 0
OCCUPIED = 100
MARGIN_M = 0.3
ROUNDING = 1e-6  # no extra cell for the rounding error of a division that comes out even
Outline = Sequence[Point]


@dataclass(frozen=True, kw_only=True, slots=True)
class OccupancyGrid:
    """`cells`: (rows, columns) int8, 0 free or 100 occupied, row 0 at the lowest y, as in nav_msgs/OccupancyGrid."""

    origin: Point  # of the lower left corner of cell (0, 0), metres in `map`
    resolution_m: float
    cells: npt.NDArray[np.int8]


def occupancy(world_map: WorldMap, furniture: Sequence[Outline], resolution_m: float) -> OccupancyGrid:
    """The grid of a map with a margin around it. Raises BadRequestError for a resolution that is not > 0."""
    if not (resolution_m > 0 and math.isfinite(resolution_m)):
        raise BadRequestError(f'resolution_m: expected metres > 0, got {resolution_m}')
    corners = np.array([point for room in world_map.rooms for point in room.outline])
    low, high = corners.min(axis=0) - MARGIN_M, corners.max(axis=0) + MARGIN_M
    num_columns, num_rows = (int(n) for n in np.ceil((high - low) / resolution_m - ROUNDING))
    xs = low[0] + (np.arange(num_columns) + 0.5) * resolution_m
    ys = low[1] + (np.arange(num_rows) + 0.5) * resolution_m
    grid_x, grid_y = np.meshgrid(xs, ys)
    cells = np.full(grid_x.shape, OCCUPIED, dtype=np.int8)
    for room in world_map.rooms:
        cells[_inside(room.outline, grid_x, grid_y)] = FREE
    for outline in furniture:
        cells[_inside(outline, grid_x, grid_y)] = OCCUPIED
    return OccupancyGrid(origin=(float(low[0]), float(low[1])), resolution_m=resolution_m, cells=cells)


def _inside(outline: Outline, xs: npt.NDArray[np.float64], ys: npt.NDArray[np.float64]) -> npt.NDArray[np.bool_]:
    """Which points lie in a simple polygon: an odd number of edges to their right."""
    inside = np.zeros(xs.shape, dtype=np.bool_)
    for (ax, ay), (bx, by) in zip(outline, (*outline[1:], outline[0]), strict=True):
        if ay != by:
            crosses = (ay > ys) != (by > ys)
            inside ^= crosses & (xs < ax + (ys - ay) / (by - ay) * (bx - ax))
    return inside
