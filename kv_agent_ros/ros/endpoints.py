"""What a node offers and uses, created together and destroyed together; and the one place where errors become replies.

A service callback is `handler(request, response)`: it fills the response and returns nothing, or returns a Status. What
it raises becomes the response's `result`: our own errors with their code and text, everything else as INTERNAL with the
traceback in the log. No caller is ever left without an answer.
"""

from collections.abc import Callable
from contextlib import ExitStack
import traceback
from typing import Any, TypeVar

from rclpy.action import ActionServer, CancelResponse, GoalResponse
from rclpy.action.server import ServerGoalHandle
from rclpy.callback_groups import MutuallyExclusiveCallbackGroup, ReentrantCallbackGroup
from rclpy.clock import Clock, ClockType
from rclpy.exceptions import InvalidHandle
from rclpy.lifecycle import LifecycleNode
from rclpy.publisher import Publisher
from rclpy.qos import QoSProfile
from std_srvs.srv import Trigger

from kv_agent_ros.errors import KvAgentError, Outcome, Status
from kv_agent_ros.msg import Metric, Result
from kv_agent_ros.ros.action_client import OrderedActionClient
from kv_agent_ros.ros.calls import ActionCaller, ServiceCaller
from kv_agent_ros.srv import GetStats

MessageT = TypeVar('MessageT')
Handler = Callable[[Any, Any], Status | None]  # generated message types have no common base
GoalHandler = Callable[[ServerGoalHandle, Any], Status | None]


def to_result(status: Status) -> Result:
    """A status on the wire."""
    return Result(error_code=int(status.outcome), error_msg=status.message)


