"""rclpy's action client, without the gap in which an answer is lost.

rclpy of ROS 2 Jazzy sends a request and registers it afterwards; an answer that another thread of the executor takes
in between is dropped as unexpected, and its goal runs on with nobody to wait for it. Here an answer waits until the
request that is being sent is registered, as rclpy.client.Client does for services.
"""

from collections.abc import Callable
import threading
from typing import Any

from rclpy.action import ActionClient
from rclpy.callback_groups import CallbackGroup
from rclpy.node import Node
from rclpy.task import Future


class OrderedActionClient(ActionClient):
    """An ActionClient for a multi-threaded executor. Feedback callbacks must be short and no coroutines."""

    def __init__(self, node: Node, action_type: Any, name: str, group: CallbackGroup) -> None:
        self._order = threading.RLock()
        super().__init__(node, action_type, name, callback_group=group)

    def send_goal_async(self, goal: Any, feedback_callback: Callable[[Any], None], goal_uuid: Any = None) -> Future:
        with self._order:
            return super().send_goal_async(goal, feedback_callback, goal_uuid)

    def _cancel_goal_async(self, goal_handle: Any) -> Future:
        with self._order:
            return super()._cancel_goal_async(goal_handle)

    def _get_result_async(self, goal_handle: Any) -> Future:
        with self._order:
            return super()._get_result_async(goal_handle)

    async def execute(self, taken_data: Any) -> None:
        with self._order:
            await super().execute(taken_data)
