"""Reads the map of a world file in pyrobosim's format, without pyrobosim: what does not move, and where to stand.

It takes the part of that format that our worlds use (polygon rooms, straight hallways given by two points, box
furniture with nav_poses) and refuses the rest by name. Robots and movable objects are not part of a map.
"""

from collections.abc import Mapping
import math
from pathlib import Path

from kv_agent_ros.errors import ConfigError
from kv_agent_ros.robot.base import Pose
from kv_agent_ros.robot.home_file import (
    HomeSection,
    Section,
    as_number,
    as_section,
    as_text,
    entries_of,
    home_section,
    numbers_of,
    outline_of,
    points_of,
    read_yaml,
    section_of,
)
from kv_agent_ros.world.state import Door, Location, LocationKind, Point, Room, WorldMap, Zone

ROUNDING = 4  # digits; equal files make equal maps, and so equal prompts, on every machine


def load_map(path: Path) -> WorldMap:
    """The map in a world file. Raises ConfigError naming the entry that is missing or not understood."""
    document = read_yaml(path)
    home = home_section(document)
    hallways = {as_text(hallway, 'name'): hallway for hallway in entries_of(document, 'hallways')}
    furniture = _metadata(document, path, 'locations')
    return WorldMap(
        name=as_text(section_of(document, 'params'), 'name'),
        rooms=_rooms(document) + tuple(_hallway_room(hallway) for hallway in hallways.values()),
        locations=tuple(_location(entry, furniture, home) for entry in entries_of(document, 'locations')),
        doors=tuple(_door(name, hallway, hallways) for name, hallway in home.doors.items()),
        zones=tuple(Zone(name=name, outline=outline) for name, outline in home.zones.items()),
        categories=tuple(_metadata(document, path, 'objects')),
    )


def load_furniture(path: Path) -> tuple[tuple[Point, ...], ...]:
    """The outlines of the furniture in a world file, in its order. Raises ConfigError."""
    document = read_yaml(path)
    furniture = _metadata(document, path, 'locations')
    return tuple(_footprint(entry, furniture) for entry in entries_of(document, 'locations'))


def _metadata(document: Section, path: Path, key: str) -> Section:
    place = as_text(section_of(document, 'metadata'), key)
    return read_yaml(Path(place.replace('$PWD', str(path.parent))))


def _rooms(document: Section) -> tuple[Room, ...]:
    return tuple(
        Room(name=as_text(room, 'name'), outline=outline_of(_shape(room, 'polygon'), 'coords'))
        for room in entries_of(document, 'rooms')
    )


def _shape(entry: Section, expected: str) -> Section:
    footprint = section_of(entry, 'footprint')
    if footprint.get('type') != expected:
        raise ConfigError(f'footprint: expected type {expected}, got {footprint!r:.80}')
    return footprint


def _centre_line(hallway: Section) -> tuple[Point, Point]:
    points = points_of(hallway, 'conn_points')
    if hallway.get('conn_method') != 'points' or len(points) != 2:
        raise ConfigError(f'hallway {hallway.get("name")}: expected conn_method points with 2 conn_points')
    return points[0], points[1]


def _hallway_room(hallway: Section) -> Room:
    (ax, ay), (bx, by) = _centre_line(hallway)
    half = as_number(hallway, 'width') / 2 / math.dist((ax, ay), (bx, by))
    dx, dy = -(by - ay) * half, (bx - ax) * half
    outline = ((ax - dx, ay - dy), (bx - dx, by - dy), (bx + dx, by + dy), (ax + dx, ay + dy))
    return Room(name=as_text(hallway, 'name'), outline=outline, is_hallway=True)


def _door(name: str, hallway_name: str, hallways: Mapping[str, Section]) -> Door:
    hallway = hallways.get(hallway_name)
    if hallway is None:
        raise ConfigError(f'door {name}: expected one of the hallways {sorted(hallways)}, got {hallway_name}')
    (ax, ay), (bx, by) = _centre_line(hallway)
    return Door(
        name=name,
        rooms=(as_text(hallway, 'room_start'), as_text(hallway, 'room_end')),
        position=((ax + bx) / 2, (ay + by) / 2),
        is_open=hallway.get('is_open', True) is True,
    )


def _location(entry: Section, furniture: Section, home: HomeSection) -> Location:
    category = as_text(entry, 'category')
    kinds = {kind.value: kind for kind in LocationKind}
    kind = home.kinds.get(category, '')
    if kind not in kinds:
        raise ConfigError(f'home.kinds.{category}: expected one of {sorted(kinds)}, got {kind!r}')
    stands = _poses(as_section(furniture.get(category), f'location category {category}'), 'nav_poses')
    pose = _pose(entry)
    return Location(
        name=as_text(entry, 'name'),
        category=category,
        room=as_text(entry, 'parent'),
        kind=kinds[kind],
        pose=pose,
        approach=_compose(pose, stands[0]),
    )


def _poses(entry: Section, key: str) -> tuple[Pose, ...]:
    """The list of [x, y] or [x, y, z, yaw] under `key`, at least one. Raises ConfigError."""
    values = entry.get(key)
    if not isinstance(values, (list, tuple)) or not values:
        raise ConfigError(f'{key}: expected a list of poses, got {values!r:.80}')
    return tuple(_pose({'pose': value}) for value in values)


def _pose(entry: Section) -> Pose:
    numbers = numbers_of(entry, 'pose')
    if len(numbers) not in (2, 4):
        raise ConfigError(f'pose: expected [x, y] or [x, y, z, yaw], got {list(numbers)}')
    return Pose(x_m=numbers[0], y_m=numbers[1], yaw_rad=numbers[3] if len(numbers) == 4 else 0.0)


def _compose(frame: Pose, pose: Pose) -> Pose:
    """`pose`, given in `frame`, in the frame's own parent."""
    cos, sin = math.cos(frame.yaw_rad), math.sin(frame.yaw_rad)
    yaw = frame.yaw_rad + pose.yaw_rad
    return Pose(
        x_m=round(frame.x_m + cos * pose.x_m - sin * pose.y_m, ROUNDING),
        y_m=round(frame.y_m + sin * pose.x_m + cos * pose.y_m, ROUNDING),
        yaw_rad=round(math.atan2(math.sin(yaw), math.cos(yaw)), ROUNDING),
    )


def _footprint(entry: Section, furniture: Section) -> tuple[Point, ...]:
    category = as_text(entry, 'category')
    shape = _shape(as_section(furniture.get(category), f'location category {category}'), 'box')
    width, depth = numbers_of(shape, 'dims')
    pose = _pose(entry)
    corners = ((-width, -depth), (width, -depth), (width, depth), (-width, depth))
    placed = (_compose(pose, Pose(x_m=x / 2, y_m=y / 2)) for x, y in corners)
    return tuple((corner.x_m, corner.y_m) for corner in placed)