class Endpoints:
    """Creates endpoints on a node with a re-entrant group, remembers them, destroys them in reverse order."""

    def __init__(self, node: LifecycleNode) -> None:
        self.node = node
        self._group = ReentrantCallbackGroup()
        self._stack = ExitStack()
        self._is_closing = False

    def close(self) -> None:
        """Destroy everything; idempotent."""
        self._is_closing = True
        self._stack.close()

    def on_close(self, act: Callable[[], None]) -> None:
        """Run `act` when the endpoints go, before those created earlier."""
        self._stack.callback(act)

    def now_s(self) -> float:
        """ROS time in seconds."""
        return self.node.get_clock().now().nanoseconds * 1e-9

    def publisher(self, message_type: type[MessageT], topic: str, qos: QoSProfile) -> Publisher:
        """A plain publisher."""
        publisher = self.node.create_publisher(message_type, topic, qos)
        self._stack.callback(self.node.destroy_publisher, publisher)
        return publisher

    def subscription(
        self, message_type: type[MessageT], topic: str, qos: QoSProfile, handler: Callable[[MessageT], None]
    ) -> None:
        """A subscription whose handler is never run twice at once; what it raises is logged."""
        group = MutuallyExclusiveCallbackGroup()
        guarded = self._logged(handler)
        subscription = self.node.create_subscription(message_type, topic, guarded, qos, callback_group=group)
        self._stack.callback(self.node.destroy_subscription, subscription)

    def timer(self, period_s: float, handler: Callable[[], None]) -> None:
        """A timer on ROS time; what it raises is logged."""
        group = MutuallyExclusiveCallbackGroup()
        timer = self.node.create_timer(period_s, self._logged(handler), callback_group=group)
        self._stack.callback(self.node.destroy_timer, timer)

    def steady_timer(self, period_s: float, handler: Callable[[], None]) -> None:
        """A timer on the steady clock: for watchdogs, and for who makes ROS time."""
        group = MutuallyExclusiveCallbackGroup()
        clock = Clock(clock_type=ClockType.STEADY_TIME)
        timer = self.node.create_timer(period_s, self._logged(handler), callback_group=group, clock=clock)
        self._stack.callback(self.node.destroy_timer, timer)

    def trigger(self, name: str, act: Callable[[], None]) -> None:
        """A std_srvs/Trigger service; what `act` raises is the answer."""

        def answer(request: Trigger.Request, response: Trigger.Response) -> Trigger.Response:
            status = self._status(name, act)
            response.success, response.message = status.is_success, status.message
            return response

        service = self.node.create_service(Trigger, name, answer, callback_group=self._group)
        self._stack.callback(self.node.destroy_service, service)

    def service(self, service_type: Any, name: str, handler: Handler) -> None:
        """A service; see the module for what the handler returns and raises."""

        def answer(request: Any, response: Any) -> Any:
            response.result = to_result(self._status(name, lambda: handler(request, response)))
            return response

        service = self.node.create_service(service_type, name, answer, callback_group=self._group)
        self._stack.callback(self.node.destroy_service, service)

    def stats(self, read: Callable[[], list[Metric]]) -> None:
        """Serve `~/get_stats`, the node's books for the inspector; books that cannot be read are empty."""

        def answer(request: GetStats.Request, response: GetStats.Response) -> GetStats.Response:
            try:
                response.metrics = read()
            except Exception:  # what escapes into rclpy is raised where the node is spun
                self.node.get_logger().error(f'get_stats failed:\n{traceback.format_exc()}')
            return response

        service = self.node.create_service(GetStats, '~/get_stats', answer, callback_group=self._group)
        self._stack.callback(self.node.destroy_service, service)

    def action(self, action_type: Any, name: str, handler: GoalHandler) -> None:
        """An action; `handler(goal, result)` fills the result. Cancels are accepted; the handler watches them."""

        def execute(goal: ServerGoalHandle) -> Any:
            result = action_type.Result()
            status = self._status(name, lambda: handler(goal, result))
            result.result = to_result(status)
            _finish(goal, status)
            return result

        server = ActionServer(
            self.node,
            action_type,
            name,
            execute_callback=execute,
            goal_callback=lambda request: GoalResponse.ACCEPT,
            cancel_callback=lambda goal: CancelResponse.ACCEPT,
            callback_group=self._group,
        )
        self._stack.callback(server.destroy)

    def service_caller(self, service_type: Any, name: str) -> ServiceCaller:
        """A client that can be called from any callback; every call has a time-out."""
        client = self.node.create_client(service_type, name, callback_group=self._group)
        self._stack.callback(self.node.destroy_client, client)
        return ServiceCaller(client)

    def action_caller(self, action_type: Any, name: str) -> ActionCaller:
        """An action client that can be called from any callback; its goal is cancelled with the deadline."""
        client = OrderedActionClient(self.node, action_type, name, self._group)
        self._stack.callback(client.destroy)
        return ActionCaller(client, action_type)

    def _status(self, name: str, act: Callable[[], Status | None]) -> Status:
        try:
            return act() or Status()
        except KvAgentError as error:
            return Status(outcome=error.outcome, message=str(error))
        except Exception as error:
            self.node.get_logger().error(f'{name} failed:\n{traceback.format_exc()}')
            return Status(outcome=Outcome.INTERNAL, message=f'{type(error).__name__}: {error}; see the log')

    def _logged(self, handler: Callable[..., None]) -> Callable[..., None]:
        def call(*args: Any) -> None:
            try:
                handler(*args)
            except KvAgentError as error:
                self.node.get_logger().warning(str(error), throttle_duration_sec=5.0)
            except Exception as error:
                if self._is_closing and isinstance(error, InvalidHandle):
                    return  # the endpoint it wanted went while it ran
                self.node.get_logger().error(traceback.format_exc(), throttle_duration_sec=5.0)

        return call


def _finish(goal: ServerGoalHandle, status: Status) -> None:
    """End the goal: canceled only when a cancel was asked for, else succeeded or aborted."""
    if not goal.is_active:
        return
    if status.is_success:
        goal.succeed()
    elif status.outcome is Outcome.CANCELED and goal.is_cancel_requested:
        goal.canceled()
    else:
        goal.abort()
