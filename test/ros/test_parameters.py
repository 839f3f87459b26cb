"""Settings as ROS parameters: defaults, types, ranges, unknown names; and the YAML files that repeat them."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from rclpy.context import Context
from rclpy.exceptions import InvalidParameterTypeException, InvalidParameterValueException
from rclpy.node import Node
from rclpy.parameter import Parameter
import yaml

from kv_agent_ros import config
from kv_agent_ros.errors import ConfigError
from kv_agent_ros.ros.parameters import declare_parameters, defaults_as_yaml, read_parameters

CONFIG_DIR = Path(__file__).parents[2] / 'config'
CONFIGS = {
    'agent_node': config.AgentConfig,
    'harness_node': config.HarnessConfig,
    'inference_node': config.InferenceConfig,
    'inspector_node': config.InspectorConfig,
    'kv_cache_node': config.KVCacheConfig,
    'memory_node': config.MemoryConfig,
    'perception_node': config.PerceptionConfig,
    'planner_node': config.PlannerConfig,
    'simulator_node': config.SimulatorConfig,
    'world_model_node': config.WorldModelConfig,
}


@contextmanager
def configured(context: Context, config_type: type, **values: Any) -> Iterator[Node]:
    """A node with the parameters of a config, some of them given from outside."""
    overrides = [Parameter(name, value=value) for name, value in values.items()]
    node = Node('configured', context=context, parameter_overrides=overrides)
    try:
        declare_parameters(node, config_type)
        yield node
    finally:
        node.destroy_node()


@pytest.mark.parametrize('name', CONFIGS)
def test_the_yaml_file_repeats_every_default(name: str) -> None:
    assert (CONFIG_DIR / f'{name}.yaml').read_text() == defaults_as_yaml(name, CONFIGS[name])


@pytest.mark.parametrize('name', CONFIGS)
def test_the_yaml_file_is_read_back_as_the_defaults(context: Context, name: str) -> None:
    values = yaml.safe_load((CONFIG_DIR / f'{name}.yaml').read_text())[f'/**/{name}']['ros__parameters']
    with configured(context, CONFIGS[name], **values) as node:
        given = read_parameters(node, CONFIGS[name])
    with configured(context, CONFIGS[name]) as node:
        assert read_parameters(node, CONFIGS[name]) == given


def test_a_value_from_outside_is_taken(context: Context) -> None:
    with configured(context, config.SimulatorConfig, seed=7, robots=['a', 'b'], realtime_factor=0.0) as node:
        read = read_parameters(node, config.SimulatorConfig)
    assert (read.seed, read.robots, read.realtime_factor) == (7, ('a', 'b'), 0.0)


def test_a_parameter_that_nobody_declared_is_refused_by_name(context: Context) -> None:
    with (
        configured(context, config.MemoryConfig, embeder='hashing') as node,
        pytest.raises(ConfigError, match=r"'embeder'.*embedder"),
    ):
        read_parameters(node, config.MemoryConfig)


def test_a_choice_that_is_none_is_refused_with_the_choices(context: Context) -> None:
    with (
        configured(context, config.InferenceConfig, engine='abacus') as node,
        pytest.raises(ConfigError, match=r'engine: expected one of local, openai'),
    ):
        read_parameters(node, config.InferenceConfig)


@pytest.mark.parametrize('value', [-0.1, 1.1, float('nan'), float('inf')])
def test_a_value_out_of_its_range_is_refused(context: Context, value: float) -> None:
    with (
        pytest.raises((ConfigError, InvalidParameterValueException)),
        configured(context, config.SimulatorConfig, slip_rate=value) as node,
    ):
        read_parameters(node, config.SimulatorConfig)


def test_a_value_of_another_type_is_refused(context: Context) -> None:
    with pytest.raises(InvalidParameterTypeException), configured(context, config.SimulatorConfig, seed='seven'):
        pass


def test_every_parameter_tells_its_meaning_unit_and_range(context: Context) -> None:
    with configured(context, config.SimulatorConfig) as node:
        descriptor = node.describe_parameter('rate_hz')
    assert descriptor.description == 'rate of odometry, scan and detections [Hz]'
    assert (descriptor.floating_point_range[0].from_value, descriptor.floating_point_range[0].to_value) == (0.5, 100.0)
