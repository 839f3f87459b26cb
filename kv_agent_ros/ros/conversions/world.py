"""World values ↔ messages."""

from std_msgs.msg import Header

from kv_agent_ros.errors import BadRequestError
from kv_agent_ros.msg import (
    Detection,
)
from kv_agent_ros.msg import (
    Door as DoorMsg,
)
from kv_agent_ros.msg import (
    Location as LocationMsg,
)
from kv_agent_ros.msg import (
    ObjectState as ObjectMsg,
)
from kv_agent_ros.msg import (
    Observation as ObservationMsg,
)
from kv_agent_ros.msg import (
    PersonState as PersonMsg,
)
from kv_agent_ros.msg import (
    RobotState as RobotMsg,
)
from kv_agent_ros.msg import (
    Room as RoomMsg,
)
from kv_agent_ros.msg import (
    WorldMap as MapMsg,
)
from kv_agent_ros.msg import (
    WorldState as WorldMsg,
)
from kv_agent_ros.msg import (
    Zone as ZoneMsg,
)
from kv_agent_ros.robot.base import RobotState
from kv_agent_ros.ros.conversions.values import (
    arguments_from_msg,
    arguments_to_msg,
    point_from_msg,
    point_to_msg,
    polygon_from_msg,
    polygon_to_msg,
    pose_from_msg,
    pose_to_msg,
    time_from_msg,
    time_to_msg,
    velocity_from_msg,
    velocity_to_msg,
)
from kv_agent_ros.world.state import (
    Door,
    Location,
    LocationKind,
    ObjectState,
    Observation,
    PersonState,
    Room,
    WorldMap,
    WorldState,
    Zone,
)

MAP_FRAME = 'map'
KINDS = (LocationKind.SURFACE, LocationKind.SINK, LocationKind.DOCK)


def map_header(stamp_s: float) -> Header:
    """A header in the map frame."""
    return Header(stamp=time_to_msg(stamp_s), frame_id=MAP_FRAME)


def robot_to_msg(robot: RobotState) -> RobotMsg:
    """RobotState → message."""
    return RobotMsg(
        header=map_header(robot.stamp_s),
        robot_id=robot.robot_id,
        pose=pose_to_msg(robot.pose),
        velocity=velocity_to_msg(robot.velocity),
        battery=float(robot.battery),
        is_docked=robot.is_docked,
        holding=robot.holding,
        room=robot.room,
    )


def robot_from_msg(message: RobotMsg) -> RobotState:
    """Message → RobotState."""
    return RobotState(
        robot_id=message.robot_id,
        stamp_s=time_from_msg(message.header.stamp),
        pose=pose_from_msg(message.pose),
        velocity=velocity_from_msg(message.velocity),
        battery=float(message.battery),
        is_docked=message.is_docked,
        holding=message.holding,
        room=message.room,
    )


def object_to_msg(thing: ObjectState) -> ObjectMsg:
    """ObjectState → message."""
    return ObjectMsg(
        object_id=thing.object_id,
        category=thing.category,
        seen=time_to_msg(thing.seen_s),
        pose=pose_to_msg(thing.pose),
        location=thing.location,
        room=thing.room,
        confidence=float(thing.confidence),
        properties=arguments_to_msg(thing.properties),
    )


def object_from_msg(message: ObjectMsg) -> ObjectState:
    """Message → ObjectState."""
    return ObjectState(
        object_id=message.object_id,
        category=message.category,
        seen_s=time_from_msg(message.seen),
        pose=pose_from_msg(message.pose),
        location=message.location,
        room=message.room,
        confidence=float(message.confidence),
        properties=arguments_from_msg(message.properties),
    )


def object_to_detection(thing: ObjectState) -> Detection:
    """What a detector reports of an object."""
    return Detection(
        object_id=thing.object_id,
        label=thing.category,
        pose=pose_to_msg(thing.pose),
        location=thing.location,
        room=thing.room,
        confidence=float(thing.confidence),
        properties=arguments_to_msg(thing.properties),
    )


def object_from_detection(message: Detection, stamp_s: float) -> ObjectState:
    """A detection as an object seen at `stamp_s`; nothing is trusted yet."""
    return ObjectState(
        object_id=message.object_id,
        category=message.label,
        seen_s=stamp_s,
        pose=pose_from_msg(message.pose),
        location=message.location,
        room=message.room,
        confidence=float(message.confidence),
        properties=arguments_from_msg(message.properties),
    )


def person_to_msg(person: PersonState) -> PersonMsg:
    """PersonState → message."""
    seen, position = time_to_msg(person.seen_s), point_to_msg(person.position)
    return PersonMsg(person_id=person.person_id, seen=seen, position=position)


