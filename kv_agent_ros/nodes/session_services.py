"""Robots' sessions on a server as inference_node offers them to kv_cache_node: warmed, closed, counted on a topic."""

from concurrent.futures import ThreadPoolExecutor, TimeoutError
import math

from kv_agent_ros.deadline import Deadline
from kv_agent_ros.errors import BadRequestError, KvAgentError
from kv_agent_ros.inference.server_sessions import ServerSessions, tell_nobody
from kv_agent_ros.kvcache.base import Prefetched, PrefetchPolicy
from kv_agent_ros.kvcache.block import SessionKey
from kv_agent_ros.msg import SessionUsage as SessionUsageMsg
from kv_agent_ros.ros.conversions.kv import session_from_msg, usage_to_msg
from kv_agent_ros.ros.conversions.values import member
from kv_agent_ros.ros.endpoints import Endpoints
from kv_agent_ros.ros.qos import EVENT
from kv_agent_ros.srv import PrefetchPrefix, ReleaseSession

WARM_S = 60.0  # a warm-up that nobody waits for ends after
CLOSE_S = 2.0
NUM_WARMERS = 4
UNDER_WAY = Prefetched(num_blocks=0, is_complete=False)


class SessionService:
    """The callbacks."""

    def __init__(self, sessions: ServerSessions, endpoints: Endpoints) -> None:
        self._sessions = sessions
        self._logger = endpoints.node.get_logger()
        self._warmers = ThreadPoolExecutor(max_workers=NUM_WARMERS, thread_name_prefix='warm-up')

    def prefetch(self, request: PrefetchPrefix.Request, response: PrefetchPrefix.Response) -> None:
        """prefetch_prefix: what the session said last, whatever tokens are named."""
        policy = member(PrefetchPolicy, request.policy, 'policy')
        if not 0 <= request.timeout_s < math.inf:
            raise BadRequestError(f'timeout_s: expected seconds >= 0, got {request.timeout_s!r}')
        wait_s = 0.0 if policy is PrefetchPolicy.BEST_EFFORT else request.timeout_s
        work_s = max(wait_s, 1e-9) if policy is PrefetchPolicy.TIMEOUT else WARM_S
        work = self._warmers.submit(self._warm, session_from_msg(request.session), Deadline(work_s))
        try:
            done = work.result(wait_s)
        except TimeoutError:
            done = UNDER_WAY
        response.num_blocks, response.is_complete = done.num_blocks, done.is_complete

    def end_session(self, request: ReleaseSession.Request, response: ReleaseSession.Response) -> None:
        """release_session."""
        response.num_blocks = self._sessions.forget(session_from_msg(request.session), Deadline(CLOSE_S))

    def close(self) -> None:
        """Warm-ups that wait are dropped; the backend's close ends the others."""
        self._warmers.shutdown(wait=False, cancel_futures=True)

    def _warm(self, session: SessionKey, deadline: Deadline) -> Prefetched:
        try:
            return self._sessions.warm(session, deadline)
        except KvAgentError as error:  # costs only time: the turn itself says what is wrong
            self._logger.warning(f'{session.robot_id}: not warmed: {error}', throttle_duration_sec=5.0)
            return UNDER_WAY


def serve_sessions(sessions: ServerSessions, endpoints: Endpoints) -> None:
    """The services, below the node's own name, and the topic of what the server's replies count."""
    service = SessionService(sessions, endpoints)
    publisher = endpoints.publisher(SessionUsageMsg, 'engine_sessions', EVENT)
    sessions.listen(lambda usage: publisher.publish(usage_to_msg(usage)))
    endpoints.on_close(lambda: sessions.listen(tell_nobody))
    endpoints.on_close(service.close)
    endpoints.service(PrefetchPrefix, '~/prefetch_prefix', service.prefetch)
    endpoints.service(ReleaseSession, '~/release_session', service.end_session)
