import math
from pathlib import Path

import numpy as np
from pyrobosim.core.robot import Robot as SimRobot
from pyrobosim.core.yaml_utils import WorldYamlLoader
from pyrobosim.sensors.lidar import Lidar2D
from pyrobosim.utils.pose import Pose as SimPose
import pytest

from kv_agent_ros.robot.base import Pose
from kv_agent_ros.robot.lidar import NUM_RAYS, RANGE_M, cast, edges_of

HOME = Path(__file__).parents[2] / 'config' / 'worlds' / 'home.yaml'


@pytest.mark.parametrize(
    ('x', 'y', 'yaw'), [(9.8, 3.2, 0.0), (2.4, 2.2, 1.0), (4.25, 2.0, -2.0), (4.5, 5.6, 3.0), (7.9, 5.7, -0.5)]
)
def test_a_scan_is_the_one_that_pyrobosim_measures(x: float, y: float, yaw: float) -> None:
    world = WorldYamlLoader().from_file(HOME)
    reference = Lidar2D(
        update_rate_s=0.1,
        angle_units='degrees',
        min_angle=-180,
        max_angle=177,
        angular_resolution=2,
        max_range_m=RANGE_M,
    )
    sensors = {'lidar': reference}
    robot = SimRobot(name='reference', radius=0.2, start_sensor_threads=False, sensors=sensors)
    world.add_robot(robot, pose=SimPose(x=x, y=y, yaw=yaw))
    reference.update()

    scan = cast(Pose(x_m=x, y_m=y, yaw_rad=yaw), edges_of(world.total_external_polygon), ())

    expected = reference.get_measurement()
    assert expected.shape == scan.shape == (NUM_RAYS,)
    for ray in reference.lidar_lines:
        far = np.array(ray.coords[-1]) - (x, y)
        index = round((math.atan2(far[1], far[0]) - yaw + math.pi) / math.tau * NUM_RAYS) % NUM_RAYS
        assert scan[index] == pytest.approx(ray.length, abs=1e-3)


def test_a_disc_ahead_hides_the_wall_behind_it_and_one_behind_is_not_ahead() -> None:
    wall = np.array([[[5.0, -1.0], [5.0, 1.0]]])
    eye = Pose()
    assert cast(eye, wall, ())[NUM_RAYS // 2] == 5.0
    assert cast(eye, wall, [((3.0, 0.0), 0.25)])[NUM_RAYS // 2] == 2.75
    assert cast(eye, wall, [((-3.0, 0.0), 0.25)])[NUM_RAYS // 2] == 5.0
    assert cast(eye, wall, [((-3.0, 0.0), 0.25)])[0] == 2.75
    assert cast(eye, wall, ())[0] == RANGE_M
