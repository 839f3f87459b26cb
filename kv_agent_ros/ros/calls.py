"""Calling a peer from inside any callback, without a deadlock and never for ever.

The node is spun by a multi-threaded executor elsewhere; here one only waits on an event. A peer that is missing or
silent is an UnreachableError naming it.
"""

from collections.abc import Callable
import threading
from typing import Any

from rclpy.action import ActionClient
from rclpy.client import Client
from rclpy.task import Future

from kv_agent_ros.deadline import Deadline
from kv_agent_ros.errors import CanceledError, UnreachableError

POLL_S = 0.05
CANCEL_S = 3.0


class ServiceCaller:
    """A service client with synchronous, bounded calls."""

    def __init__(self, client: Client) -> None:
        self._client = client

    @property
    def name(self) -> str:
        return str(self._client.srv_name)

    @property
    def is_ready(self) -> bool:
        """Whether a server is there now."""
        return bool(self._client.service_is_ready())

    def call(self, request: Any, timeout_s: float) -> Any:
        """The response. Raises UnreachableError after `timeout_s` and removes the pending request."""
        return self.call_until(request, timeout_s, Deadline(timeout_s))

    def call_until(self, request: Any, timeout_s: float, deadline: Deadline) -> Any:
        """As `call`; a `deadline` that is cancelled gives up at once with CanceledError."""
        if not self._client.service_is_ready() and not self._client.wait_for_service(timeout_sec=min(timeout_s, 2.0)):
            raise UnreachableError(f'{self.name}: expected a server, got none within {min(timeout_s, 2.0)} s')
        future = self._client.call_async(request)
        own = Deadline(timeout_s)
        while not wait_for(future, Deadline(POLL_S)):
            if not (own.is_over or deadline.is_canceled):
                continue
            self._client.remove_pending_request(future)
            if deadline.is_canceled:
                raise CanceledError(f'{self.name}: canceled')
            raise UnreachableError(f'{self.name}: expected an answer within {timeout_s:.1f} s, got none')
        return future.result()


class ActionCaller:
    """An action client with synchronous, bounded, cancellable goals."""

    def __init__(self, client: ActionClient, action_type: Any) -> None:
        self._client = client
        self._action_type = action_type

    @property
    def name(self) -> str:
        return str(self._client._action_name)  # rclpy has no public reader

    @property
    def is_ready(self) -> bool:
        """Whether a server is there now."""
        return bool(self._client.server_is_ready())

    def call(self, goal: Any, deadline: Deadline, on_feedback: Callable[[Any], None]) -> Any:
        """The result message. When the deadline ends first the goal is cancelled and its result awaited a moment.

        Raises UnreachableError when there is no server, when the goal is refused, or when no result comes.
        """
        if not self._client.wait_for_server(timeout_sec=min(2.0, max(deadline.remaining_s, 0.01))):
            raise UnreachableError(f'{self.name}: expected an action server, got none')
        sent = self._client.send_goal_async(goal, feedback_callback=lambda message: on_feedback(message.feedback))
        if not wait_for(sent, Deadline(CANCEL_S)):
            raise UnreachableError(f'{self.name}: expected the goal to be accepted, got no answer')
        handle = sent.result()
        if not handle.accepted:
            raise UnreachableError(f'{self.name}: the goal was refused')
        result = handle.get_result_async()
        if not wait_for(result, deadline):
            wait_for(handle.cancel_goal_async(), Deadline(CANCEL_S))
            if not wait_for(result, Deadline(CANCEL_S)):
                raise UnreachableError(f'{self.name}: expected a result after cancel, got none in {CANCEL_S} s')
        return result.result().result


def wait_for(future: Future, deadline: Deadline) -> bool:
    """Wait until the future is done; False when the deadline ends first."""
    done = threading.Event()
    future.add_done_callback(lambda _: done.set())
    while not done.wait(min(POLL_S, max(deadline.remaining_s, 0.001))):
        if deadline.is_over:
            return bool(future.done())
    return True
