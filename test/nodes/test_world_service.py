"""What comes on a robot's topic changes the world only when it is of that robot."""

from collections.abc import Iterator

import pytest
import rclpy
from rclpy.context import Context
from rclpy.node import Node
from rclpy.signals import SignalHandlerOptions

from kv_agent_ros.config import WorldModelConfig
from kv_agent_ros.errors import BadRequestError
from kv_agent_ros.nodes.world_model_node import WorldService
from kv_agent_ros.ros.conversions.world import observation_to_msg
from kv_agent_ros.ros.endpoints import Endpoints
from kv_agent_ros.world.fake import example_map, example_robot
from kv_agent_ros.world.model import WorldModel
from kv_agent_ros.world.state import Observation


@pytest.fixture
def endpoints() -> Iterator[Endpoints]:
    context = Context()
    rclpy.init(args=[], context=context, signal_handler_options=SignalHandlerOptions.NO)
    node = Node('world', context=context)
    endpoints = Endpoints(node)
    yield endpoints
    endpoints.close()
    node.destroy_node()
    rclpy.try_shutdown(context=context)


def test_an_observation_of_another_robot_is_dropped(endpoints: Endpoints) -> None:
    model = WorldModel(example_map())
    service = WorldService(model, WorldModelConfig(), endpoints)
    message = observation_to_msg(Observation(robot=example_robot('robot2', 1.0), stamp_s=1.0))
    with pytest.raises(BadRequestError, match='robot2'):
        service.observe('robot1', message)
    assert model.snapshot().robots == ()
    service.observe('robot2', message)
    assert [robot.robot_id for robot in model.snapshot().robots] == ['robot2']
