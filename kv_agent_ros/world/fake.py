"""A small home for tests and examples: two rooms, a door, a dock, a counter, a sink, a table, a cup and a bowl.

Public so that every package tests against the same picture. Nothing here moves or thinks: see robot/fake.py for that.
"""

from dataclasses import replace

from kv_agent_ros.robot.base import Pose, RobotState
from kv_agent_ros.world.state import (
    Door,
    Location,
    LocationKind,
    ObjectState,
    Room,
    WorldMap,
    WorldState,
    Zone,
)


def example_map() -> WorldMap:
    """Kitchen (0..4, 0..4) with counter and sink; living room (4..9, 0..4) with table and dock; a door at (4, 2)."""
    return WorldMap(
        name='example_home',
        rooms=(
            Room(name='kitchen', outline=((0.0, 0.0), (4.0, 0.0), (4.0, 4.0), (0.0, 4.0))),
            Room(name='living_room', outline=((4.0, 0.0), (9.0, 0.0), (9.0, 4.0), (4.0, 4.0))),
        ),
        locations=(
            _location('kitchen_counter', 'counter', 'kitchen', LocationKind.SURFACE, (1.0, 3.7), (1.0, 3.0)),
            _location('sink', 'sink', 'kitchen', LocationKind.SINK, (3.0, 3.7), (3.0, 3.0)),
            _location('table', 'table', 'living_room', LocationKind.SURFACE, (6.0, 1.0), (6.0, 1.7)),
            _location('dock', 'charger', 'living_room', LocationKind.DOCK, (8.7, 2.0), (8.0, 2.0)),
        ),
        doors=(Door(name='kitchen_door', rooms=('kitchen', 'living_room'), position=(4.0, 2.0)),),
        zones=(Zone(name='stairs', outline=((8.0, 3.2), (9.0, 3.2), (9.0, 4.0), (8.0, 4.0))),),
        categories=('cup', 'bowl'),
    )


def _location(
    name: str, category: str, room: str, kind: LocationKind, at: tuple[float, float], stand: tuple[float, float]
) -> Location:
    return Location(
        name=name,
        category=category,
        room=room,
        kind=kind,
        pose=Pose(x_m=at[0], y_m=at[1]),
        approach=Pose(x_m=stand[0], y_m=stand[1]),
    )


def example_robot(robot_id: str, stamp_s: float) -> RobotState:
    """A robot with a full battery on the dock of the example map."""
    return RobotState(
        robot_id=robot_id, stamp_s=stamp_s, pose=Pose(x_m=8.0, y_m=2.0), is_docked=True, room='living_room'
    )


def example_cup(object_id: str, fill_level: float, seen_s: float) -> ObjectState:
    """A cup on the kitchen counter, looked at closely."""
    return ObjectState(
        object_id=object_id,
        category='cup',
        seen_s=seen_s,
        pose=Pose(x_m=1.0, y_m=3.7),
        location='kitchen_counter',
        room='kitchen',
        properties={'fill_level': fill_level, 'contains': 'water'},
    )


def example_world(robot_id: str, stamp_s: float) -> WorldState:
    """The example map with one docked robot and nothing seen yet."""
    home = example_map()
    robot = example_robot(robot_id, stamp_s)
    return WorldState(map=home, stamp_s=stamp_s, sequence=1, robots=(robot,), doors=home.doors)


def with_objects(world: WorldState, *objects: ObjectState) -> WorldState:
    """The same world in which exactly these objects are known."""
    return replace(world, objects=objects, sequence=world.sequence + 1)
