"""Asks a server again that was lost: soon after, while nothing was said, and whenever it is there again later.

A server that comes back is looked at first, since it may have become another one.
"""

from collections.abc import Callable
import itertools

from kv_agent_ros.deadline import Deadline
from kv_agent_ros.errors import CanceledError, DeadlineError
from kv_agent_ros.inference.base import EngineStats, Generation, GenerationRequest, TokenListener, ignore_tokens
from kv_agent_ros.inference.openai_http import OpenAiHttpBackend, ServerLostError

PAUSES_S = (0.2, 0.5, 1.0)  # before each repetition
PROBE_S = 5.0

CheckAgain = Callable[[Deadline], None]


class ReturningBackend:
    """An InferenceBackend over one server. `check_again` raises ModelUnavailableError when it is no longer the same."""

    def __init__(self, http: OpenAiHttpBackend, check_again: CheckAgain) -> None:
        self._http = http
        self._check_again = check_again
        self._was_lost = False

    def generate(
        self, request: GenerationRequest, deadline: Deadline, on_text: TokenListener = ignore_tokens
    ) -> Generation:
        """See InferenceBackend. A lost server is asked again, until it has said something or for some seconds."""
        pieces: list[str] = []

        def listen(piece: str) -> None:
            pieces.append(piece)
            on_text(piece)

        for number in itertools.count():
            try:
                self._look(deadline)
                return self._http.generate(request, deadline, listen)
            except ServerLostError:
                self._was_lost = True
                if pieces or number == len(PAUSES_S):
                    raise
                if deadline.wait(PAUSES_S[number]) and not deadline.is_canceled:
                    raise
        raise AssertionError('unreachable')

    def stats(self) -> EngineStats:
        """The books; each repetition counts as a request."""
        return self._http.stats()

    def close(self) -> None:
        """Refuse further requests; the server goes on. Idempotent."""
        self._http.close()

    def _look(self, deadline: Deadline) -> None:
        if not self._was_lost or deadline.is_over:
            return
        try:
            self._check_again(deadline.within(PROBE_S))
        except (CanceledError, DeadlineError) as end:
            if deadline.is_over:
                return  # the request itself says so
            raise ServerLostError(f'expected the lost server to answer in {PROBE_S} s, got nothing') from end
        self._was_lost = False
