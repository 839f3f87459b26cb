"""The nodes of one robot, in its namespace: agent, harness (the only holder of the robot) and perception.

They belong on the robot: with the network down the harness still stops it. The nodes they share with other robots are
in fleet.launch.py.
"""

from pathlib import Path

from ament_index_python.packages import get_package_share_directory
from launch import LaunchContext, LaunchDescription
from launch.actions import DeclareLaunchArgument, OpaqueFunction
from launch.substitutions import LaunchConfiguration
from launch_ros.actions import Node

PACKAGE = 'kv_agent_ros'

# Each node with the arguments that it takes as parameters. An empty argument is not passed: the files decide.
NODES = {
    'perception_node': ('robot_id', 'world'),
    'harness_node': ('robot_id', 'shared_namespace'),
    'agent_node': ('robot_id', 'shared_namespace'),
}

# A harness that died stays down, and its robot stays still, until a person looks; the others come back.
RESPAWNED = {'perception_node', 'agent_node'}


def generate_launch_description() -> LaunchDescription:
    return LaunchDescription(
        [
            DeclareLaunchArgument('robot_id', default_value='robot1', description='Name and namespace of the robot.'),
            DeclareLaunchArgument('shared_namespace', default_value='/', description='Namespace of the shared nodes.'),
            DeclareLaunchArgument(
                'world', default_value='', description='"home" or the path of a world file. Empty: as in params_file.'
            ),
            DeclareLaunchArgument(
                'params_file', default_value='', description='YAML file whose parameters win over config/<node>.yaml.'
            ),
            DeclareLaunchArgument(
                'use_sim_time', default_value='false', choices=['true', 'false'], description='Take time from /clock.'
            ),
            DeclareLaunchArgument(
                'log_level',
                default_value='info',
                choices=['debug', 'info', 'warn', 'error', 'fatal'],
                description='What the nodes log.',
            ),
            OpaqueFunction(function=_nodes),
        ]
    )


def _nodes(context: LaunchContext) -> list[Node]:
    robot_id = LaunchConfiguration('robot_id').perform(context)
    return [
        Node(
            package=PACKAGE,
            executable=name,
            name=name,
            namespace=robot_id,
            output='screen',
            emulate_tty=True,
            respawn=name in RESPAWNED,
            respawn_delay=2.0,
            parameters=_parameters(context, name),
            ros_arguments=['--log-level', LaunchConfiguration('log_level').perform(context)],
        )
        for name in NODES
    ]


def _parameters(context: LaunchContext, name: str) -> list[str | dict[str, str | bool]]:
    """config/<node>.yaml, then params_file, then the arguments."""
    files = [Path(get_package_share_directory(PACKAGE)) / 'config' / f'{name}.yaml']
    params_file = LaunchConfiguration('params_file').perform(context)
    if params_file:
        files.append(Path(params_file).expanduser())
        if not files[-1].is_file():
            raise RuntimeError(f'params_file: no such file: {files[-1]}')
    values: dict[str, str | bool] = {key: LaunchConfiguration(key).perform(context) for key in NODES[name]}
    values = {key: value for key, value in values.items() if value}
    values['use_sim_time'] = LaunchConfiguration('use_sim_time').perform(context) == 'true'
    return [*(str(path) for path in files if path.is_file()), values]
