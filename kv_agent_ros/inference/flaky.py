"""A public fake: an engine that fails when it is told to, before its answer or in the middle of it."""

from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum
import threading

from kv_agent_ros.deadline import Deadline
from kv_agent_ros.errors import ModelUnavailableError
from kv_agent_ros.inference.base import (
    EngineStats,
    Generation,
    GenerationRequest,
    InferenceBackend,
    TokenListener,
    ignore_tokens,
)

SILENT_S = 0.005  # between two looks at the deadline


class Fault(Enum):
    """What happens to a request."""

    NONE = 'none'
    """It is answered."""
    LOST = 'lost'
    """The engine is gone."""
    SILENT = 'silent'
    """The engine says nothing until the deadline has passed."""


@dataclass(frozen=True, kw_only=True, slots=True)
class FaultPlan:
    """One request's fault, when so many pieces were said; an answer that ends sooner ends well."""

    fault: Fault
    after_pieces: int = 0


class FlakyBackend:
    """An InferenceBackend around another one; each request takes the next plan, those beyond the last have no fault."""

    def __init__(self, backend: InferenceBackend, plans: Iterable[FaultPlan]) -> None:
        self._backend = backend
        self._plans = iter(plans)
        self._lock = threading.Lock()

    def generate(
        self, request: GenerationRequest, deadline: Deadline, on_text: TokenListener = ignore_tokens
    ) -> Generation:
        """See InferenceBackend."""
        with self._lock:
            plan = next(self._plans, FaultPlan(fault=Fault.NONE))
        num_pieces = 0

        def listen(piece: str) -> None:
            nonlocal num_pieces
            self._happen(plan, num_pieces, deadline)
            num_pieces += 1
            on_text(piece)

        self._happen(plan, num_pieces, deadline)
        return self._backend.generate(request, deadline, listen)

    def stats(self) -> EngineStats:
        """Those of the engine within."""
        return self._backend.stats()

    def close(self) -> None:
        """Close the engine within."""
        self._backend.close()

    def _happen(self, plan: FaultPlan, num_pieces: int, deadline: Deadline) -> None:
        if plan.fault is Fault.NONE or num_pieces != plan.after_pieces:
            return
        if plan.fault is Fault.LOST:
            raise ModelUnavailableError(f'flaky engine: expected to be there, got lost after {num_pieces} pieces')
        while not deadline.wait(SILENT_S):
            pass
