"""How a generation that was cancelled or came too late is told to the caller."""

from dataclasses import replace

from kv_agent_ros.errors import CanceledError, DeadlineError
from kv_agent_ros.inference.base import FinishReason, Generation


def cut_short(partial: Generation, end: CanceledError | DeadlineError) -> Generation:
    """The partial answer, marked with why it ends here."""
    reason = FinishReason.CANCELED if isinstance(end, CanceledError) else FinishReason.TIMEOUT
    return replace(partial, outcome=end.outcome, finish_reason=reason, message=str(end))
