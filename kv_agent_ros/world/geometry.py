"""Plane geometry in metres: distances, polygons, and where two outlines touch."""

from collections.abc import Sequence
import itertools
import math

from kv_agent_ros.robot.base import Pose
from kv_agent_ros.world.state import Point, Room, WorldMap


def point_of(pose: Pose) -> Point:
    """The position of a pose."""
    return (pose.x_m, pose.y_m)


def distance_m(a: Point, b: Point) -> float:
    """Straight-line distance."""
    return math.hypot(a[0] - b[0], a[1] - b[1])


def short_of(start: Point, goal: Point, gap_m: float) -> Point:
    """The point on the way from start to goal that is `gap_m` before the goal; start when it is nearer already."""
    away_m = distance_m(start, goal)
    if away_m <= gap_m:
        return start
    part = 1.0 - gap_m / away_m
    return (start[0] + part * (goal[0] - start[0]), start[1] + part * (goal[1] - start[1]))


def path_length_m(path: Sequence[Point]) -> float:
    """Sum of the segments; 0 for fewer than two points."""
    return sum(distance_m(a, b) for a, b in itertools.pairwise(path))


def contains(outline: Sequence[Point], point: Point) -> bool:
    """Whether the point lies inside the simple polygon (even-odd rule; the edge itself may go either way)."""
    x, y = point
    inside = False
    for (ax, ay), (bx, by) in _edges(outline):
        if (ay > y) != (by > y) and x < (bx - ax) * (y - ay) / (by - ay) + ax:
            inside = not inside
    return inside


def centroid(outline: Sequence[Point]) -> Point:
    """Centre of area; the mean of the corners when the polygon has no area."""
    area = cx = cy = 0.0
    for (ax, ay), (bx, by) in _edges(outline):
        cross = ax * by - bx * ay
        area, cx, cy = area + cross, cx + (ax + bx) * cross, cy + (ay + by) * cross
    if abs(area) < 1e-9:
        return (sum(p[0] for p in outline) / len(outline), sum(p[1] for p in outline) / len(outline))
    return (cx / (3.0 * area), cy / (3.0 * area))


def distance_to_outline_m(outline: Sequence[Point], point: Point) -> float:
    """0 inside, else the distance to the nearest edge."""
    if contains(outline, point):
        return 0.0
    return min(distance_m(point, _nearest_on(a, b, point)) for a, b in _edges(outline))


def opening(a: Sequence[Point], b: Sequence[Point], tolerance_m: float = 0.05) -> Point | None:
    """The middle of where two outlines touch or overlap, None when they are apart."""
    touching = [p for p in a if distance_to_outline_m(b, p) <= tolerance_m]
    touching += [p for p in b if distance_to_outline_m(a, p) <= tolerance_m]
    touching += [cross for ea in _edges(a) for eb in _edges(b) if (cross := _crossing(ea, eb)) is not None]
    if len(set(touching)) < 2:
        return None
    return (sum(p[0] for p in touching) / len(touching), sum(p[1] for p in touching) / len(touching))


def room_at(home: WorldMap, point: Point) -> Room | None:
    """The room that contains the point, None when none does."""
    return next((room for room in home.rooms if contains(room.outline, point)), None)


def _edges(outline: Sequence[Point]) -> list[tuple[Point, Point]]:
    return list(zip(outline, [*outline[1:], outline[0]], strict=True))


def _nearest_on(a: Point, b: Point, point: Point) -> Point:
    dx, dy = b[0] - a[0], b[1] - a[1]
    squared = dx * dx + dy * dy
    if squared == 0.0:
        return a
    t = max(0.0, min(1.0, ((point[0] - a[0]) * dx + (point[1] - a[1]) * dy) / squared))
    return (a[0] + t * dx, a[1] + t * dy)


def _crossing(first: tuple[Point, Point], second: tuple[Point, Point]) -> Point | None:
    (ax, ay), (bx, by) = first
    (cx, cy), (dx, dy) = second
    denominator = (bx - ax) * (dy - cy) - (by - ay) * (dx - cx)
    if abs(denominator) < 1e-12:
        return None
    t = ((cx - ax) * (dy - cy) - (cy - ay) * (dx - cx)) / denominator
    u = ((cx - ax) * (by - ay) - (cy - ay) * (bx - ax)) / denominator
    if not (0.0 <= t <= 1.0 and 0.0 <= u <= 1.0):
        return None
    return (ax + t * (bx - ax), ay + t * (by - ay))
