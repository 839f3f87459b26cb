"""The emergency-stop latch: set at once, kept over restarts in a small file, reset by a person only.

A reset allows motion again and starts none. A file that cannot be read latches every robot.
"""

from collections import Counter
from collections.abc import Iterable, Mapping
import json
from pathlib import Path
import threading

from kv_agent_ros.errors import AuditError
from kv_agent_ros.harness.audit_record import canonical
from kv_agent_ros.harness.durable import Write, replace_durably


class EstopLatch:
    """Which robots are stopped, and why. Thread-safe. Opened by `open_estop_latch`."""

    def __init__(self, path: Path, reasons: Mapping[str, str], write: Write) -> None:
        self._path = path
        self._reasons = dict(reasons)
        self._write = write
        self._lock = threading.Lock()  # of the reasons, never held while writing
        self._disk = threading.Lock()  # of the file; taken before the other
        self._num_stops: Counter[str] = Counter()  # of each robot

    def is_latched(self, robot_id: str) -> bool:
        """Whether that robot must stand still."""
        with self._lock:
            return robot_id in self._reasons

    def reason(self, robot_id: str) -> str:
        """Why it was stopped; '' when it is not."""
        with self._lock:
            return self._reasons.get(robot_id, '')

    def latch(self, robot_id: str, reason: str) -> None:
        """Stop that robot from now on; in memory only, so that nothing can delay it. Call `save` after."""
        with self._lock:
            self._reasons[robot_id] = reason
            self._num_stops[robot_id] += 1

    def save(self) -> None:
        """Keep the latch over a restart. Raises AuditError."""
        with self._disk:
            with self._lock:
                reasons = dict(self._reasons)
            self._save(reasons)

    def release(self, robot_id: str) -> None:
        """Allow motion again, once that is on the disk; a stop that comes meanwhile stays. Raises AuditError."""
        with self._disk:
            with self._lock:
                num_stops = self._num_stops[robot_id]
                left = {name: reason for name, reason in self._reasons.items() if name != robot_id}
            self._save(left)
            with self._lock:
                if self._num_stops[robot_id] == num_stops:
                    self._reasons.pop(robot_id, None)

    def _save(self, reasons: Mapping[str, str]) -> None:
        try:
            self._write(self._path, canonical(reasons))
        except OSError as error:
            raise AuditError(f'e-stop latch {self._path}: cannot be written: {error}; free the disk') from error


def open_estop_latch(path: Path, robot_ids: Iterable[str], *, write: Write = replace_durably) -> EstopLatch:
    """The latch as it was left; all of `robot_ids` latched when the file is unreadable, none when it is missing."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        reasons = json.loads(path.read_bytes()) if path.exists() else {}
        is_sound = isinstance(reasons, dict) and all(isinstance(reason, str) for reason in reasons.values())
    except (OSError, ValueError):
        is_sound = False
    if not is_sound:
        reasons = dict.fromkeys(robot_ids, f'the latch file {path.name} is unreadable')
    return EstopLatch(path, reasons, write)
