"""The one vocabulary of outcomes and the error tree of the whole suite.

`Outcome` is mirrored by the constants of msg/Result.msg (a test compares them). Refusals, misses and failed steps are
values that carry an Outcome; the exceptions below mean that a machine, a file or a peer is broken.
"""

from dataclasses import dataclass
from enum import IntEnum


class Outcome(IntEnum):
    """How a request, a step or a task ended; the number is the `error_code` on every interface."""

    SUCCESS = 0
    """Done, and the post-condition was observed after the act."""
    PRECONDITION_FAILURE = 1
    """The world does not allow the step now (object missing, not holding, out of reach)."""
    PLANNING_FAILURE = 2
    """No acceptable plan, or no path."""
    EXECUTION_FAILURE = 3
    """The robot tried and failed (slip, blocked path)."""
    POSTCONDITION_FAILURE = 4
    """The robot reported success, the world disagrees."""
    INVALID_ACTION = 5
    """Unknown skill, argument or name."""
    CANCELED = 6
    """Stopped on request."""
    REJECTED_BY_GATE = 7
    """The harness refused; the message carries rule ids."""
    NEEDS_APPROVAL = 8
    """The harness wants a person to decide first."""
    TIMEOUT = 9
    """A deadline passed."""
    ROBOT_NOT_FOUND = 10
    """No such robot here."""
    MODEL_UNAVAILABLE = 11
    """The language model cannot be reached or failed."""
    EMERGENCY_STOPPED = 12
    """The e-stop latch is set; a person must reset it."""
    BAD_REQUEST = 13
    """The request itself is malformed."""
    INTERNAL = 14
    """A bug or a broken machine; see the log."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Status:
    """An outcome with a sentence for a person; the common head of every reply."""

    outcome: Outcome = Outcome.SUCCESS
    message: str = ''

    @property
    def is_success(self) -> bool:
        return self.outcome is Outcome.SUCCESS


class KvAgentError(Exception):
    """Root of our errors. The message says what, expected, got, and what to do."""

    outcome = Outcome.INTERNAL


class ConfigError(KvAgentError):
    """A parameter or file of the configuration is wrong."""

    outcome = Outcome.BAD_REQUEST


class BadRequestError(KvAgentError):
    """A caller's request is malformed."""

    outcome = Outcome.BAD_REQUEST


class StoreError(KvAgentError):
    """A storage tier failed; callers treat it as a miss and warn."""


class AuditError(KvAgentError):
    """The audit log cannot be written; callers stop."""


class ModelUnavailableError(KvAgentError):
    """The model or its server is missing, unreachable or broken."""

    outcome = Outcome.MODEL_UNAVAILABLE


class UnreachableError(KvAgentError):
    """A peer (node, service, robot driver) did not answer in time."""

    outcome = Outcome.TIMEOUT


class CanceledError(KvAgentError):
    """Raised inside long work when its Deadline was cancelled."""

    outcome = Outcome.CANCELED


class DeadlineError(KvAgentError):
    """Raised inside long work when its Deadline has passed."""

    outcome = Outcome.TIMEOUT
