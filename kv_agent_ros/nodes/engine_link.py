"""kv_cache_node's side of a server behind inference_node: its sessions are told of, its events are followed.

An engine that shares our blocks offers none of these services, and then nothing is asked.
"""

import threading
import traceback
from typing import Any

from kv_agent_ros.build.cache import CacheCore
from kv_agent_ros.errors import UnreachableError
from kv_agent_ros.inference.engine_mirror import MirrorState
from kv_agent_ros.inference.kv_events import EventFollower
from kv_agent_ros.kvcache.base import Prefetched, PrefetchPolicy
from kv_agent_ros.msg import SessionUsage as SessionUsageMsg
from kv_agent_ros.ros.calls import ServiceCaller
from kv_agent_ros.ros.conversions.kv import session_from_msg, usage_from_msg
from kv_agent_ros.ros.endpoints import Endpoints
from kv_agent_ros.ros.qos import EVENT
from kv_agent_ros.srv import PrefetchPrefix, ReleaseSession

ANSWER_S = 0.5  # beside what the caller waits for; an agent waits a second for both
CLOSE_S = 3.0
POLL_S = 0.1
PAUSE_S = 1.0  # after a poll that failed
NOTHING = Prefetched(num_blocks=0, is_complete=True)


class EngineLink:
    """The sessions of the server. One that is not there, or slow, is done without."""

    def __init__(self, core: CacheCore, endpoints: Endpoints) -> None:
        self._view = core.engine
        self._logger = endpoints.node.get_logger()
        self._prefetch = endpoints.service_caller(PrefetchPrefix, 'inference_node/prefetch_prefix')
        self._end = endpoints.service_caller(ReleaseSession, 'inference_node/release_session')

    def prefetch(self, request: PrefetchPrefix.Request) -> Prefetched:
        """Bring the session's prompt to the server's memory."""
        is_waiting = request.policy != PrefetchPolicy.BEST_EFFORT.value
        reply = self._ask(self._prefetch, request, ANSWER_S + (request.timeout_s if is_waiting else 0.0))
        return NOTHING if reply is None else Prefetched(num_blocks=reply.num_blocks, is_complete=reply.is_complete)

    def warm(self, session: Any) -> Prefetched:
        """The same, without waiting for it."""
        return self.prefetch(PrefetchPrefix.Request(session=session, policy=PrefetchPolicy.BEST_EFFORT.value))

    def end(self, session: Any) -> int:
        """Close the session there; how many blocks it had."""
        self._view.forget(session_from_msg(session))
        reply = self._ask(self._end, ReleaseSession.Request(session=session), CLOSE_S)
        return 0 if reply is None else int(reply.num_blocks)

    def _ask(self, caller: ServiceCaller, request: Any, timeout_s: float) -> Any:
        if not caller.is_ready:
            return None
        try:
            return caller.call(request, timeout_s)
        except UnreachableError as error:
            self._logger.warning(f'the server is not told: {error}', throttle_duration_sec=5.0)
            return None


class MirrorThread:
    """The one thread that follows a server's events; says in the log how far the mirror can be trusted."""

    def __init__(self, follower: EventFollower, endpoints: Endpoints) -> None:
        self._follower = follower
        self._logger = endpoints.node.get_logger()
        self._state = MirrorState.WAITING
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._follow, name='engine_events', daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Wait until it has let go of the follower."""
        self._ended.set()
        self._thread.join()

    def _follow(self) -> None:
        while not self._ended.is_set():
            try:
                self._follower.poll(POLL_S)
                self._note(self._follower.state)
            except Exception:  # a bug in the mirror must not take the cache down
                self._logger.error(f'events of the server:\n{traceback.format_exc()}', throttle_duration_sec=5.0)
                self._ended.wait(PAUSE_S)

    def _note(self, state: MirrorState) -> None:
        if state is not self._state:
            self._state = state
            said = f"the mirror of the server's cache is {state.value}"
            if state is MirrorState.DEGRADED:  # a line of its own: rclpy refuses another severity from the same one
                self._logger.warning(said)
            else:
                self._logger.info(said)


def serve_engine(core: CacheCore, endpoints: Endpoints) -> EngineLink:
    """The topic of the server's counts, the threads that follow its events, and the way to its sessions."""
    endpoints.subscription(
        SessionUsageMsg, 'engine_sessions', EVENT, lambda message: core.engine.hear(usage_from_msg(message))
    )
    for follower in core.followers:
        endpoints.on_close(MirrorThread(follower, endpoints).close)
    return EngineLink(core, endpoints)
