"""Who listens to a task must not be able to end it: a failing listener is told of once, and the robot goes on."""

from collections.abc import Callable
import traceback

from kv_agent_ros.agent.journal import ProgressListener
from kv_agent_ros.agent.task import TaskProgress


def isolated(listener: ProgressListener, tell: Callable[[str], object]) -> ProgressListener:
    """The listener, its first failure told with the traceback, later ones swallowed."""
    failures: list[str] = []

    def listen(progress: TaskProgress) -> None:
        try:
            listener(progress)
        except Exception:
            if not failures:
                tell(f'a listener of {progress.task_id} failed:\n{traceback.format_exc()}')
            failures.append(progress.task_id)

    return listen
