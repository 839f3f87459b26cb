"""WorldModel: merging of observations, waiting for newer ones, many threads."""

from dataclasses import replace
import math
import threading

from hypothesis import given
from hypothesis import strategies as st
import pytest

from kv_agent_ros.deadline import Deadline
from kv_agent_ros.errors import BadRequestError, CanceledError, DeadlineError
from kv_agent_ros.robot.base import Pose, RobotState
from kv_agent_ros.world.fake import example_cup, example_map, example_robot
from kv_agent_ros.world.model import WorldModel
from kv_agent_ros.world.properties import property_seen_s
from kv_agent_ros.world.state import Door, ObjectState, Observation, PersonState


def seen(
    stamp_s: float, *objects: ObjectState, robot: RobotState | None = None, gone: tuple[str, ...] = ()
) -> Observation:
    """What robot1 sees at that instant."""
    return Observation(
        robot=replace(robot or example_robot('robot1', stamp_s), stamp_s=stamp_s),
        stamp_s=stamp_s,
        objects=objects,
        gone=gone,
    )


def test_before_the_first_observation_only_the_map_is_known() -> None:
    world = WorldModel(example_map()).snapshot()
    assert world.stamp_s == 0.0
    assert world.robots == ()
    assert [door.name for door in world.doors] == ['kitchen_door']


def test_an_observation_adds_the_robot_and_what_it_saw() -> None:
    model = WorldModel(example_map())
    world = model.apply(seen(1.0, example_cup('cup_1', 0.9, 1.0)))
    assert world == model.snapshot()
    assert world.stamp_s == 1.0
    assert world.sequence == 1
    assert [robot.robot_id for robot in world.robots] == ['robot1']
    assert world.objects[0].properties['fill_level'] == 0.9


def test_an_older_observation_changes_nothing() -> None:
    model = WorldModel(example_map())
    latest = model.apply(seen(2.0, example_cup('cup_1', 0.9, 2.0)))
    moved = replace(example_robot('robot1', 1.0), pose=Pose(x_m=1.0, y_m=1.0))
    assert model.apply(seen(1.0, example_cup('cup_1', 0.1, 1.0), robot=moved)) == latest


def test_what_a_robot_holds_moves_with_it() -> None:
    model = WorldModel(example_map())
    model.apply(seen(1.0, example_cup('cup_1', 0.9, 1.0)))
    holder = replace(example_robot('robot1', 2.0), holding='cup_1', pose=Pose(x_m=3.0, y_m=3.0), room='kitchen')
    cup = model.apply(seen(2.0, robot=holder)).objects[0]
    assert (cup.location, cup.room, cup.pose, cup.seen_s) == ('robot1', 'kitchen', Pose(x_m=3.0, y_m=3.0), 2.0)


def test_a_dropped_object_has_no_known_location_until_it_is_seen() -> None:
    model = WorldModel(example_map())
    model.apply(seen(1.0, example_cup('cup_1', 0.9, 1.0), robot=replace(example_robot('robot1', 1.0), holding='cup_1')))
    assert model.apply(seen(2.0)).objects[0].location == ''
    assert model.apply(seen(3.0, example_cup('cup_1', 0.9, 3.0))).objects[0].location == 'kitchen_counter'


def test_a_glance_keeps_the_fill_level_and_its_age() -> None:
    model = WorldModel(example_map())
    model.apply(seen(1.0, example_cup('cup_1', 0.9, 1.0)))
    glance = replace(example_cup('cup_1', 0.0, 5.0), properties={})
    cup = model.apply(seen(5.0, glance)).objects[0]
    assert cup.seen_s == 5.0
    assert cup.properties['fill_level'] == 0.9
    assert property_seen_s(cup, 'fill_level') == 1.0


def test_carrying_does_not_refresh_the_fill_level() -> None:
    model = WorldModel(example_map())
    model.apply(seen(1.0, example_cup('cup_1', 0.9, 1.0)))
    cup = model.apply(seen(9.0, robot=replace(example_robot('robot1', 9.0), holding='cup_1'))).objects[0]
    assert (cup.seen_s, property_seen_s(cup, 'fill_level')) == (9.0, 1.0)


def test_a_held_object_can_be_measured() -> None:
    model = WorldModel(example_map())
    model.apply(seen(1.0, example_cup('cup_1', 0.9, 1.0)))
    holder = replace(example_robot('robot1', 2.0), holding='cup_1')
    cup = model.apply(seen(2.0, example_cup('cup_1', 0.45, 2.0), robot=holder)).objects[0]
    assert (cup.location, cup.properties['fill_level'], property_seen_s(cup, 'fill_level')) == ('robot1', 0.45, 2.0)


def test_what_is_gone_is_forgotten_and_an_older_sighting_does_not_bring_it_back() -> None:
    model = WorldModel(example_map())
    model.apply(seen(1.0, example_cup('cup_1', 0.9, 1.0)))
    assert model.apply(seen(3.0, gone=('cup_1',))).objects == ()
    late = Observation(robot=example_robot('robot2', 2.0), stamp_s=2.0, objects=(example_cup('cup_1', 0.9, 2.0),))
    assert model.apply(late).objects == ()
    assert len(model.apply(seen(4.0, example_cup('cup_1', 0.9, 4.0))).objects) == 1


