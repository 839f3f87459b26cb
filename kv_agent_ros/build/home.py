"""Worlds and the files of our config/ folder."""

import os
from pathlib import Path

from kv_agent_ros.config import expand
from kv_agent_ros.errors import ConfigError
from kv_agent_ros.world.map_file import load_map
from kv_agent_ros.world.state import WorldMap


def bundled(*parts: str) -> Path:
    """A file of our config/ folder, in the checkout or in an installed share/. Raises ConfigError when missing."""
    prefixes = os.environ.get('AMENT_PREFIX_PATH', '').split(os.pathsep)
    roots = [Path(__file__).resolve().parents[2], *(Path(prefix) / 'share' / 'kv_agent_ros' for prefix in prefixes)]
    found = [path for root in roots if (path := root.joinpath('config', *parts)).exists()]
    if not found:
        raise ConfigError(f'config/{"/".join(parts)}: expected it in {roots[0]} or in AMENT_PREFIX_PATH, found nowhere')
    return found[0]


def world_path(name: str) -> Path:
    """The file of a world setting: `home` or a path."""
    return bundled('worlds', 'home.yaml') if name == 'home' else expand(name)


def load_world(name: str) -> WorldMap:
    """The map of a world setting. Raises ConfigError."""
    return load_map(world_path(name))
