"""Endpoints of a node that is spun in a thread, as long as they are needed."""

from collections.abc import Iterator
from contextlib import contextmanager
import threading

from rclpy.context import Context
from rclpy.executors import MultiThreadedExecutor
from rclpy.node import Node

from kv_agent_ros.ros.endpoints import Endpoints


@contextmanager
def spun_endpoints(name: str, context: Context) -> Iterator[Endpoints]:
    """Within the block the node serves and calls; after it the node is gone."""
    node = Node(name, context=context)
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
