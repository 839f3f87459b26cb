"""All nodes in one process, for a laptop: the same nodes, names and topics as one process each.

Takes the arguments of launch/bringup.launch.py by name (--robots=robot1,robot2 --engine=local …) and, after --ros-args,
the parameter files of all nodes.
"""

import argparse
import sys

from rclpy.parameter import Parameter
from rclpy.utilities import remove_ros_args

from kv_agent_ros.nodes import (
    agent_node,
    harness_node,
    inference_node,
    inspector_node,
    kv_cache_node,
    memory_node,
    perception_node,
    planner_node,
    simulator_node,
    world_model_node,
)
from kv_agent_ros.ros.runtime import ManagedNode, NodeSpec, run_nodes

SHARED = (
    simulator_node.SPEC,
    world_model_node.SPEC,
    kv_cache_node.SPEC,
    inference_node.SPEC,
    memory_node.SPEC,
    planner_node.SPEC,
    inspector_node.SPEC,
)
PER_ROBOT = (perception_node.SPEC, harness_node.SPEC, agent_node.SPEC)
OPTIONAL = ('engine', 'engine_url', 'engine_events', 'engine_events_replay', 'model', 'world')


def main() -> int:
    """Entry point."""
    options = _parser().parse_args(remove_ros_args(sys.argv)[1:])
    return run_nodes(lambda: make_nodes(options))


def make_nodes(options: argparse.Namespace) -> list[ManagedNode]:
    """Shared nodes first, then each robot's."""
    robots = [name for name in options.robots.split(',') if name]
    given = {name: getattr(options, name) for name in OPTIONAL if getattr(options, name)}
    values: dict[str, object] = {**given, 'robots': robots, 'shared_namespace': options.shared_namespace}
    values['use_sim_time'] = options.use_sim_time == 'true'
    values['publish_clock'] = options.use_sim_time == 'true'
    shared = [
        ManagedNode(spec, options.shared_namespace, _parameters(spec, values))
        for spec in SHARED
        if spec is not simulator_node.SPEC or options.use_sim == 'true'
    ]
    own = [
        ManagedNode(spec, f'/{robot}', _parameters(spec, {**values, 'robot_id': robot}))
        for robot in robots
        for spec in PER_ROBOT
    ]
    return [*shared, *own]


def _parameters(spec: NodeSpec, values: dict[str, object]) -> list[Parameter]:
    """Those of the values that the node has; the simulator makes the time that the others take."""
    known = set(spec.parameters) | {'use_sim_time'}
    if spec is simulator_node.SPEC:
        known.discard('use_sim_time')
    return [Parameter(name, value=value) for name, value in values.items() if name in known]


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog='bringup', description='All nodes of kv_agent_ros in one process.')
    parser.add_argument('--robots', default='robot1', help='names with commas between')
    parser.add_argument('--shared-namespace', default='/', help='namespace of the shared nodes')
    parser.add_argument('--use-sim', default='true', choices=['true', 'false'], help='start the simulated home')
    parser.add_argument('--use-sim-time', default='false', choices=['true', 'false'], help='take time from /clock')
    for name in OPTIONAL:
        parser.add_argument(f'--{name.replace("_", "-")}', default='', help='as in launch/bringup.launch.py')
    return parser
