"""A node of the tests' own, spun in a thread, in the domain of this test process."""

from collections.abc import Iterator
import threading

import pytest
import rclpy
from rclpy.context import Context
from rclpy.executors import MultiThreadedExecutor
from rclpy.node import Node
from rclpy.signals import SignalHandlerOptions

from kv_agent_ros.ros.endpoints import Endpoints


@pytest.fixture(scope='module')
def context() -> Iterator[Context]:
    """An rclpy context."""
    context = Context()
    rclpy.init(args=[], context=context, signal_handler_options=SignalHandlerOptions.NO)
    yield context
    rclpy.try_shutdown(context=context)


@pytest.fixture(scope='module')
def endpoints(context: Context) -> Iterator[Endpoints]:
    """Endpoints of a node that is spun."""
    node = Node('tested', context=context)
    executor = MultiThreadedExecutor(num_threads=4, context=context)
    executor.add_node(node)
    ended = threading.Event()

    def spin() -> None:
        while not ended.is_set():
            executor.spin_once(timeout_sec=0.05)

    spinner = threading.Thread(target=spin, name='spin', daemon=True)
    spinner.start()
    endpoints = Endpoints(node)
    yield endpoints
    ended.set()
    spinner.join(5.0)
    endpoints.close()
    executor.shutdown(timeout_sec=1.0)
    node.destroy_node()
