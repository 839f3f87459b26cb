"""A planar lidar by ray casting in numpy: the scan of pyrobosim's Lidar2D (a test compares them) in 1 ms.

Speed matters here: every robot scans many times a second, under the home's one lock.

It knows outlines and discs only; whose they are, the engine knows.
"""

from collections.abc import Iterable
import math

import numpy as np
import numpy.typing as npt
from shapely import get_coordinates, get_parts, get_rings
from shapely.geometry.base import BaseGeometry

from kv_agent_ros.robot.base import Pose
from kv_agent_ros.robot.home_file import Point

NUM_RAYS = 180
RANGE_M = 8.0
Array = npt.NDArray[np.float64]


def edges_of(region: BaseGeometry) -> Array:
    """The border of a region: (num_edges, 2 ends, 2)."""
    rings = [get_coordinates(ring) for part in get_parts(region) for ring in get_rings(part)]
    return np.concatenate([np.stack([ring[:-1], ring[1:]], axis=1) for ring in rings])


def cast(eye: Pose, edges: Array, discs: Iterable[tuple[Point, float]]) -> npt.NDArray[np.float32]:
    """One scan: (NUM_RAYS,) metres, counter-clockwise from -pi in the robot's frame; without echo RANGE_M."""
    angles = eye.yaw_rad - math.pi + np.arange(NUM_RAYS) * math.tau / NUM_RAYS
    rays = np.stack([np.cos(angles), np.sin(angles)], axis=1)
    origin = np.array([eye.x_m, eye.y_m])
    echoes = [_edge_echo(rays, edges - origin)]
    echoes += [_disc_echo(rays, np.array(centre) - origin, radius_m) for centre, radius_m in discs]
    nearest: Array = np.min(echoes, axis=0)
    return np.minimum(RANGE_M, nearest).astype(np.float32)


def _edge_echo(rays: Array, edges: Array) -> Array:
    """The distance to the nearest edge along each ray, inf where there is none."""
    start, along = edges[:, 0], edges[:, 1] - edges[:, 0]
    with np.errstate(divide='ignore', invalid='ignore'):
        slope = _cross(rays[:, None], along[None])  # (num_rays, num_edges)
        distance = _cross(start, along)[None] / slope
        part = _cross(start[None], rays[:, None]) / slope
    hits = (distance >= 0) & (part >= 0) & (part <= 1)
    nearest: Array = np.where(hits, distance, np.inf).min(axis=1)
    return nearest


def _disc_echo(rays: Array, centre: Array, radius_m: float) -> Array:
    """The distance to a disc along each ray, inf where it is missed."""
    along = rays @ centre
    half_chord = radius_m**2 - (centre @ centre - along**2)
    hits = (half_chord > 0) & (along > 0)
    return np.where(hits, along - np.sqrt(np.maximum(half_chord, 0)), np.inf)


def _cross(a: Array, b: Array) -> Array:
    return a[..., 0] * b[..., 1] - a[..., 1] * b[..., 0]
