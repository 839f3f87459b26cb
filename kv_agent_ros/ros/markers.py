"""The world for RViz: MarkerArray, OccupancyGrid and Path. (ns, id) of a marker is stable over updates."""

from collections.abc import Iterable, Sequence

from geometry_msgs.msg import Point as PointMsg
from geometry_msgs.msg import PoseStamped, Vector3
from nav_msgs.msg import OccupancyGrid, Path
import numpy as np
import numpy.typing as npt
from std_msgs.msg import ColorRGBA
from visualization_msgs.msg import Marker, MarkerArray

from kv_agent_ros.robot.base import Pose
from kv_agent_ros.ros.conversions.values import point_to_msg, pose_to_msg
from kv_agent_ros.ros.conversions.world import map_header
from kv_agent_ros.world.state import Location, ObjectState, Point, RobotState, WorldState

RGBA = tuple[float, float, float, float]
FURNITURE: RGBA = (0.55, 0.40, 0.25, 0.9)
OBJECT: RGBA = (0.15, 0.45, 0.85, 1.0)
ROBOT: RGBA = (0.10, 0.65, 0.35, 1.0)
PERSON: RGBA = (0.85, 0.55, 0.10, 1.0)
HAZARD: RGBA = (0.90, 0.15, 0.15, 1.0)
WALL: RGBA = (0.35, 0.35, 0.35, 1.0)
LETTER: RGBA = (0.05, 0.05, 0.05, 1.0)


def world_markers(world: WorldState) -> MarkerArray:
    """Everything that is known, after a DELETEALL, so that what is gone disappears."""
    markers = [Marker(header=map_header(0.0), action=Marker.DELETEALL)]
    markers += [_outline('rooms', i, room.outline, WALL) for i, room in enumerate(world.map.rooms)]
    markers += [_text('room_names', i, _centre(room.outline), room.name) for i, room in enumerate(world.map.rooms)]
    markers += [_outline('zones', i, zone.outline, HAZARD) for i, zone in enumerate(world.map.zones)]
    for i, place in enumerate(world.map.locations):
        markers += _location(i, place)
    for i, thing in enumerate(world.objects):
        markers += _thing(i, thing)
    for i, robot in enumerate(world.robots):
        markers += _robot(i, robot)
    for i, person in enumerate(world.people):
        markers.append(
            _solid('people', i, Marker.CYLINDER, Pose(x_m=person.position[0], y_m=person.position[1]), PERSON)
        )
    return MarkerArray(markers=markers)


def _location(number: int, place: Location) -> list[Marker]:
    box = _solid('locations', number, Marker.CUBE, place.pose, FURNITURE, size=(0.4, 0.4, 0.5))
    return [box, _text('location_names', number, (place.pose.x_m, place.pose.y_m), place.name, height=0.7)]


def _thing(number: int, thing: ObjectState) -> list[Marker]:
    fill = thing.properties.get('fill_level')
    label = f'{thing.object_id} {fill:.0%}' if isinstance(fill, float) else thing.object_id
    cup = _solid('objects', number, Marker.CYLINDER, thing.pose, OBJECT, size=(0.12, 0.12, 0.15), height=0.6)
    return [cup, _text('object_names', number, (thing.pose.x_m, thing.pose.y_m), label, height=0.9)]


def _robot(number: int, robot: RobotState) -> list[Marker]:
    body = _solid('robots', number, Marker.ARROW, robot.pose, ROBOT, size=(0.5, 0.15, 0.15), height=0.1)
    label = f'{robot.robot_id} {robot.battery:.0%}'
    return [body, _text('robot_names', number, (robot.pose.x_m, robot.pose.y_m), label, height=1.1)]


def _solid(
    ns: str,
    number: int,
    shape: int,
    pose: Pose,
    rgba: RGBA,
    size: tuple[float, float, float] = (0.35, 0.35, 1.0),
    height: float = 0.25,
) -> Marker:
    marker = Marker(header=map_header(0.0), ns=ns, id=number, type=shape, action=Marker.ADD, pose=pose_to_msg(pose))
    marker.pose.position.z = height
    marker.scale = Vector3(x=size[0], y=size[1], z=size[2])
    marker.color = _color(rgba)
    return marker


def _text(ns: str, number: int, at: Point, text: str, height: float = 0.3) -> Marker:
    marker = _solid(ns, number, Marker.TEXT_VIEW_FACING, Pose(x_m=at[0], y_m=at[1]), LETTER, (0.0, 0.0, 0.22), height)
    marker.text = text
    return marker


def _outline(ns: str, number: int, outline: Sequence[Point], rgba: RGBA) -> Marker:
    marker = _solid(ns, number, Marker.LINE_STRIP, Pose(), rgba, size=(0.05, 0.0, 0.0), height=0.0)
    marker.points = [point_to_msg(point) for point in (*outline, outline[0])]
    return marker


def _centre(outline: Sequence[Point]) -> Point:
    xs, ys = zip(*outline, strict=True)
    return (sum(xs) / len(xs), sum(ys) / len(ys))


def _color(rgba: RGBA) -> ColorRGBA:
    red, green, blue, alpha = rgba
    return ColorRGBA(r=red, g=green, b=blue, a=alpha)


def occupancy_grid(origin: Point, cells: npt.NDArray[np.int8], resolution_m: float) -> OccupancyGrid:
    """cells (rows along y, columns along x; 0 free, 100 occupied) → OccupancyGrid in map."""
    grid = OccupancyGrid(header=map_header(0.0))
    grid.info.resolution = resolution_m
    grid.info.height, grid.info.width = (int(size) for size in cells.shape)
    grid.info.origin.position = PointMsg(x=float(origin[0]), y=float(origin[1]), z=0.0)
    grid.data = cells.ravel().tolist()
    return grid


def path_message(points: Iterable[Point], stamp_s: float) -> Path:
    """Way points → Path in map."""
    path = Path(header=map_header(stamp_s))
    for x_m, y_m in points:
        path.poses.append(PoseStamped(header=path.header, pose=pose_to_msg(Pose(x_m=x_m, y_m=y_m))))
    return path
