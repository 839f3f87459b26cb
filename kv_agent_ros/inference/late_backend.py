"""An engine that is connected when it is first needed, so that a server that is away holds up nobody at the start."""

from collections.abc import Callable
import threading

from kv_agent_ros.deadline import Deadline
from kv_agent_ros.errors import CanceledError, DeadlineError, ModelUnavailableError
from kv_agent_ros.inference.base import (
    EngineStats,
    Generation,
    GenerationRequest,
    InferenceBackend,
    TokenListener,
    ignore_tokens,
)
from kv_agent_ros.inference.endings import cut_short
from kv_agent_ros.inference.engine_books import EngineBooks, added

Connect = Callable[[Deadline], InferenceBackend]


class LateBackend:
    """An InferenceBackend around the one that `connect` makes; a request whose attempt fails is a failed request."""

    def __init__(self, connect: Connect, *, engine: str, model: str) -> None:
        self._connect = connect
        self._before = EngineBooks(engine=engine, model=model)  # requests that found no server
        self._lock = threading.Lock()
        self._connected: list[InferenceBackend] = []  # none or one
        self._is_closed = False

    def generate(
        self, request: GenerationRequest, deadline: Deadline, on_text: TokenListener = ignore_tokens
    ) -> Generation:
        """See InferenceBackend."""
        try:
            backend = self._backend(deadline)
        except (CanceledError, DeadlineError) as end:
            books = self._before.stats
            missing = Generation(outcome=end.outcome, engine=books.engine, model=books.model)
            return self._before.enter(cut_short(missing, end), prefill_s=0.0, load_s=0.0)
        except ModelUnavailableError:
            self._before.enter_failure()
            raise
        return backend.generate(request, deadline, on_text)

    def stats(self) -> EngineStats:
        """The books; requests that found no server are among them."""
        before = self._before.stats
        with self._lock:
            return added(before, self._connected[0].stats()) if self._connected else before

    def close(self) -> None:
        """Close the engine if there is one. Idempotent."""
        with self._lock:
            self._is_closed = True
            for backend in self._connected:
                backend.close()

    def _backend(self, deadline: Deadline) -> InferenceBackend:
        with self._lock:
            if self._connected or self._is_closed:
                return self._found()
        made = self._connect(deadline)  # outside the lock: two at once may connect, the first one stays
        with self._lock:
            if self._connected or self._is_closed:
                made.close()
            else:
                self._connected.append(made)
            return self._found()

    def _found(self) -> InferenceBackend:
        if not self._connected:
            raise ModelUnavailableError(
                f'engine {self._before.stats.engine}: expected an open engine, got a closed one'
            )
        return self._connected[0]
