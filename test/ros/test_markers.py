"""What RViz is shown: markers that keep their names, can be seen, and describe the world as it is known."""

from dataclasses import replace

from hypothesis import given
import numpy as np
import pytest
from ros_values import WORLD
from visualization_msgs.msg import Marker

from kv_agent_ros.build.home import load_world
from kv_agent_ros.robot.base import Pose, RobotState
from kv_agent_ros.ros.markers import occupancy_grid, path_message, world_markers
from kv_agent_ros.world.state import ObjectState, WorldState

HOME = WorldState(
    map=load_world('home'),
    robots=(RobotState(robot_id='robot1', stamp_s=1.0),),
    objects=(ObjectState(object_id='cup1', category='cup', seen_s=1.0, properties={'fill_level': 0.5}),),
)


def names(world: WorldState) -> list[tuple[str, int]]:
    """(ns, id) of the markers that add something."""
    return [(marker.ns, marker.id) for marker in world_markers(world).markers if marker.action == Marker.ADD]


@given(WORLD)
def test_every_world_gives_markers_with_names_of_their_own_that_can_be_seen(world: WorldState) -> None:
    markers = world_markers(world).markers
    assert markers[0].action == Marker.DELETEALL
    assert len(set(names(world))) == len(markers) - 1
    assert all(marker.color.a > 0.0 for marker in markers[1:])
    assert all(marker.header.frame_id == 'map' for marker in markers)


def test_a_marker_keeps_its_name_when_the_world_moves() -> None:
    moved = replace(HOME, robots=(replace(HOME.robots[0], pose=Pose(x_m=3.0)),), sequence=9)
    assert names(HOME) == names(moved)


def test_a_cup_tells_how_full_it_is() -> None:
    texts = [marker.text for marker in world_markers(HOME).markers]
    assert 'cup1 50%' in texts


def test_a_property_in_words_is_shown_without_a_level() -> None:
    cup = replace(HOME.objects[0], properties={'fill_level': 'half'})
    texts = [marker.text for marker in world_markers(replace(HOME, objects=(cup,))).markers]
    assert 'cup1' in texts


def test_a_grid_is_laid_out_row_by_row_from_its_origin() -> None:
    grid = occupancy_grid((-1.0, 2.0), np.array([[0, 100, 0], [0, 0, 100]], np.int8), 0.5)
    assert (grid.info.width, grid.info.height, grid.info.resolution) == (3, 2, 0.5)
    assert (grid.info.origin.position.x, grid.info.origin.position.y) == (-1.0, 2.0)
    assert list(grid.data) == [0, 100, 0, 0, 0, 100]


def test_a_path_keeps_its_points_in_order() -> None:
    path = path_message([(0.0, 1.0), (2.0, 3.0)], 4.0)
    assert [(pose.pose.position.x, pose.pose.position.y) for pose in path.poses] == [(0.0, 1.0), (2.0, 3.0)]
    assert path.header.stamp.sec == 4
    assert all(pose.pose.orientation.w == pytest.approx(1.0) for pose in path.poses)
