"""The shared nodes, once, and the nodes of every robot in `robots`; with composed:=true all in one process.

The shared nodes may run beside the robots or on another machine. use_sim:=false leaves out the simulator: then each
robot brings its own drivers in its namespace.
"""

from pathlib import Path
import re

from ament_index_python.packages import get_package_share_directory
from launch import LaunchContext, LaunchDescription
from launch.actions import DeclareLaunchArgument, IncludeLaunchDescription, OpaqueFunction
from launch.launch_description_entity import LaunchDescriptionEntity
from launch.launch_description_sources import PythonLaunchDescriptionSource
from launch.substitutions import LaunchConfiguration
from launch_ros.actions import Node

PACKAGE = 'kv_agent_ros'
ENGINES = ('local', 'openai', 'sglang', 'vllm', 'ktransformers', 'edge_cloud', 'none')
ROBOT_NAME = re.compile(r'[a-z][a-z0-9_]*')

# Each node with the arguments that it takes as parameters. An empty argument is not passed: the files decide.
NODES = {
    'simulator_node': ('robots', 'world'),
    'kv_cache_node': ('engine_events', 'engine_events_replay'),
    'inference_node': ('engine', 'engine_url', 'model'),
    'memory_node': (),
    'world_model_node': ('robots', 'world'),
    'planner_node': (),
    'inspector_node': ('robots',),
}

# A simulated world that died has forgotten where the robots are: it does not come back by itself.
RESPAWNED = set(NODES) - {'simulator_node'}

# (argument, default, meaning)
TEXT_ARGUMENTS = (
    ('robots', 'robot1', 'Names of the robots, with commas between; each is a namespace.'),
    ('shared_namespace', '/', 'Namespace of the shared nodes.'),
    ('engine', '', f'Who runs the language model: {", ".join(ENGINES)}. Empty: as in params_file, else local.'),
    ('engine_url', '', 'Server of all engines but local and none, http://HOST:PORT. Empty: as in params_file.'),
    ('engine_events', '', 'Where that server publishes its KV events, tcp://HOST:PORT. Empty: as in params_file.'),
    ('engine_events_replay', '', 'Where it repeats missed ones. Empty: as in params_file.'),
    ('model', '', 'Model directory, or the name under which the server knows it. Empty: as in params_file.'),
    ('world', '', '"home" or the path of a world file. Empty: as in params_file, else home.'),
    ('params_file', '', 'YAML file whose parameters win over config/<node>.yaml; arguments win over both.'),
)

# (argument, default, choices, meaning)
CHOICE_ARGUMENTS = (
    ('use_sim', 'true', ('true', 'false'), 'Start the simulated home.'),
    ('use_sim_time', 'false', ('true', 'false'), 'Take time from /clock; the simulator publishes it.'),
    ('composed', 'false', ('true', 'false'), 'All nodes in one process instead of one each.'),
    ('log_level', 'info', ('debug', 'info', 'warn', 'error', 'fatal'), 'What the nodes log.'),
)


def generate_launch_description() -> LaunchDescription:
    return LaunchDescription(
        [
            *(DeclareLaunchArgument(n, default_value=d, description=text) for n, d, text in TEXT_ARGUMENTS),
            *(
                DeclareLaunchArgument(n, default_value=d, choices=list(choices), description=text)
                for n, d, choices, text in CHOICE_ARGUMENTS
            ),
            OpaqueFunction(function=_start),
        ]
    )


def _start(context: LaunchContext) -> list[LaunchDescriptionEntity]:
    names = [name for name, *_ in (*TEXT_ARGUMENTS, *CHOICE_ARGUMENTS)]
    values = {name: LaunchConfiguration(name).perform(context).strip() for name in names}
    robots = _robots(values['robots'])
    if values['engine'] not in ('', *ENGINES):
        raise RuntimeError(f'engine: expected one of {", ".join(ENGINES)}, got {values["engine"]!r}')
    if values['params_file']:
        values['params_file'] = str(Path(values['params_file']).expanduser().resolve())
        if not Path(values['params_file']).is_file():
            raise RuntimeError(f'params_file: no such file: {values["params_file"]}')
    if values['composed'] == 'true':
        return [_composed(values)]
    shared = [_node(name, values, robots) for name in NODES if name != 'simulator_node' or values['use_sim'] == 'true']
    return [*shared, *(_robot(robot, values) for robot in robots)]


def _robots(text: str) -> list[str]:
    robots = [name.strip() for name in text.split(',')]
    for name in robots:
        if not ROBOT_NAME.fullmatch(name):
            raise RuntimeError(f'robots: expected names like robot1 with commas between, got {text!r}')
    if len(set(robots)) < len(robots):
        raise RuntimeError(f'robots: each name once, got {text!r}')
    return robots


def _node(name: str, values: dict[str, str], robots: list[str]) -> Node:
    given: dict[str, str | bool | list[str]] = {key: values[key] for key in NODES[name] if values[key]}
    if 'robots' in given:
        given['robots'] = robots
    use_sim_time = values['use_sim_time'] == 'true'
    if name == 'simulator_node':  # it makes the time that the others take
        given['publish_clock'] = use_sim_time
    else:
        given['use_sim_time'] = use_sim_time
    return Node(
        package=PACKAGE,
        executable=name,
        name=name,
        namespace=values['shared_namespace'],
        output='screen',
        emulate_tty=True,
        respawn=name in RESPAWNED,
        respawn_delay=2.0,
        parameters=[*_files(name, values['params_file']), given],
        ros_arguments=['--log-level', values['log_level']],
    )


def _files(name: str, params_file: str) -> list[str]:
    defaults = Path(get_package_share_directory(PACKAGE)) / 'config' / f'{name}.yaml'
    return [*([str(defaults)] if defaults.is_file() else []), *([params_file] if params_file else [])]


def _robot(robot_id: str, values: dict[str, str]) -> IncludeLaunchDescription:
    passed = ('shared_namespace', 'world', 'params_file', 'use_sim_time', 'log_level')
    return IncludeLaunchDescription(
        PythonLaunchDescriptionSource(str(Path(__file__).with_name('robot.launch.py'))),
        launch_arguments={'robot_id': robot_id, **{name: values[name] for name in passed}}.items(),
    )


def _composed(values: dict[str, str]) -> Node:
    """One process; it takes the arguments by name, and the parameter files of all nodes."""
    options = ('robots', 'shared_namespace', 'engine', 'engine_url', 'engine_events', 'engine_events_replay', 'model')
    options += ('world', 'use_sim', 'use_sim_time')
    arguments = [f'--{name.replace("_", "-")}={values[name]}' for name in options if values[name]]
    files = [values['params_file']] if values['params_file'] else []
    return Node(
        package=PACKAGE,
        executable='bringup',
        output='screen',
        emulate_tty=True,
        arguments=arguments,
        parameters=files,
        ros_arguments=['--log-level', values['log_level']],
    )
