"""The seam to language models: messages in, tokens out, with an account of what was cached and what was computed."""

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import Protocol

from kv_agent_ros.deadline import Deadline
from kv_agent_ros.errors import Outcome
from kv_agent_ros.kvcache.block import SessionKey


class Role(Enum):
    """Who speaks in a message."""

    SYSTEM = 'system'
    USER = 'user'
    ASSISTANT = 'assistant'


@dataclass(frozen=True, kw_only=True, slots=True)
class Message:
    """One turn of the prompt. `token_ids`: the exact ids the model generated, so that they are never re-tokenised."""

    role: Role
    content: str
    token_ids: tuple[int, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class GenerationRequest:
    """One call of the model. `json_schema` '' = free text. Greedy at temperature 0."""

    session: SessionKey
    messages: tuple[Message, ...]
    max_new_tokens: int = 256
    json_schema: str = ''
    temperature: float = 0.0
    seed: int = 0
    priority: int = 0  # higher goes first
    purpose: str = ''  # for reports: plan, repair, explain, report


class FinishReason(Enum):
    """Why the text ended."""

    STOP = 'stop'
    LENGTH = 'length'
    CANCELED = 'canceled'
    TIMEOUT = 'timeout'
    ERROR = 'error'


@dataclass(frozen=True, kw_only=True, slots=True)
class Usage:
    """What one turn cost. prompt_tokens = cached_tokens + computed_tokens; times in seconds from the call."""

    prompt_tokens: int = 0
    cached_tokens: int = 0
    cached_host_tokens: int = 0  # of the cached, those that an engine fetched from its host memory
    cached_storage_tokens: int = 0  # and from its storage; the rest was on its device
    computed_tokens: int = 0
    generated_tokens: int = 0
    ttft_s: float = 0.0
    total_s: float = 0.0


@dataclass(frozen=True, kw_only=True, slots=True)
class Generation:
    """The model's answer, or the reason why there is none; untrusted text either way."""

    outcome: Outcome
    text: str = ''
    token_ids: tuple[int, ...] = ()
    finish_reason: FinishReason = FinishReason.STOP
    usage: Usage = Usage()
    engine: str = ''
    model: str = ''
    message: str = ''


@dataclass(frozen=True, kw_only=True, slots=True)
class Turn:
    """One model call as it is reported to people: what for, what it cost, where it ran."""

    purpose: str
    usage: Usage
    engine: str
    outcome: Outcome


@dataclass(frozen=True, kw_only=True, slots=True)
class EngineStats:
    """An engine's books since its start."""

    engine: str
    model: str
    num_requests: int = 0
    num_failures: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    generated_tokens: int = 0
    prefill_s: float = 0.0  # time spent in prefill
    prefilled_tokens: int = 0
    load_s: float = 0.0  # time spent fetching cached blocks
    last_ttft_s: float = 0.0


TokenListener = Callable[[str], None]


def ignore_tokens(text: str) -> None:
    """A TokenListener for callers that wait for the whole answer."""


class InferenceBackend(Protocol):
    """An engine, a server behind a URL, a fleet of engines, a ROS client. Thread-safe."""

    def generate(
        self, request: GenerationRequest, deadline: Deadline, on_text: TokenListener = ignore_tokens
    ) -> Generation:
        """Answer the request; `on_text` gets pieces as they come.

        Cancelled or late work comes back as a Generation with CANCELED or TIMEOUT and the partial text. Raises
        ModelUnavailableError when the engine is broken and BadRequestError when the request is.
        """
        ...

    def stats(self) -> EngineStats:
        """The books."""
        ...

    def close(self) -> None:
        """Free the engine; idempotent."""
        ...
