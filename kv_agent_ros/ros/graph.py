"""Starts a graph of nodes as processes where `ros2 launch` is not installed: the demonstration and the tests use it.

The same nodes with the same parameters as launch/fleet.launch.py. Every process is ended: SIGINT, then SIGKILL.
"""

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
import signal
import subprocess
import sys
import time
from types import MappingProxyType

import yaml

from kv_agent_ros.config import Setting

NO_PARAMETERS: Mapping[str, Setting] = MappingProxyType({})
GRACE_S = 5.0


@dataclass(frozen=True, kw_only=True, slots=True)
class NodeProcess:
    """One executable with its namespace and parameters (those of all nodes in the process)."""

    executable: str
    namespace: str = '/'
    parameters: Mapping[str, Setting] = field(default_factory=lambda: NO_PARAMETERS)

    @property
    def label(self) -> str:
        """Namespace and executable, e.g. robot1/agent_node."""
        return f'{self.namespace.strip("/")}/{self.executable}'.strip('/')


@dataclass(frozen=True, kw_only=True, slots=True)
class GraphSettings:
    """What a graph is started with; extra parameters by executable."""

    robots: Sequence[str] = ('robot1',)
    state_dir: Path
    parameters: Mapping[str, Mapping[str, Setting]] = field(default_factory=dict)
    use_sim_time: bool = False

    def process(self, executable: str, namespace: str = '/', **own: Setting) -> NodeProcess:
        """The process of one executable with the parameters that every node of the graph shares."""
        extra = self.parameters.get(executable, NO_PARAMETERS)
        sim_time: Mapping[str, Setting] = {'use_sim_time': True} if self.use_sim_time else {}
        return NodeProcess(executable=executable, namespace=namespace, parameters={**own, **sim_time, **extra})


def separate_graph(settings: GraphSettings) -> tuple[NodeProcess, ...]:
    """One process a node: the shared ones, then three for each robot."""
    robots, state = tuple(settings.robots), str(settings.state_dir)
    shared = (
        settings.process('simulator_node', robots=robots),
        settings.process('world_model_node', robots=robots),
        settings.process('kv_cache_node', state_dir=state),
        settings.process('inference_node'),
        settings.process('memory_node', state_dir=state),
        settings.process('planner_node'),
        settings.process('inspector_node', robots=robots),
    )
    own = [
        process
        for robot in robots
        for process in (
            settings.process('perception_node', f'/{robot}', robot_id=robot),
            settings.process('harness_node', f'/{robot}', robot_id=robot, state_dir=state),
            settings.process('agent_node', f'/{robot}', robot_id=robot, state_dir=state),
        )
    ]
    return (*shared, *own)


def composed_graph(settings: GraphSettings) -> tuple[NodeProcess, ...]:
    """All nodes in one process, as nodes.bringup composes them."""
    merged: dict[str, Setting] = {}
    for extra in settings.parameters.values():
        merged |= extra
    robots, state = tuple(settings.robots), str(settings.state_dir)
    return (NodeProcess(executable='bringup', parameters={'robots': robots, 'state_dir': state, **merged}),)


class ProcessGraph:
    """Running processes by label. Use as a context manager; leaving it ends them all."""

    def __init__(self, processes: Sequence[NodeProcess], work_dir: Path) -> None:
        self._processes = {process.label: process for process in processes}
        self._work_dir = work_dir
        self._running: dict[str, subprocess.Popen[bytes]] = {}
        self._files = ExitStack()

    def __enter__(self) -> 'ProcessGraph':
        for label in self._processes:
            self.start(label)
        return self

    def __exit__(self, *exc: object) -> None:
        self.stop()

    def start(self, label: str) -> None:
        """Start (again) the process of that label; its output goes to <work_dir>/<label>.log."""
        process = self._processes[label]
        folder = self._work_dir / label.replace('/', '_')
        folder.mkdir(parents=True, exist_ok=True)
        log = self._files.enter_context((folder / 'output.log').open('ab'))
        command = _command(process, folder)
        self._running[label] = subprocess.Popen(
            command, stdout=log, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL, start_new_session=True
        )

    def kill(self, label: str) -> None:
        """kill -9, as a crash would."""
        process = self._running[label]
        process.kill()
        process.wait(GRACE_S)

    def interrupt(self, label: str) -> int:
        """Ctrl-C for one process; its exit code."""
        process = self._running[label]
        process.send_signal(signal.SIGINT)
        return process.wait(2 * GRACE_S)

    def pid(self, label: str) -> int:
        """The process id."""
        return self._running[label].pid

    def dead(self) -> list[str]:
        """Labels of processes that have ended by themselves."""
        return [label for label, process in self._running.items() if process.poll() is not None]

    def log(self, label: str) -> str:
        """What the process has printed."""
        return (self._work_dir / label.replace('/', '_') / 'output.log').read_text(errors='replace')

    def stop(self) -> dict[str, int]:
        """End all: SIGINT, after GRACE_S SIGKILL. Exit codes by label."""
        for process in self._running.values():
            if process.poll() is None:
                process.send_signal(signal.SIGINT)
        ends_at = time.monotonic() + GRACE_S
        codes = {label: _await_end(process, ends_at) for label, process in self._running.items()}
        self._running.clear()
        self._files.close()
        return codes


def _await_end(process: 'subprocess.Popen[bytes]', ends_at: float) -> int:
    try:
        return process.wait(max(0.1, ends_at - time.monotonic()))
    except subprocess.TimeoutExpired:
        process.kill()
        return process.wait(GRACE_S)


def _command(process: NodeProcess, folder: Path) -> list[str]:
    params = folder / 'params.yaml'
    values = {name: list(value) if isinstance(value, tuple) else value for name, value in process.parameters.items()}
    arguments = ['--ros-args', '-r', f'__ns:={process.namespace}']
    if values:
        params.write_text(yaml.safe_dump({'/**': {'ros__parameters': values}}, allow_unicode=True))
        arguments += ['--params-file', str(params)]
    return [sys.executable, '-m', 'kv_agent_ros.start', f'nodes.{process.executable}', *arguments]