def test_gone_is_ignored_for_what_was_seen_later_or_is_held() -> None:
    model = WorldModel(example_map())
    model.apply(seen(5.0, example_cup('cup_1', 0.9, 5.0)))
    stale = Observation(robot=example_robot('robot2', 4.0), stamp_s=4.0, gone=('cup_1',))
    assert len(model.apply(stale).objects) == 1
    holder = replace(example_robot('robot1', 6.0), holding='cup_1')
    assert len(model.apply(seen(6.0, robot=holder, gone=('cup_1',))).objects) == 1


def test_doors_and_people_follow_the_latest_sighting() -> None:
    model = WorldModel(example_map())
    shut = Door(name='kitchen_door', rooms=('x', 'y'), position=(0.0, 0.0), is_open=False)
    someone = PersonState(person_id='person_1', seen_s=2.0, position=(1.0, 1.0))
    model.apply(replace(seen(2.0), doors=(shut, replace(shut, name='no_such_door')), people=(someone,)))
    late = replace(shut, is_open=True), replace(someone, seen_s=1.0, position=(5.0, 1.0))
    world = model.apply(replace(seen(1.0), doors=(late[0],), people=(late[1],)))
    assert world.doors == (replace(example_map().doors[0], is_open=False, seen_s=2.0),)
    assert world.people[0].position == (1.0, 1.0)


def test_a_flood_of_ids_is_bounded_and_keeps_what_is_held() -> None:
    model = WorldModel(example_map())
    holder = replace(example_robot('robot1', 1.0), holding='cup_1')
    model.apply(seen(1.0, example_cup('cup_1', 0.9, 1.0), robot=holder))
    flood = tuple(example_cup(f'x_{index}', 0.0, 2.0) for index in range(2000))
    world = model.apply(seen(2.0, *flood, robot=holder))
    assert len(world.objects) == 500
    assert world.find_objects('cup_1')[0].object_id == 'cup_1'


@pytest.mark.parametrize('stamp_s', [math.nan, math.inf])
def test_a_stamp_that_is_no_time_is_refused(stamp_s: float) -> None:
    with pytest.raises(BadRequestError, match='finite'):
        WorldModel(example_map()).apply(seen(stamp_s))


def test_wait_newer_returns_the_state_that_another_thread_applies() -> None:
    model = WorldModel(example_map())
    model.apply(seen(1.0))
    applier = threading.Thread(target=model.apply, args=(seen(2.0),))
    applier.start()
    world = model.wait_newer('robot1', 1.0, Deadline(10.0))
    applier.join(10.0)
    assert world.stamp_s == 2.0


def test_wait_newer_ends_at_its_deadline_and_when_canceled() -> None:
    model = WorldModel(example_map())
    model.apply(seen(1.0))
    with pytest.raises(DeadlineError):
        model.wait_newer('robot1', 1.0, Deadline(0.05))
    canceled = Deadline(10.0)
    canceled.cancel()
    with pytest.raises(CanceledError):
        model.wait_newer('robot1', 1.0, canceled)


def test_wait_newer_needs_an_observation_of_that_robot() -> None:
    model = WorldModel(example_map())
    model.apply(seen(9.0))
    with pytest.raises(DeadlineError):
        model.wait_newer('robot2', 1.0, Deadline(0.05))


def test_eight_writers_lose_no_observation() -> None:
    model = WorldModel(example_map())

    def write(robot_id: str) -> None:
        for stamp in range(1, 51):
            model.apply(Observation(robot=example_robot(robot_id, float(stamp)), stamp_s=float(stamp)))

    writers = [threading.Thread(target=write, args=(f'robot{index}',)) for index in range(8)]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join(20.0)
    world = model.snapshot()
    assert [robot.stamp_s for robot in world.robots] == [50.0] * 8
    assert world.sequence == 400


@given(st.permutations([1.0, 2.0, 3.0, 4.0, 5.0]))
def test_the_order_of_arrival_does_not_matter(order: list[float]) -> None:
    model = WorldModel(example_map())
    for stamp_s in order:
        model.apply(seen(stamp_s, example_cup('cup_1', stamp_s / 10.0, stamp_s)))
    world = model.snapshot()
    assert (world.stamp_s, world.robots[0].stamp_s, world.objects[0].seen_s) == (5.0, 5.0, 5.0)
    assert world.objects[0].properties['fill_level'] == 0.5


@given(st.lists(st.tuples(st.integers(0, 9), st.booleans()), max_size=12))
def test_sequence_and_stamps_never_go_back(events: list[tuple[int, bool]]) -> None:
    model = WorldModel(example_map())
    before = model.snapshot()
    for stamp, is_gone in events:
        things = () if is_gone else (example_cup('cup_1', 0.5, float(stamp)),)
        after = model.apply(seen(float(stamp), *things, gone=('cup_1',) if is_gone else ()))
        assert after.sequence >= before.sequence
        assert after.stamp_s >= before.stamp_s
        assert (after == before) == (after.sequence == before.sequence)
        before = after
