"""How a driver knows that its gate lives: harness_node says so in `safety_state`, at least every HEARTBEAT_S.

A skill may run for minutes. When the harness dies meanwhile, nobody is left to stop it, so the driver does.
"""

import threading
import time

from kv_agent_ros.errors import UnreachableError
from kv_agent_ros.msg import SafetyState
from kv_agent_ros.ros.endpoints import Endpoints
from kv_agent_ros.ros.qos import STATE

HEARTBEAT_S = 0.25


class GateHeartbeat:
    """Hears one robot's gate; silent until it is heard for the first time. `timeout_s`: silence that is an end."""

    def __init__(self, endpoints: Endpoints, topic: str, timeout_s: float) -> None:
        self._topic = topic
        self._timeout_s = timeout_s
        self._lock = threading.Lock()
        self._heard_s = float('-inf')
        endpoints.subscription(SafetyState, topic, STATE, self._hear)

    def is_silent(self) -> bool:
        """Whether nothing may move for want of a gate."""
        with self._lock:
            return time.monotonic() - self._heard_s > self._timeout_s

    def check(self) -> None:
        """Raise UnreachableError when the gate is silent."""
        if self.is_silent():
            raise UnreachableError(f'{self._topic}: the gate has been silent for {self._timeout_s:g} s; nothing moves')

    def _hear(self, message: SafetyState) -> None:
        with self._lock:
            self._heard_s = time.monotonic()
