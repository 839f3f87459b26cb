"""Prompts, answers and their costs ↔ messages."""

from typing import Any

from kv_agent_ros.errors import Outcome
from kv_agent_ros.inference.base import (
    FinishReason,
    Generation,
    GenerationRequest,
    Message,
    Role,
    Turn,
    Usage,
)
from kv_agent_ros.msg import ChatMessage, ModelTurn, TokenUsage
from kv_agent_ros.ros.conversions.kv import session_from_msg, session_to_msg
from kv_agent_ros.ros.conversions.values import member, result_to_msg, status_from_msg


def message_to_msg(message: Message) -> ChatMessage:
    """Message → message."""
    return ChatMessage(role=message.role.value, content=message.content, token_ids=list(message.token_ids))


def message_from_msg(message: ChatMessage) -> Message:
    """Message → Message. Raises BadRequestError for an unknown role."""
    return Message(role=member(Role, message.role, 'role'), content=message.content, token_ids=tuple(message.token_ids))


def token_usage_to_msg(usage: Usage) -> TokenUsage:
    """Usage → message."""
    return TokenUsage(
        prompt_tokens=usage.prompt_tokens,
        cached_tokens=usage.cached_tokens,
        cached_host_tokens=usage.cached_host_tokens,
        cached_storage_tokens=usage.cached_storage_tokens,
        computed_tokens=usage.computed_tokens,
        generated_tokens=usage.generated_tokens,
        ttft_s=usage.ttft_s,
        total_s=usage.total_s,
    )


def token_usage_from_msg(message: TokenUsage) -> Usage:
    """Message → Usage."""
    return Usage(
        prompt_tokens=message.prompt_tokens,
        cached_tokens=message.cached_tokens,
        cached_host_tokens=message.cached_host_tokens,
        cached_storage_tokens=message.cached_storage_tokens,
        computed_tokens=message.computed_tokens,
        generated_tokens=message.generated_tokens,
        ttft_s=message.ttft_s,
        total_s=message.total_s,
    )


def turn_to_msg(turn: Turn) -> ModelTurn:
    """Turn → message."""
    return ModelTurn(
        purpose=turn.purpose,
        usage=token_usage_to_msg(turn.usage),
        engine=turn.engine,
        error_code=int(turn.outcome),
    )


def turn_from_msg(message: ModelTurn) -> Turn:
    """Message → Turn. Raises BadRequestError for an unknown error code."""
    return Turn(
        purpose=message.purpose,
        usage=token_usage_from_msg(message.usage),
        engine=message.engine,
        outcome=member(Outcome, message.error_code, 'error_code'),
    )


def fill_generation_request(request: GenerationRequest, timeout_s: float, message: Any) -> None:
    """GenerationRequest → a Generate request or a GenerateStream goal (they have the same fields)."""
    message.session = session_to_msg(request.session)
    message.messages = [message_to_msg(turn) for turn in request.messages]
    message.max_new_tokens = request.max_new_tokens
    message.json_schema = request.json_schema
    message.temperature = float(request.temperature)
    message.seed = request.seed
    message.priority = request.priority
    message.purpose = request.purpose
    message.timeout_s = timeout_s


def read_generation_request(message: Any) -> GenerationRequest:
    """A Generate request or a GenerateStream goal → GenerationRequest."""
    return GenerationRequest(
        session=session_from_msg(message.session),
        messages=tuple(message_from_msg(turn) for turn in message.messages),
        max_new_tokens=message.max_new_tokens,
        json_schema=message.json_schema,
        temperature=float(message.temperature),
        seed=message.seed,
        priority=message.priority,
        purpose=message.purpose,
    )


def fill_generation(generation: Generation, message: Any) -> None:
    """Generation → a Generate response or a GenerateStream result."""
    message.result = result_to_msg(generation.outcome, generation.message)
    message.text = generation.text
    message.token_ids = list(generation.token_ids)
    message.finish_reason = generation.finish_reason.value
    message.usage = token_usage_to_msg(generation.usage)
    message.engine = generation.engine
    message.model = generation.model


def read_generation(message: Any) -> Generation:
    """A Generate response or a GenerateStream result → Generation."""
    status = status_from_msg(message.result)
    known = {reason.value for reason in FinishReason}
    reason = FinishReason(message.finish_reason) if message.finish_reason in known else FinishReason.ERROR
    return Generation(
        outcome=status.outcome,
        message=status.message,
        text=message.text,
        token_ids=tuple(message.token_ids),
        finish_reason=reason,
        usage=token_usage_from_msg(message.usage),
        engine=message.engine,
        model=message.model,
    )
