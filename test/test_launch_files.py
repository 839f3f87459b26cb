"""What the launch files start for which arguments; nothing runs here (test_launch_bringup.py runs them)."""

from pathlib import Path

from launch import LaunchContext
from launch.actions import DeclareLaunchArgument, IncludeLaunchDescription, OpaqueFunction
from launch.launch_description_sources import PythonLaunchDescriptionSource
from launch_ros.actions import Node
import pytest

LAUNCH = Path(__file__).resolve().parent.parent / 'launch'
SHARED = {
    'simulator_node',
    'world_model_node',
    'kv_cache_node',
    'inference_node',
    'memory_node',
    'planner_node',
    'inspector_node',
}
PER_ROBOT = {'perception_node', 'harness_node', 'agent_node'}


def started(arguments: dict[str, str], launch_file: str = 'bringup.launch.py') -> list[Node]:
    """The nodes that a launch file would start."""
    context = LaunchContext()
    include = IncludeLaunchDescription(
        PythonLaunchDescriptionSource(str(LAUNCH / launch_file)), launch_arguments=arguments.items()
    )
    nodes, queue = [], [include]
    while queue:
        action = queue.pop(0)
        if isinstance(action, Node):
            nodes += [action] if action.condition is None or action.condition.evaluate(context) else []
        elif isinstance(action, DeclareLaunchArgument | IncludeLaunchDescription | OpaqueFunction):
            queue = [*(action.execute(context) or []), *queue]
        elif hasattr(action, 'entities'):
            queue = [*action.entities, *queue]
        else:
            action.visit(context)
    for node in nodes:
        node._perform_substitutions(context)
    return nodes


def parameters(node: Node) -> str:
    """The texts of a node's parameter files."""
    return ''.join(Path(path).read_text() for path, is_file in node._Node__expanded_parameter_arguments if is_file)


def names(nodes: list[Node]) -> set[str]:
    return {node.node_name for node in nodes}


def test_bringup_starts_the_shared_nodes_once_and_three_for_each_robot():
    nodes = started({'robots': 'robot1, robot2'})

    own = {f'/{robot}/{name}' for robot in ('robot1', 'robot2') for name in PER_ROBOT}
    assert names(nodes) == {f'/{name}' for name in SHARED} | own
    assert len(nodes) == len(SHARED) + 2 * len(PER_ROBOT)


def test_without_a_simulator_all_others_start():
    assert names(started({'use_sim': 'false'})) == {f'/{name}' for name in SHARED - {'simulator_node'}} | {
        f'/robot1/{name}' for name in PER_ROBOT
    }


def test_composed_is_one_process():
    assert len(started({'composed': 'true', 'robots': 'robot1,robot2'})) == 1


def test_one_robot_alone_starts_its_own_nodes():
    nodes = started({'robot_id': 'fetch'}, 'robot.launch.py')

    assert names(nodes) == {f'/fetch/{name}' for name in PER_ROBOT}


def test_every_node_that_needs_the_world_gets_it():
    nodes = started({'world': '/maps/flat.yaml'})
    told = {node.node_name for node in nodes if '/maps/flat.yaml' in parameters(node)}
    assert told == {'/simulator_node', '/world_model_node', '/robot1/perception_node'}


@pytest.mark.parametrize(
    ('arguments', 'message'),
    [
        ({'engine': 'gpt'}, 'engine: expected one of local, openai, sglang, vllm, ktransformers, edge_cloud, none'),
        ({'robots': ''}, 'robots: expected names'),
        ({'robots': 'Robot 1'}, 'robots: expected names'),
        ({'robots': 'robot1,robot1'}, 'robots: each name once'),
        ({'params_file': 'there_is_none.yaml'}, 'params_file: no such file'),
        ({'composed': 'yes'}, 'composed'),
    ],
)
def test_a_wrong_argument_is_refused_with_what_was_expected(arguments: dict[str, str], message: str):
    with pytest.raises(RuntimeError, match=message):
        started(arguments)
