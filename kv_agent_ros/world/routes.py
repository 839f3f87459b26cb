"""The shortest way over rooms and doors: a graph whose nodes are the doorways, whose edges cross one room.

Inside a room the way is straight; walls inside rooms, furniture and keep-out zones are for the robot's own planner and
for the gate. A closed door is no way.
"""

from dataclasses import dataclass
import heapq

from kv_agent_ros.world.geometry import contains, distance_m, distance_to_outline_m, opening, path_length_m, room_at
from kv_agent_ros.world.state import Door, Point, Room, WorldMap, WorldState


@dataclass(frozen=True, kw_only=True, slots=True)
class Route:
    """Waypoints from start to goal inclusive."""

    path: tuple[Point, ...]

    @property
    def length_m(self) -> float:
        return path_length_m(self.path)


@dataclass(frozen=True, kw_only=True, slots=True)
class NoRoute:
    """There is no way; `closed_doors` are the doors that would make one if they were open."""

    reason: str
    closed_doors: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class Passage:
    """A way between two rooms through one point; `door` '' = an opening without a door."""

    rooms: frozenset[str]
    point: Point
    door: str = ''
    is_open: bool = True


def passages(world: WorldState) -> tuple[Passage, ...]:
    """All doors in their current state, and where a hallway without a door in it meets a room."""
    doors = _doors(world)
    result = [
        Passage(rooms=frozenset(door.rooms), point=door.position, door=door.name, is_open=door.is_open)
        for door in doors
    ]
    taken = {passage.rooms for passage in result}
    for hallway in (room for room in world.map.rooms if room.is_hallway and not _doors_inside(room, doors)):
        for room in world.map.rooms:
            pair = frozenset((hallway.name, room.name))
            point = opening(hallway.outline, room.outline) if len(pair) == 2 and pair not in taken else None
            if point is not None:
                taken.add(pair)
                result.append(Passage(rooms=pair, point=point))
    return tuple(result)


def is_doorway(home: WorldMap, room: Room) -> bool:
    """Whether the room is a hallway that a door divides, which makes it a thick doorway and no place to go to."""
    return room.is_hallway and bool(_doors_inside(room, home.doors))


def find_route(world: WorldState, start: Point, start_room: str, goal: Point, goal_room: str) -> Route | NoRoute:
    """The shortest route; a room given as '' is looked up from its point."""
    start_room, goal_room = _side(world, start, start_room), _side(world, goal, goal_room)
    if not start_room or not goal_room:
        where = start if not start_room else goal
        return NoRoute(reason=f'({where[0]:.1f}, {where[1]:.1f}) m lies in no room of the map')
    every = passages(world)
    path = _shortest(tuple(p for p in every if p.is_open), start, start_room, goal, goal_room)
    if path:
        return Route(path=path)
    wished = _shortest(every, start, start_room, goal, goal_room)
    if not wished:
        return NoRoute(reason=f'no way from {start_room} to {goal_room}')
    closed = tuple(p.door for p in every if not p.is_open and p.point in wished)
    return NoRoute(
        reason=f'no way from {start_room} to {goal_room}: closed {", ".join(closed)}; open it first',
        closed_doors=closed,
    )


def _doors(world: WorldState) -> tuple[Door, ...]:
    return tuple({door.name: door for door in (*world.map.doors, *world.doors)}.values())


def _doors_inside(hallway: Room, doors: tuple[Door, ...]) -> tuple[Door, ...]:
    return tuple(door for door in doors if contains(hallway.outline, door.position))


def _side(world: WorldState, point: Point, name: str) -> str:
    """The room of a point; in a hallway that a door divides, the room on the point's side of the door."""
    room = world.map.room(name) or room_at(world.map, point)
    if room is None:
        return ''
    for door in _doors_inside(room, _doors(world)) if room.is_hallway else ():
        ends = [end for end in world.map.rooms if end.name in door.rooms]
        if ends:
            return min(ends, key=lambda end: distance_to_outline_m(end.outline, point)).name
    return room.name


def _shortest(
    ways: tuple[Passage, ...], start: Point, start_room: str, goal: Point, goal_room: str
) -> tuple[Point, ...]:
    """Dijkstra over (room entered, point of entry); () when the goal's room cannot be reached."""
    queue: list[tuple[float, tuple[Point, ...], str]] = [(0.0, (start,), start_room)]
    done: set[tuple[str, Point]] = set()
    while queue:
        length, path, room = heapq.heappop(queue)
        at = path[-1]
        if room == 'goal':
            return path
        if (room, at) in done:
            continue
        done.add((room, at))
        if room == goal_room:
            heapq.heappush(queue, (length + distance_m(at, goal), (*path, goal), 'goal'))
        for way in ways:
            if room in way.rooms:
                for beyond in sorted(way.rooms - {room}):
                    heapq.heappush(queue, (length + distance_m(at, way.point), (*path, way.point), beyond))
    return ()
