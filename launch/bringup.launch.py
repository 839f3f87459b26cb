"""Everything on one machine: what fleet.launch.py starts, and RViz with rviz:=true. Start here.

ros2 launch kv_agent_ros bringup.launch.py robots:=robot1,robot2 engine:=local
"""

from pathlib import Path

from ament_index_python.packages import get_package_share_directory
from launch import LaunchDescription
from launch.actions import DeclareLaunchArgument, IncludeLaunchDescription
from launch.conditions import IfCondition
from launch.launch_description_sources import PythonLaunchDescriptionSource
from launch.substitutions import LaunchConfiguration
from launch_ros.actions import Node

PACKAGE = 'kv_agent_ros'


def generate_launch_description() -> LaunchDescription:
    config = Path(get_package_share_directory(PACKAGE)) / 'config' / 'kv_agent.rviz'
    fleet = Path(__file__).with_name('fleet.launch.py')
    return LaunchDescription(
        [
            DeclareLaunchArgument(
                'rviz', default_value='false', choices=['true', 'false'], description='Start RViz with our displays.'
            ),
            IncludeLaunchDescription(PythonLaunchDescriptionSource(str(fleet))),
            Node(
                package='rviz2',
                executable='rviz2',
                arguments=['-d', str(config)],
                condition=IfCondition(LaunchConfiguration('rviz')),
            ),
        ]
    )
