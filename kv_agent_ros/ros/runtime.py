"""Runs nodes: a lifecycle node made of a config, a core and its endpoints; one or many in a process; a clean end.

A node file gives a `NodeSpec`: `open` builds the core from the config (configure), `serve` creates the endpoints
(activate). Everything that was created is destroyed in reverse order by deactivate and cleanup. On SIGINT or SIGTERM a
flag is set, nodes are taken down kind by kind, the process exits with 0; rclpy's own handler would shut the context
down under running callbacks.
"""

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
import os
import signal
import threading
import traceback
from types import FrameType
from typing import Generic, Protocol, TypeVar

import rclpy
from rclpy.exceptions import InvalidHandle
from rclpy.executors import MultiThreadedExecutor
from rclpy.lifecycle import LifecycleNode, LifecycleState, TransitionCallbackReturn
from rclpy.logging import get_logger
from rclpy.parameter import Parameter
from rclpy.signals import SignalHandlerOptions

from kv_agent_ros.config import meanings
from kv_agent_ros.deadline import Deadline
from kv_agent_ros.errors import KvAgentError
from kv_agent_ros.ros.endpoints import Endpoints
from kv_agent_ros.ros.parameters import declare_parameters, read_parameters

ConfigT = TypeVar('ConfigT')
GRACE_S = 3.0
LEAVE_S = 1.0  # how long the next kind of nodes waits for the one before it to leave
SPIN_S = 0.1
NUM_THREADS = 48  # a node; callbacks wait on each other's services, and threads start only when they are needed


class Core(Protocol):
    """What a node is around: anything that can be closed."""

    def close(self) -> None:
        """Free it; idempotent."""
        ...


class Spinner(Protocol):
    """An executor, as far as spinning goes."""

    def spin_once(self, timeout_sec: float) -> None:
        """Wait for callbacks that are due, and run them."""
        ...


CoreT = TypeVar('CoreT', bound=Core)


@dataclass(frozen=True, kw_only=True, slots=True)
class NodeSpec(Generic[ConfigT, CoreT]):
    """A node: its name, its settings, how to build its core, how to serve it."""

    name: str
    config: type[ConfigT]
    open: Callable[[ConfigT, 'ManagedNode'], CoreT]
    serve: Callable[[CoreT, ConfigT, Endpoints], None]

    @property
    def parameters(self) -> tuple[str, ...]:
        """Names of the node's parameters."""
        return tuple(meanings(self.config))


class ManagedNode(LifecycleNode):
    """A lifecycle node around a NodeSpec. With the parameter `autostart` (default) it configures itself."""

    def __init__(self, spec: NodeSpec, namespace: str = '', overrides: Sequence[Parameter] = ()) -> None:
        super().__init__(spec.name, namespace=namespace, parameter_overrides=list(overrides))
        self._spec = spec
        self._opened = ExitStack()
        self._served = ExitStack()
        self.declare_parameter('autostart', True)
        declare_parameters(self, spec.config)

    @property
    def kind(self) -> str:
        """The name of its spec, whatever the node was renamed to."""
        return self._spec.name

    def now_s(self) -> float:
        """ROS time in seconds."""
        return self.get_clock().now().nanoseconds * 1e-9

    def autostart(self) -> bool:
        """Configure and activate when the parameter says so; False when a transition failed."""
        if not self.get_parameter('autostart').value:
            return True
        ok = TransitionCallbackReturn.SUCCESS
        return self.trigger_configure() == ok and self.trigger_activate() == ok

    def on_configure(self, state: LifecycleState) -> TransitionCallbackReturn:
        return self._guarded('configure', self._open)

    def on_activate(self, state: LifecycleState) -> TransitionCallbackReturn:
        super().on_activate(state)
        activated = self._guarded('activate', self._serve)
        if activated is not TransitionCallbackReturn.SUCCESS:
            self._guarded('deactivate', self._served.close)  # no half of a node stays reachable
        return activated

    def on_deactivate(self, state: LifecycleState) -> TransitionCallbackReturn:
        super().on_deactivate(state)
        return self._guarded('deactivate', self._served.close)

    def on_cleanup(self, state: LifecycleState) -> TransitionCallbackReturn:
        return self._guarded('cleanup', self._opened.close)

    def on_shutdown(self, state: LifecycleState) -> TransitionCallbackReturn:
        self.leave()
        return TransitionCallbackReturn.SUCCESS

    def leave(self) -> None:
        """Destroy endpoints, then close the core; idempotent. What fails is logged: other nodes must leave too."""
        self._guarded('deactivate', self._served.close)
        self._guarded('cleanup', self._opened.close)

    def _open(self) -> None:
        self._config = read_parameters(self, self._spec.config)
        self._core = self._spec.open(self._config, self)
        self._opened.callback(self._core.close)

    def _serve(self) -> None:
        endpoints = Endpoints(self)
        self._served.callback(endpoints.close)
        self._spec.serve(self._core, self._config, endpoints)
        self.get_logger().info('active')

    def _guarded(self, transition: str, act: Callable[[], None]) -> TransitionCallbackReturn:
        try:
            act()
        except KvAgentError as error:
            self.get_logger().error(f'{transition} failed: {error}')
            return TransitionCallbackReturn.FAILURE
        except Exception:  # a lifecycle callback would swallow the traceback
            self.get_logger().error(f'{transition} failed:\n{traceback.format_exc()}')
            return TransitionCallbackReturn.FAILURE
        return TransitionCallbackReturn.SUCCESS


