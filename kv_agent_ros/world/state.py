"""What is known of the world: the map, the robots, the objects, the people; and the observations that change it.

Frozen values only. Poses in `map`, SI units, stamps in seconds of ROS time. Nothing here is decided or guessed: an
unknown property is absent from `properties`, an object nobody has seen is absent from `objects`.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from types import MappingProxyType

from kv_agent_ros.robot.base import Argument, Pose, RobotState

Point = tuple[float, float]
NO_PROPERTIES: Mapping[str, Argument] = MappingProxyType({})


@dataclass(frozen=True, kw_only=True, slots=True)
class Room:
    """A room or hallway; `outline` is a simple polygon in metres, counter-clockwise."""

    name: str
    outline: tuple[Point, ...]
    is_hallway: bool = False


class LocationKind(Enum):
    """What a location is good for."""

    SURFACE = 'surface'
    """Objects can be placed on it."""
    SINK = 'sink'
    """Liquids can be poured into it."""
    DOCK = 'dock'
    """The robot charges here."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Location:
    """A piece of furniture with a place to stand before it."""

    name: str
    category: str
    room: str
    kind: LocationKind
    pose: Pose
    approach: Pose


@dataclass(frozen=True, kw_only=True, slots=True)
class Door:
    """A doorway between two rooms. `seen_s`: when its state was last observed, 0 = never (the map's default)."""

    name: str
    rooms: tuple[str, str]
    position: Point
    is_open: bool = True
    seen_s: float = 0.0


@dataclass(frozen=True, kw_only=True, slots=True)
class Zone:
    """A hazard area; robots keep out."""

    name: str
    outline: tuple[Point, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class WorldMap:
    """What does not move. `categories` are the object classes the detectors can name."""

    name: str
    rooms: tuple[Room, ...]
    locations: tuple[Location, ...]
    doors: tuple[Door, ...] = ()
    zones: tuple[Zone, ...] = ()
    categories: tuple[str, ...] = ()

    def location(self, name: str) -> Location | None:
        """The location of that name, None when there is none."""
        return next((place for place in self.locations if place.name == name), None)

    def room(self, name: str) -> Room | None:
        """The room of that name, None when there is none."""
        return next((room for room in self.rooms if room.name == name), None)


@dataclass(frozen=True, kw_only=True, slots=True)
class ObjectState:
    """A movable thing as last seen. `location`: furniture name, robot id when held, '' when unknown."""

    object_id: str
    category: str
    seen_s: float
    pose: Pose = Pose()
    location: str = ''
    room: str = ''
    confidence: float = 1.0
    properties: Mapping[str, Argument] = field(default_factory=lambda: NO_PROPERTIES)  # fill_level 0..1, contains


@dataclass(frozen=True, kw_only=True, slots=True)
class PersonState:
    """A person as last seen."""

    person_id: str
    seen_s: float
    position: Point


@dataclass(frozen=True, kw_only=True, slots=True)
class Observation:
    """What one robot saw at one instant. `gone` are ids that should be in view and are not."""

    robot: RobotState
    stamp_s: float
    objects: tuple[ObjectState, ...] = ()
    people: tuple[PersonState, ...] = ()
    doors: tuple[Door, ...] = ()
    gone: tuple[str, ...] = ()
    nearest_obstacle_m: float = float('inf')


@dataclass(frozen=True, kw_only=True, slots=True)
class WorldState:
    """A snapshot. `sequence` grows with every change; `stamp_s` is the newest observation's (0 = none yet)."""

    map: WorldMap
    stamp_s: float = 0.0
    sequence: int = 0
    robots: tuple[RobotState, ...] = ()
    objects: tuple[ObjectState, ...] = ()
    people: tuple[PersonState, ...] = ()
    doors: tuple[Door, ...] = ()  # current states; the map's are the defaults

    def robot(self, robot_id: str) -> RobotState | None:
        """That robot's last state, None when it was never seen."""
        return next((robot for robot in self.robots if robot.robot_id == robot_id), None)

    def find_objects(self, name: str) -> tuple[ObjectState, ...]:
        """The object with that id, else all of that category; empty when none is known."""
        by_id = tuple(thing for thing in self.objects if thing.object_id == name)
        return by_id or tuple(thing for thing in self.objects if thing.category == name)


@dataclass(frozen=True, kw_only=True, slots=True)
class Prediction:
    """The rehearsal of one step: can it be done, what will the world be, at what cost."""

    is_feasible: bool
    reason: str
    world: WorldState
    duration_s: float = 0.0
    distance_m: float = 0.0
    battery_used: float = 0.0
    path: tuple[Point, ...] = ()
