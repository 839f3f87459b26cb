"""Calling a peer from inside any callback, without a deadlock and never for ever.

The node is spun by a multi-threaded executor elsewhere; here one only waits on an event. A peer that is missing, silent
or gone is an UnreachableError naming it. A goal that nobody waits for any more is cancelled, even when it is accepted
late.
"""

from collections.abc import Callable
import threading
import time
from typing import Any

from action_msgs.msg import GoalStatus
from rclpy.action import ActionClient
from rclpy.action.client import ClientGoalHandle
from rclpy.client import Client
from rclpy.node import Node
from rclpy.task import Future

from kv_agent_ros.deadline import Deadline
from kv_agent_ros.errors import CanceledError, UnreachableError

POLL_S = 0.05
LOOK_S = 0.5  # how often the graph is asked
FIND_S = 2.0  # how long a server may take to be discovered
ACCEPT_S = 10.0  # how long a goal may take to be accepted on a busy machine
CANCEL_S = 3.0  # how long a cancelled goal may take to end
FIRST_SHARE = 0.4  # of the time of a call that may be asked twice
GONE_S = 2.0  # how long a server may be out of the graph before it counts as gone

GiveUp = Callable[[], str]


class Presence:
    """Whether a server has been out of the graph for GONE_S; a moment's absence does not count."""

    def __init__(self, is_there: Callable[[], bool], clock: Callable[[], float] = time.monotonic) -> None:
        self._is_there = is_there
        self._clock = clock
        self._seen_s = self._looked_s = clock()

    def is_gone(self) -> bool:
        """Look, at most every LOOK_S, and judge."""
        now_s = self._clock()
        if now_s - self._looked_s >= LOOK_S:
            self._looked_s = now_s
            if self._is_there():
                self._seen_s = now_s
        return now_s - self._seen_s > GONE_S


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

    def ask_twice(self, request: Any, timeout_s: float) -> Any:
        """As `call`, for what is safe to repeat: the first answer of a peer that was just restarted can get lost."""
        try:
            return self.call(request, FIRST_SHARE * timeout_s)
        except UnreachableError:
            return self.call(request, (1 - FIRST_SHARE) * timeout_s)

    def call_until(self, request: Any, timeout_s: float, deadline: Deadline) -> Any:
        """As `call`; a `deadline` that is cancelled gives up at once with CanceledError."""
        find_s = min(timeout_s, FIND_S)
        if not self.is_ready and not self._client.wait_for_service(timeout_sec=find_s):
            raise UnreachableError(f'{self.name}: expected a server, got none within {find_s} s')
        future = self._client.call_async(request)
        own, presence = Deadline(timeout_s), Presence(lambda: self.is_ready)

        def give_up() -> str:
            if deadline.is_canceled:
                return 'canceled'
            if presence.is_gone():
                return 'the server went away'
            return f'expected an answer within {timeout_s:.1f} s, got none' if own.is_over else ''

        reason = wait_for(future, give_up)
        if not reason:
            return future.result()
        self._client.remove_pending_request(future)
        if deadline.is_canceled:
            raise CanceledError(f'{self.name}: {reason}')
        raise UnreachableError(f'{self.name}: {reason}')


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

    def call(
        self,
        goal: Any,
        deadline: Deadline,
        on_feedback: Callable[[Any], None],
        must_stop: GiveUp = lambda: '',
    ) -> Any:
        """The result message. When the deadline ends first the goal is cancelled and its result awaited a moment.

        `must_stop` names a reason to cancel before that. Raises UnreachableError when there is no server, when it goes
        away, when it refuses the goal, or when no result comes; CanceledError when the deadline is cancelled before
        the goal was accepted.
        """
        if not self._client.wait_for_server(timeout_sec=min(FIND_S, max(deadline.remaining_s, 0.01))):
            raise UnreachableError(f'{self.name}: expected an action server, got none')
        handle = self._send(goal, deadline, on_feedback)
        result = handle.get_result_async()
        servers = self._servers()
        presence = Presence(lambda: not servers.isdisjoint(self._servers()))

        def give_up() -> str:
            if presence.is_gone():
                return 'the server went away'
            return must_stop() or ('the deadline ended' if deadline.is_over else '')

        reason = wait_for(result, give_up)
        if reason:
            self._cancel(handle, result, reason)
        if reason and not deadline.is_over:
            raise UnreachableError(f'{self.name}: {reason}')
        ended = result.result()
        if ended.status == GoalStatus.STATUS_UNKNOWN:  # the answer of a server that never had the goal
            raise UnreachableError(f'{self.name}: the server went away, another one does not know the goal')
        return ended.result

    def _servers(self) -> frozenset[bytes]:
        """Who serves the action now, by the ids of their status publishers: one that starts again has another id."""
        topic = f'{self.name}/_action/status'
        node: Node = self._client._node  # rclpy has no public reader
        return frozenset(bytes(found.endpoint_gid) for found in node.get_publishers_info_by_topic(topic))

    def _send(self, goal: Any, deadline: Deadline, on_feedback: Callable[[Any], None]) -> ClientGoalHandle:
        sent = self._client.send_goal_async(goal, feedback_callback=lambda message: on_feedback(message.feedback))
        patience = Deadline(ACCEPT_S)
        if wait_for(sent, lambda: 'over' if patience.is_over or deadline.is_canceled else ''):
            sent.add_done_callback(_cancel_late)
            if deadline.is_canceled:
                raise CanceledError(f'{self.name}: canceled before the goal was accepted')
            raise UnreachableError(f'{self.name}: expected the goal to be accepted within {ACCEPT_S} s, got no answer')
        handle = sent.result()
        if not handle.accepted:
            raise UnreachableError(f'{self.name}: the goal was refused')
        return handle

    def _cancel(self, handle: ClientGoalHandle, result: Future, reason: str) -> None:
        handle.cancel_goal_async()
        patience = Deadline(CANCEL_S)
        if wait_for(result, lambda: 'late' if patience.is_over else ''):
            raise UnreachableError(f'{self.name}: {reason}; no result came within {CANCEL_S} s of the cancel')


def _cancel_late(sent: Future) -> None:
    handle = sent.result()
    if handle is not None and handle.accepted:
        handle.cancel_goal_async()


def wait_for(future: Future, give_up: GiveUp) -> str:
    """Wait until the future is done: ''; or until there is a reason to give up: the reason."""
    done = threading.Event()
    future.add_done_callback(lambda _: done.set())
    while not done.wait(POLL_S):
        reason = give_up()
        if reason and not future.done():
            return reason
    return ''
