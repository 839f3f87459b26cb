"""A config dataclass as ROS parameters: typed, described, ranged, read-only after configure."""

from typing import TypeVar

from rcl_interfaces.msg import FloatingPointRange, IntegerRange, ParameterDescriptor
from rclpy.node import Node
import yaml

from kv_agent_ros.config import Meaning, Setting, checked, meanings
from kv_agent_ros.errors import ConfigError

ConfigT = TypeVar('ConfigT')
LARGEST = 1e18


def declare_parameters(node: Node, config_type: type) -> None:
    """Declare one parameter a field. Values from launch or YAML take effect here; types are enforced by ROS."""
    for name, (default, meaning) in meanings(config_type).items():
        node.declare_parameter(name, _to_ros(default), _descriptor(default, meaning))


def read_parameters(node: Node, config_type: type[ConfigT]) -> ConfigT:
    """The config as set now. Raises ConfigError for values out of range and for names nobody declared."""
    known = meanings(config_type)
    unknown = sorted(set(_overrides(node)) - set(known) - {'use_sim_time', 'autostart'})
    unknown = [name for name in unknown if not name.startswith(('qos_overrides.', 'start_type_description_service'))]
    if unknown:
        raise ConfigError(f'{node.get_name()}: unknown parameter {unknown[0]!r}, expected one of {", ".join(known)}')
    return checked(config_type(**{name: _from_ros(node.get_parameter(name).value) for name in known}))


def _overrides(node: Node) -> list[str]:
    return list(node._parameter_overrides)  # rclpy has no public reader


def _descriptor(default: Setting, meaning: Meaning) -> ParameterDescriptor:
    unit = f' [{meaning.unit}]' if meaning.unit else ''
    descriptor = ParameterDescriptor(description=meaning.text + unit)
    descriptor.additional_constraints = f'one of {", ".join(meaning.choices)}' if meaning.choices else ''
    low, high = max(meaning.minimum, -LARGEST), min(meaning.maximum, LARGEST)
    if isinstance(default, float):
        descriptor.floating_point_range = [FloatingPointRange(from_value=low, to_value=high)]
    elif isinstance(default, int) and not isinstance(default, bool):
        descriptor.integer_range = [IntegerRange(from_value=int(low), to_value=int(high), step=1)]
    return descriptor


def _to_ros(value: Setting) -> str | int | float | bool | list[str]:
    return (list(value) or ['']) if isinstance(value, tuple) else value  # ROS has no type for an empty list


def _from_ros(value: str | int | float | bool | list[str]) -> Setting:
    return tuple(text for text in value if text) if isinstance(value, list) else value


def defaults_as_yaml(name: str, config_type: type) -> str:
    """The text of config/<node>.yaml: every parameter with its default, meaning and unit."""
    lines = ["# '/**/': in any namespace.", f'/**/{name}:', '  ros__parameters:']
    for key, (default, meaning) in meanings(config_type).items():
        value = yaml.safe_dump(_to_ros(default), default_flow_style=True).removesuffix('\n...\n').strip()
        unit = f' [{meaning.unit}]' if meaning.unit else ''
        lines.append(f'    {key}: {value}  # {meaning.text}{unit}')
    return '\n'.join(lines) + '\n'
