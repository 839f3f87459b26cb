"""Ties a goal's cancel request to the Deadline of the work that serves it."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
import threading

from rclpy.action.server import ServerGoalHandle

from kv_agent_ros.deadline import Deadline

POLL_S = 0.02


@contextmanager
def cancel_with(
    goal: ServerGoalHandle, deadline: Deadline, must_end: Callable[[], bool] = lambda: False
) -> Iterator[Deadline]:
    """Within the block a cancel request, which rclpy tells only when asked, or `must_end` cancels the deadline."""
    ended = threading.Event()

    def watch() -> None:
        while not ended.wait(POLL_S):
            if goal.is_cancel_requested or not goal.is_active or must_end():
                deadline.cancel()
                return

    watcher = threading.Thread(target=watch, name='cancel_watch', daemon=True)
    watcher.start()
    try:
        yield deadline
    finally:
        ended.set()
        watcher.join(1.0)
