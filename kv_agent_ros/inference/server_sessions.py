"""Robots' sessions on a server: what each said last, so that it can be brought back before its turn, and be closed.

The KV stays in the server; here are only prompts, and the counts of the server's own replies.
"""

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, replace
import threading
import time

from kv_agent_ros.deadline import Deadline
from kv_agent_ros.errors import Outcome
from kv_agent_ros.inference.base import (
    EngineStats,
    Generation,
    GenerationRequest,
    InferenceBackend,
    Message,
    Role,
    TokenListener,
    ignore_tokens,
)
from kv_agent_ros.inference.warm_up import warm_up
from kv_agent_ros.kvcache.base import Prefetched
from kv_agent_ros.kvcache.block import SessionKey, SessionUsage

FRESH_S = 10.0  # what was used so lately is where its next turn needs it
MAX_SESSIONS = 256  # the longest silent ones are forgotten

CloseSession = Callable[[SessionKey, Deadline], None]
UsageListener = Callable[[SessionUsage], None]


def nothing_to_close(session: SessionKey, deadline: Deadline) -> None:
    """A CloseSession for servers that do not know sessions."""


def tell_nobody(usage: SessionUsage) -> None:
    """A UsageListener while there is none."""


@dataclass(frozen=True, kw_only=True, slots=True)
class _Session:
    request: GenerationRequest  # goes on where the last answer ended
    usage: SessionUsage
    used_at_s: float


class ServerSessions:
    """An InferenceBackend around one server. `block_tokens`: tokens a block of its cache, 0 where it does not tell."""

    def __init__(
        self,
        backend: InferenceBackend,
        *,
        block_tokens: int,
        close_session: CloseSession = nothing_to_close,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._backend = backend
        self._block_tokens = block_tokens
        self._close_session = close_session
        self._clock = clock
        self._lock = threading.Lock()
        self._sessions: OrderedDict[SessionKey, _Session] = OrderedDict()
        self._warming: dict[SessionKey, Deadline] = {}
        self._turns: dict[object, SessionKey] = {}  # under way, without those whose session was closed meanwhile
        self._tell: UsageListener = tell_nobody

    def listen(self, tell: UsageListener) -> None:
        """From now on, `tell` hears of a session's counts after each of its turns."""
        self._tell = tell

    def generate(
        self, request: GenerationRequest, deadline: Deadline, on_text: TokenListener = ignore_tokens
    ) -> Generation:
        """See InferenceBackend. A turn that ends after its session was closed brings nothing of it back."""
        turn = object()
        with self._lock:
            self._turns[turn] = request.session
        try:
            generation = self._backend.generate(request, deadline, on_text)
            if generation.outcome is Outcome.SUCCESS:
                for usage in self._enter(turn, request, generation):
                    self._tell(usage)
            return generation
        finally:
            with self._lock:
                self._turns.pop(turn, None)

    def warm(self, session: SessionKey, deadline: Deadline) -> Prefetched:
        """Bring a session's prompt to where its next turn starts; says how many of its blocks are there then.

        At once where it was used a moment ago, where it has said nothing yet, and where another call is at it. Raises
        ModelUnavailableError and BadRequestError.
        """
        with self._lock:
            known = self._sessions.get(session)
            if known is None:
                return Prefetched(num_blocks=0, is_complete=True)
            if known.used_at_s + FRESH_S > self._clock():
                return Prefetched(num_blocks=known.usage.num_blocks, is_complete=True)
            if session in self._warming:
                return Prefetched(num_blocks=0, is_complete=False)
            own = self._warming[session] = deadline.within(max(deadline.remaining_s, 1e-9))
        try:
            done = warm_up(self._backend, known.request, own)
        finally:
            with self._lock:
                del self._warming[session]
        if done.outcome is not Outcome.SUCCESS:
            return Prefetched(num_blocks=0, is_complete=False)
        self._refresh(session)
        return Prefetched(num_blocks=self._num_blocks(done.usage.prompt_tokens), is_complete=True)

    def forget(self, session: SessionKey, deadline: Deadline) -> int:
        """Close a session in the server; how many blocks it had there, none for an unknown one. Idempotent.

        Raises ModelUnavailableError, CanceledError or DeadlineError where the server cannot be told.
        """
        with self._lock:
            known = self._sessions.pop(session, None)
            self._turns = {turn: of for turn, of in self._turns.items() if of != session}
            if session in self._warming:
                self._warming[session].cancel()
        self._close_session(session, deadline)
        return known.usage.num_blocks if known else 0

    def stats(self) -> EngineStats:
        """The books; warm-ups are among the requests."""
        return self._backend.stats()

    def close(self) -> None:
        """Close the backend; idempotent."""
        with self._lock:
            for deadline in self._warming.values():
                deadline.cancel()
        self._backend.close()

    def _enter(self, turn: object, request: GenerationRequest, generation: Generation) -> tuple[SessionUsage, ...]:
        said = Message(role=Role.ASSISTANT, content=generation.text, token_ids=generation.token_ids)
        counted = generation.usage
        with self._lock:
            if turn not in self._turns:
                return ()
            known = self._sessions.pop(request.session, None)
            usage = SessionUsage(
                session=request.session,
                num_blocks=self._num_blocks(counted.prompt_tokens),
                is_pinned=False,
                prompt_tokens=counted.prompt_tokens + (known.usage.prompt_tokens if known else 0),
                cached_tokens=counted.cached_tokens + (known.usage.cached_tokens if known else 0),
            )
            self._sessions[request.session] = _Session(
                request=replace(request, messages=(*request.messages, said)), usage=usage, used_at_s=self._clock()
            )
            while len(self._sessions) > MAX_SESSIONS:
                self._sessions.popitem(last=False)
        return (usage,)

    def _refresh(self, session: SessionKey) -> None:
        with self._lock:
            if session in self._sessions:
                self._sessions[session] = replace(self._sessions[session], used_at_s=self._clock())

    def _num_blocks(self, num_tokens: int) -> int:
        return num_tokens // self._block_tokens if self._block_tokens else 0
