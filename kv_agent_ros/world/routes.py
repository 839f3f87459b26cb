"""The shortest way over rooms and doors: a graph whose nodes are the doorways, whose edges cross one room.

Inside a room the way is straight; walls inside rooms, furniture and keep-out zones are for the robot's own planner and
for the gate. A closed door is no way.
"""

from dataclasses import dataclass
import heapq

from kv_agent_ros.world.geometry import distance_m, opening, path_length_m, room_at
from kv_agent_ros.world.state import Point, WorldState


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
    """All doors in their current state, and where a hallway meets a room without a door between them."""
    doors = {door.name: door for door in (*world.map.doors, *world.doors)}
    result = [
        Passage(rooms=frozenset(door.rooms), point=door.position, door=door.name, is_open=door.is_open)
        for door in doors.values()
    ]
    with_door = {passage.rooms for passage in result}
    rooms = world.map.rooms
    for index, a in enumerate(rooms):
        for b in rooms[index + 1 :]:
            pair = frozenset((a.name, b.name))
            if pair in with_door or not (a.is_hallway or b.is_hallway):
                continue
            point = opening(a.outline, b.outline)
            if point is not None:
                result.append(Passage(rooms=pair, point=point))
    return tuple(result)


def find_route(world: WorldState, start: Point, start_room: str, goal: Point, goal_room: str) -> Route | NoRoute:
    """The shortest route; a room given as '' is looked up from its point."""
    start_room, goal_room = start_room or _room_name(world, start), goal_room or _room_name(world, goal)
    if not start_room or not goal_room:
        where = start if not start_room else goal
        return NoRoute(reason=f'({where[0]:.1f}, {where[1]:.1f}) m lies in no room of the map')
    every = passages(world)
    path = _shortest(tuple(p for p in every if p.is_open), start, start_room, goal, goal_room)
    if path:
        return Route(path=path)
    if not _shortest(every, start, start_room, goal, goal_room):
        return NoRoute(reason=f'no way from {start_room} to {goal_room}')
    closed = tuple(sorted(p.door for p in every if not p.is_open))
    return NoRoute(
        reason=f'no way from {start_room} to {goal_room}: closed {", ".join(closed)}; open it first',
        closed_doors=closed,
    )


def _room_name(world: WorldState, point: Point) -> str:
    room = room_at(world.map, point)
    return '' if room is None else room.name


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
