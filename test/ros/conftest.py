"""A node of the tests' own, spun in a thread, in the domain of this test process."""

from collections.abc import Iterator

import pytest
import rclpy
from rclpy.context import Context
from rclpy.signals import SignalHandlerOptions
from spun_endpoints import spun_endpoints

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
    with spun_endpoints('tested', context) as endpoints:
        yield endpoints
