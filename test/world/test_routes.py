"""Routes over rooms, doors and hallways."""

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st
import pytest

from kv_agent_ros.world.fake import example_map
from kv_agent_ros.world.geometry import centroid, contains, distance_m, opening
from kv_agent_ros.world.routes import NoRoute, Route, find_route, passages
from kv_agent_ros.world.state import Door, Room, WorldMap, WorldState


def box(name: str, x: float, y: float, width: float, height: float, hallway: str = '') -> Room:
    """A rectangular room; `hallway` names it as one."""
    corners = ((x, y), (x + width, y), (x + width, y + height), (x, y + height))
    return Room(name=name, outline=corners, is_hallway=bool(hallway))


def test_inside_a_room_the_way_is_straight() -> None:
    route = find_route(WorldState(map=example_map()), (1.0, 1.0), 'kitchen', (3.0, 1.0), 'kitchen')
    assert route == Route(path=((1.0, 1.0), (3.0, 1.0)))
    assert isinstance(route, Route) and route.length_m == 2.0


def test_rooms_that_share_a_wall_without_a_door_are_not_joined() -> None:
    home = replace(example_map(), doors=())
    found = find_route(WorldState(map=home), (1.0, 1.0), 'kitchen', (6.0, 1.0), 'living_room')
    assert found == NoRoute(reason='no way from kitchen to living_room')


def test_a_hallway_without_doors_joins_what_it_touches() -> None:
    rooms = (box('a', 0, 0, 2, 2), box('b', 4, 0, 2, 2), box('hall', 2, 0.5, 2, 1, 'hall'))
    world = WorldState(map=WorldMap(name='m', rooms=rooms, locations=()))
    route = find_route(world, (1.0, 1.0), '', (5.0, 1.0), '')
    assert route == Route(path=((1.0, 1.0), (2.0, 1.0), (4.0, 1.0), (5.0, 1.0)))


def test_the_shorter_of_two_doors_is_taken_and_the_other_when_it_is_closed() -> None:
    rooms = (box('a', 0, 0, 4, 4), box('b', 4, 0, 4, 4))
    near = Door(name='near', rooms=('a', 'b'), position=(4.0, 1.0))
    far = Door(name='far', rooms=('a', 'b'), position=(4.0, 3.5))
    world = WorldState(map=WorldMap(name='m', rooms=rooms, locations=(), doors=(near, far)), doors=(near, far))
    route = find_route(world, (1.0, 1.0), 'a', (7.0, 1.0), 'b')
    assert route == Route(path=((1.0, 1.0), (4.0, 1.0), (7.0, 1.0)))
    detour = find_route(replace(world, doors=(replace(near, is_open=False), far)), (1.0, 1.0), 'a', (7.0, 1.0), 'b')
    assert isinstance(detour, Route) and (4.0, 3.5) in detour.path


def test_a_point_outside_every_room_has_no_route() -> None:
    found = find_route(WorldState(map=example_map()), (50.0, 1.0), '', (1.0, 1.0), '')
    assert isinstance(found, NoRoute) and 'no room' in found.reason


def test_a_door_replaces_the_opening_of_the_same_pair() -> None:
    rooms = (box('a', 0, 0, 2, 2), box('hall', 2, 0, 2, 2, 'hall'))
    door = Door(name='d', rooms=('hall', 'a'), position=(2.0, 0.5), is_open=False)
    world = WorldState(map=WorldMap(name='m', rooms=rooms, locations=(), doors=(door,)))
    assert [passage.door for passage in passages(world)] == ['d']


def test_only_the_closed_doors_on_the_way_are_named() -> None:
    rooms = (box('a', 0, 0, 4, 4), box('b', 4, 0, 4, 4), box('c', 0, 4, 4, 4))
    on_way = Door(name='on_way', rooms=('a', 'b'), position=(4.0, 1.0), is_open=False)
    other = Door(name='other', rooms=('a', 'c'), position=(2.0, 4.0), is_open=False)
    world = WorldState(map=WorldMap(name='m', rooms=rooms, locations=(), doors=(on_way, other)))
    found = find_route(world, (1.0, 1.0), 'a', (7.0, 1.0), 'b')
    assert isinstance(found, NoRoute) and found.closed_doors == ('on_way',)


def divided_hallway(is_open: bool) -> WorldState:
    """Two rooms joined by a hallway with a door in its middle."""
    rooms = (box('a', 0, 0, 2, 2), box('b', 4, 0, 2, 2), box('hall', 2, 0.5, 2, 1, 'hall'))
    door = Door(name='d', rooms=('a', 'b'), position=(3.0, 1.0), is_open=is_open)
    return WorldState(map=WorldMap(name='m', rooms=rooms, locations=(), doors=(door,)))


def test_a_closed_door_in_a_hallway_cannot_be_passed_by_the_hallway() -> None:
    way = find_route(divided_hallway(True), (1.0, 1.0), 'a', (5.0, 1.0), 'b')
    assert way == Route(path=((1.0, 1.0), (3.0, 1.0), (5.0, 1.0)))
    assert isinstance(find_route(divided_hallway(False), (1.0, 1.0), 'a', (5.0, 1.0), 'b'), NoRoute)


def test_before_a_closed_door_in_a_hallway_the_way_back_is_free() -> None:
    shut = divided_hallway(False)
    assert find_route(shut, (2.5, 1.0), 'hall', (1.0, 1.0), 'a') == Route(path=((2.5, 1.0), (1.0, 1.0)))
    assert isinstance(find_route(shut, (2.5, 1.0), 'hall', (5.0, 1.0), 'b'), NoRoute)


POINTS = st.tuples(st.floats(0.01, 3.99), st.floats(0.01, 3.99))


@given(POINTS, POINTS)
def test_a_route_is_never_shorter_than_the_straight_line(start: tuple[float, float], goal: tuple[float, float]) -> None:
    beyond = (goal[0] + 4.5, goal[1])
    route = find_route(WorldState(map=example_map()), start, 'kitchen', beyond, 'living_room')
    assert isinstance(route, Route)
    assert route.length_m >= distance_m(start, beyond) - 1e-9
    assert (route.path[0], route.path[-1]) == (start, beyond)


def test_plane_geometry() -> None:
    square = ((0.0, 0.0), (2.0, 0.0), (2.0, 2.0), (0.0, 2.0))
    assert contains(square, (1.0, 1.0)) and not contains(square, (3.0, 1.0))
    assert centroid(square) == pytest.approx((1.0, 1.0))
    apart = tuple((x + 5.0, y) for x, y in square)
    assert opening(square, apart) is None
    crossing = ((1.5, 0.5), (3.0, 0.5), (3.0, 1.5), (1.5, 1.5))
    middle = opening(square, crossing)
    assert middle is not None and contains(square, middle) and contains(crossing, middle)