def run_node(spec: NodeSpec, args: Sequence[str] | None = None) -> int:
    """Run one node until a signal; the exit code."""
    return run_nodes(lambda: [ManagedNode(spec)], args)


def run_nodes(make_nodes: Callable[[], Sequence[ManagedNode]], args: Sequence[str] | None = None) -> int:
    """Run nodes in this process until SIGINT or SIGTERM. 0 = ended on request, 1 = a node could not start."""
    stop = StopSignal()
    rclpy.init(args=args, signal_handler_options=SignalHandlerOptions.NO)
    nodes = list(make_nodes())
    executor = MultiThreadedExecutor(num_threads=NUM_THREADS * max(1, len(nodes)))
    for node in nodes:
        executor.add_node(node)
    ended, leaving = threading.Event(), threading.Event()

    def tell(text: str) -> None:
        if not leaving.is_set():  # then rclpy stumbles over endpoints that go while it looks at them
            get_logger('spin').error(text)

    spinner = threading.Thread(target=spin_until, args=(executor, ended, tell), name='spin')
    spinner.start()
    threading.Thread(target=_start, args=(nodes, stop), name='autostart', daemon=True).start()
    stop.wait()
    leave_anyway = threading.Timer(GRACE_S, os._exit, args=(stop.exit_code,))
    leave_anyway.daemon = True
    leave_anyway.start()
    leaving.set()
    leave_by_kind(nodes, LEAVE_S)  # still spinning: the last calls of a core are answered
    ended.set()
    spinner.join()
    executor.shutdown(timeout_sec=1.0)
    for node in reversed(nodes):
        node.destroy_node()
    rclpy.try_shutdown()
    leave_anyway.cancel()
    return stop.exit_code


def leave_by_kind(nodes: Sequence[ManagedNode], patience_s: float) -> None:
    """All nodes of the last kind at once, then those before; a slow kind delays the next by `patience_s` at most.

    So every robot is told to stand still early, however many there are and whatever their agents wait for.
    """
    leaving: list[threading.Thread] = []
    for kind in dict.fromkeys(node.kind for node in reversed(nodes)):
        of_kind = [
            threading.Thread(target=node.leave, name='leave', daemon=True) for node in nodes if node.kind == kind
        ]
        for thread in of_kind:
            thread.start()
        patience = Deadline(patience_s)
        for thread in of_kind:
            thread.join(patience.remaining_s)
        leaving += of_kind
    for thread in leaving:
        thread.join()


class StopSignal:
    """Set by SIGINT or SIGTERM, or by a node that could not start."""

    def __init__(self) -> None:
        self.exit_code = 0
        self._event = threading.Event()
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, self._on_signal)

    def wait(self) -> None:
        """Until a signal or a failure. In slices, so that the signal handler gets to run."""
        while not self._event.wait(0.5):
            pass

    def fail(self) -> None:
        """End the process with exit code 1."""
        self.exit_code = 1
        self._event.set()

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        self._event.set()


def _start(nodes: Sequence[ManagedNode], stop: StopSignal) -> None:
    started = [node.autostart() for node in nodes]
    if not all(started):
        stop.fail()


def spin_until(executor: Spinner, ended: threading.Event, tell: Callable[[str], object]) -> None:
    """Spin until `ended`. rclpy raises here what a callback raised: it is told, and the node goes on serving."""
    while not ended.is_set():
        try:
            executor.spin_once(timeout_sec=SPIN_S)
        except InvalidHandle:  # an endpoint was destroyed while the executor looked at it: nothing is lost
            continue
        except Exception:
            tell(traceback.format_exc())
