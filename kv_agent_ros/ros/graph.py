"""Starts a graph of nodes as processes where `ros2 launch` is not installed: the demonstration and the tests use it.

The same nodes with the same parameters as launch/fleet.launch.py. Every process is ended: SIGINT, then SIGKILL. When
the starter itself is killed, the pipe to each process closes and it ends by itself.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
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
GRACE_S = 4.0


@dataclass(frozen=True, kw_only=True, slots=True)
class NodeProcess:
    """One executable with its namespace, the parameters of all its nodes and, by name, of single ones."""

    executable: str
    namespace: str = '/'
    parameters: Mapping[str, Setting] = field(default_factory=lambda: NO_PARAMETERS)
    per_node: Mapping[str, Mapping[str, Setting]] = field(default_factory=dict)
    arguments: tuple[str, ...] = ()

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
    """All nodes in one process, as nodes/bringup.py composes them."""
    state: Mapping[str, Setting] = {'state_dir': str(settings.state_dir)}
    per_node = {name: dict(values) for name, values in settings.parameters.items()}
    for name in ('kv_cache_node', 'memory_node', 'harness_node', 'agent_node'):
        per_node[name] = {**state, **per_node.get(name, {})}
    arguments = (f'--robots={",".join(settings.robots)}', f'--use-sim-time={str(settings.use_sim_time).lower()}')
    return (NodeProcess(executable='bringup', arguments=arguments, per_node=per_node),)


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
        log = self._files.enter_context((folder / 'output.log').open('ab' if label in self._running else 'wb'))
        command = _command(process, folder)
        if label in self._running:
            _let_go(self._running[label])
        with _signals_held():  # start.py lets them through when it can end cleanly
            self._running[label] = subprocess.Popen(
                command, stdout=log, stderr=subprocess.STDOUT, stdin=subprocess.PIPE, start_new_session=True
            )

    def kill(self, label: str) -> None:
        """kill -9, as a crash would."""
        process = self._running[label]
        process.kill()
        process.wait(GRACE_S)

    def end(self, label: str, number: signal.Signals) -> int:
        """Send one process a signal, wait for its end; its exit code. Raises subprocess.TimeoutExpired."""
        process = self._running[label]
        process.send_signal(number)
        return process.wait(2 * GRACE_S)

    @property
    def labels(self) -> tuple[str, ...]:
        """The processes, in the order of their start."""
        return tuple(self._processes)

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


@contextmanager
def _signals_held() -> Iterator[None]:
    before = signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGINT, signal.SIGTERM))
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _await_end(process: 'subprocess.Popen[bytes]', ends_at: float) -> int:
    try:
        return process.wait(max(0.1, ends_at - time.monotonic()))
    except subprocess.TimeoutExpired:
        process.kill()
        return process.wait(GRACE_S)
    finally:
        _let_go(process)


def _let_go(process: 'subprocess.Popen[bytes]') -> None:
    """Close the lifeline: a process that still runs ends."""
    if process.stdin is not None:
        process.stdin.close()


def _command(process: NodeProcess, folder: Path) -> list[str]:
    params = folder / 'params.yaml'
    sections = {'/**': _section(process.parameters)} if process.parameters else {}
    sections |= {f'/**/{name}': _section(values) for name, values in process.per_node.items()}
    own = ['--ros-args']
    if process.namespace != '/':
        own += ['-r', f'__ns:={process.namespace}']
    if sections:
        params.write_text(yaml.safe_dump(sections, allow_unicode=True))
        own += ['--params-file', str(params)]
    module = f'nodes.{process.executable}'
    return [sys.executable, '-m', 'kv_agent_ros.start', '--lifeline', module, *process.arguments, *own]


def _section(values: Mapping[str, Setting]) -> dict[str, dict[str, object]]:
    plain = {name: (list(value) or ['']) if isinstance(value, tuple) else value for name, value in values.items()}
    return {'ros__parameters': plain}
