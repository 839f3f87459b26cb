"""A process of nodes: what fails in one callback or one node ends neither the spinning nor the farewell of others."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
import threading

import pytest
import rclpy
from rclpy.exceptions import InvalidHandle
from rclpy.executors import MultiThreadedExecutor
from rclpy.signals import SignalHandlerOptions

from kv_agent_ros.errors import BadRequestError
from kv_agent_ros.msg import Metric
from kv_agent_ros.ros.endpoints import Endpoints
from kv_agent_ros.ros.qos import EVENT
from kv_agent_ros.ros.runtime import ManagedNode, NodeSpec, leave_by_kind, spin_until

WAIT_S = 20.0


class FaultyExecutor:
    """Raises now and then, as rclpy's executors do with what a callback raised; ends the spinning in the end."""

    def __init__(self, ended: threading.Event, error: Exception) -> None:
        self.num_calls = 0
        self._ended = ended
        self._error = error

    def spin_once(self, timeout_sec: float) -> None:
        self.num_calls += 1
        if self.num_calls == 4:
            self._ended.set()
        if self.num_calls % 2:
            raise self._error


def test_an_error_in_a_callback_is_told_and_the_spinning_goes_on() -> None:
    ended, told = threading.Event(), list[str]()
    executor = FaultyExecutor(ended, ZeroDivisionError('a bug in a callback'))
    spin_until(executor, ended, told.append)
    assert executor.num_calls == 4
    assert ['a bug in a callback' in text for text in told] == [True, True]


def test_an_endpoint_that_goes_while_the_executor_looks_at_it_is_no_error() -> None:
    ended, told = threading.Event(), list[str]()
    executor = FaultyExecutor(ended, InvalidHandle('destruction was requested'))
    spin_until(executor, ended, told.append)
    assert executor.num_calls == 4
    assert told == []


@dataclass(frozen=True, kw_only=True, slots=True)
class NoConfig:
    """A node without settings."""


class Core:
    """Notes that it was closed, then fails."""

    def __init__(self) -> None:
        self.num_closed = 0

    def close(self) -> None:
        self.num_closed += 1
        raise ZeroDivisionError('a bug')


@pytest.fixture
def default_context() -> Iterator[None]:
    """rclpy's own context, in which nodes are made by default."""
    rclpy.init(args=[], signal_handler_options=SignalHandlerOptions.NO)
    yield
    rclpy.try_shutdown()


def node_that_serves(core: Core, serve: Callable[[Core, NoConfig, Endpoints], None]) -> ManagedNode:
    return ManagedNode(NodeSpec(name='odd', config=NoConfig, open=lambda config, node: core, serve=serve))


def test_a_node_that_cannot_serve_leaves_nothing_reachable(default_context: None) -> None:
    closed: list[str] = []

    def serve(core: Core, config: NoConfig, endpoints: Endpoints) -> None:
        endpoints.on_close(lambda: closed.append('endpoints'))
        raise BadRequestError('no such thing')

    node = node_that_serves(Core(), serve)
    assert not node.autostart()
    assert closed == ['endpoints']
    node.destroy_node()


def test_a_node_whose_farewell_fails_still_leaves(default_context: None) -> None:
    core = Core()

    def serve(core: Core, config: NoConfig, endpoints: Endpoints) -> None:
        endpoints.on_close(core.close)

    node = node_that_serves(core, serve)
    assert node.autostart()
    node.leave()
    assert core.num_closed == 2
    node.destroy_node()


def test_a_callback_whose_endpoint_goes_while_it_runs_is_no_error(
    default_context: None, capfd: pytest.CaptureFixture[str]
) -> None:
    node = node_that_serves(Core(), lambda core, config, endpoints: None)
    endpoints = Endpoints(node)
    publisher = endpoints.publisher(Metric, 'late', EVENT)
    began, may_publish = threading.Event(), threading.Event()

    def publish_late() -> None:
        began.set()
        may_publish.wait(WAIT_S)
        publisher.publish(Metric())

    endpoints.steady_timer(0.01, publish_late)
    executor = MultiThreadedExecutor(num_threads=2)
    executor.add_node(node)
    executor.spin_once(timeout_sec=WAIT_S)
    assert began.wait(WAIT_S)
    endpoints.close()
    may_publish.set()
    executor.shutdown(timeout_sec=WAIT_S)
    node.destroy_node()
    assert 'Traceback' not in capfd.readouterr().err


def test_every_robot_is_told_to_stand_still_while_agents_take_their_time(default_context: None) -> None:
    all_still, answers = threading.Barrier(2 + 1, timeout=WAIT_S), list[bool]()
    may_end = threading.Event()

    class Quiet:
        def close(self) -> None:
            pass

    def serve_agent(core: Quiet, config: NoConfig, endpoints: Endpoints) -> None:
        endpoints.on_close(lambda: answers.append(may_end.wait(WAIT_S)))

    def serve_harness(core: Quiet, config: NoConfig, endpoints: Endpoints) -> None:
        def stand_still() -> None:
            all_still.wait()

        endpoints.on_close(stand_still)

    def make(name: str, robot: str, serve: Callable[[Quiet, NoConfig, Endpoints], None]) -> ManagedNode:
        spec = NodeSpec(name=name, config=NoConfig, open=lambda config, node: Quiet(), serve=serve)
        return ManagedNode(spec, namespace=robot)

    kinds = (('harness', serve_harness), ('agent', serve_agent))
    nodes = [make(name, robot, serve) for robot in ('robot1', 'robot2') for name, serve in kinds]
    assert all(node.autostart() for node in nodes)
    farewell = threading.Thread(target=leave_by_kind, args=(nodes, 0.1))
    farewell.start()
    all_still.wait()  # both harnesses are here while both agents wait
    assert answers == []
    may_end.set()
    farewell.join(WAIT_S)
    assert answers == [True, True]
    for node in nodes:
        node.destroy_node()