def person_from_msg(message: PersonMsg) -> PersonState:
    """Message → PersonState."""
    seen_s, position = time_from_msg(message.seen), point_from_msg(message.position)
    return PersonState(person_id=message.person_id, seen_s=seen_s, position=position)


def door_to_msg(door: Door) -> DoorMsg:
    """Door → message."""
    position, seen = point_to_msg(door.position), time_to_msg(door.seen_s)
    return DoorMsg(name=door.name, rooms=list(door.rooms), position=position, is_open=door.is_open, seen=seen)


def door_from_msg(message: DoorMsg) -> Door:
    """Message → Door."""
    first, second = message.rooms
    return Door(
        name=message.name,
        rooms=(first, second),
        position=point_from_msg(message.position),
        is_open=message.is_open,
        seen_s=time_from_msg(message.seen),
    )


def location_to_msg(place: Location) -> LocationMsg:
    """Location → message."""
    return LocationMsg(
        name=place.name,
        category=place.category,
        room=place.room,
        kind=KINDS.index(place.kind),
        pose=pose_to_msg(place.pose),
        approach=pose_to_msg(place.approach),
    )


def location_from_msg(message: LocationMsg) -> Location:
    """Message → Location. Raises BadRequestError for an unknown kind."""
    if message.kind >= len(KINDS):
        raise BadRequestError(f'{message.name}: kind: expected 0 to {len(KINDS) - 1}, got {message.kind}')
    return Location(
        name=message.name,
        category=message.category,
        room=message.room,
        kind=KINDS[message.kind],
        pose=pose_from_msg(message.pose),
        approach=pose_from_msg(message.approach),
    )


def map_to_msg(world_map: WorldMap) -> MapMsg:
    """WorldMap → message."""
    return MapMsg(
        name=world_map.name,
        rooms=[
            RoomMsg(name=room.name, outline=polygon_to_msg(room.outline), is_hallway=room.is_hallway)
            for room in world_map.rooms
        ],
        locations=[location_to_msg(place) for place in world_map.locations],
        doors=[door_to_msg(door) for door in world_map.doors],
        zones=[ZoneMsg(name=zone.name, outline=polygon_to_msg(zone.outline)) for zone in world_map.zones],
        categories=list(world_map.categories),
    )


def map_from_msg(message: MapMsg) -> WorldMap:
    """Message → WorldMap."""
    return WorldMap(
        name=message.name,
        rooms=tuple(
            Room(name=room.name, outline=polygon_from_msg(room.outline), is_hallway=room.is_hallway)
            for room in message.rooms
        ),
        locations=tuple(location_from_msg(place) for place in message.locations),
        doors=tuple(door_from_msg(door) for door in message.doors),
        zones=tuple(Zone(name=zone.name, outline=polygon_from_msg(zone.outline)) for zone in message.zones),
        categories=tuple(message.categories),
    )


def world_to_msg(world: WorldState) -> WorldMsg:
    """WorldState → message."""
    return WorldMsg(
        header=map_header(world.stamp_s),
        sequence=world.sequence,
        map=map_to_msg(world.map),
        robots=[robot_to_msg(robot) for robot in world.robots],
        objects=[object_to_msg(thing) for thing in world.objects],
        people=[person_to_msg(person) for person in world.people],
        doors=[door_to_msg(door) for door in world.doors],
    )


def world_from_msg(message: WorldMsg) -> WorldState:
    """Message → WorldState."""
    return WorldState(
        map=map_from_msg(message.map),
        stamp_s=time_from_msg(message.header.stamp),
        sequence=message.sequence,
        robots=tuple(robot_from_msg(robot) for robot in message.robots),
        objects=tuple(object_from_msg(thing) for thing in message.objects),
        people=tuple(person_from_msg(person) for person in message.people),
        doors=tuple(door_from_msg(door) for door in message.doors),
    )


def observation_to_msg(observation: Observation) -> ObservationMsg:
    """Observation → message."""
    return ObservationMsg(
        header=map_header(observation.stamp_s),
        robot=robot_to_msg(observation.robot),
        objects=[object_to_msg(thing) for thing in observation.objects],
        people=[person_to_msg(person) for person in observation.people],
        doors=[door_to_msg(door) for door in observation.doors],
        gone=list(observation.gone),
        nearest_obstacle_m=float(observation.nearest_obstacle_m),
    )


def observation_from_msg(message: ObservationMsg) -> Observation:
    """Message → Observation."""
    return Observation(
        robot=robot_from_msg(message.robot),
        stamp_s=time_from_msg(message.header.stamp),
        objects=tuple(object_from_msg(thing) for thing in message.objects),
        people=tuple(person_from_msg(person) for person in message.people),
        doors=tuple(door_from_msg(door) for door in message.doors),
        gone=tuple(message.gone),
        nearest_obstacle_m=float(message.nearest_obstacle_m),
    )
