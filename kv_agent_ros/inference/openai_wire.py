"""The JSON of OpenAI's chat completions: request bodies out, streamed chunks in. Pure; knows no sockets.

A server is a stranger: every field is checked, and what does not fit raises ModelUnavailableError.
"""

from dataclasses import dataclass, field
import json

from kv_agent_ros.errors import BadRequestError, ModelUnavailableError
from kv_agent_ros.inference.base import FinishReason, GenerationRequest

JsonObject = dict[str, object]

REQUEST_FAULTS = (400, 413, 422)  # the server understood us and refuses this very request
MAX_QUOTED_CHARS = 200
FINISH_REASONS = {'stop': FinishReason.STOP, 'length': FinishReason.LENGTH, 'abort': FinishReason.CANCELED}


@dataclass(slots=True)
class Reply:
    """An answer as it arrives."""

    pieces: list[str] = field(default_factory=list)
    token_ids: list[int] = field(default_factory=list)  # only from servers that tell
    finish_reasons: list[FinishReason] = field(default_factory=list)
    prompt_tokens: int = 0
    cached_tokens: int = 0
    cached_host_tokens: int = 0  # of those; only from servers that tell
    cached_storage_tokens: int = 0
    generated_tokens: int = 0

    @property
    def text(self) -> str:
        return ''.join(self.pieces)

    @property
    def is_finished(self) -> bool:
        """Whether the server said why the text ends."""
        return bool(self.finish_reasons)


def chat_body(request: GenerationRequest, model: str) -> JsonObject:
    """The body of POST /chat/completions, streamed; raises BadRequestError for a schema that is not JSON."""
    body: JsonObject = {
        'model': model,
        'messages': [{'role': message.role.value, 'content': message.content} for message in request.messages],
        'max_tokens': request.max_new_tokens,
        'temperature': request.temperature,
        'seed': request.seed,
        'stream': True,
        'stream_options': {'include_usage': True},
    }
    if request.json_schema:
        schema = {'name': 'answer', 'strict': True, 'schema': schema_of(request.json_schema)}
        body['response_format'] = {'type': 'json_schema', 'json_schema': schema}
    return body


def read_chunk(text: str, reply: Reply) -> str:
    """Add one streamed chunk, or a whole unstreamed completion, to `reply`; returns the piece of text it brought."""
    chunk = parse_object(text)
    if error := chunk.get('error'):
        is_request_fault = isinstance(error, dict) and error.get('code') in REQUEST_FAULTS
        kind = BadRequestError if is_request_fault else ModelUnavailableError
        raise kind(f'server: expected an answer, got the error {quoted(str(error))}')
    _read_usage(chunk, reply)
    _read_sglang(chunk, reply)
    piece = ''
    for choice in _objects(chunk.get('choices', [])):
        delta = choice.get('delta') or choice.get('message') or {}
        content = delta.get('content') if isinstance(delta, dict) else None
        piece += content if isinstance(content, str) else ''
        reply.token_ids += _ids(choice.get('token_ids'))  # vLLM's
        _read_finish(choice.get('finish_reason'), reply)
    if piece:
        reply.pieces.append(piece)
    return piece


def schema_of(json_schema: str) -> JsonObject:
    """A request's schema; raises BadRequestError for one that is no JSON object."""
    try:
        schema = json.loads(json_schema)
    except ValueError as error:
        raise BadRequestError(f'json_schema: expected a JSON object, got {error}') from error
    if not isinstance(schema, dict):
        raise BadRequestError(f'json_schema: expected a JSON object, got {quoted(json_schema)}')
    return schema


def parse_object(text: str) -> JsonObject:
    """A JSON object of a server; raises ModelUnavailableError for anything else."""
    try:
        value = json.loads(text)
    except ValueError as error:
        raise ModelUnavailableError(f'server: expected JSON, got {quoted(text)}') from error
    if not isinstance(value, dict):
        raise ModelUnavailableError(f'server: expected a JSON object, got {quoted(text)}')
    return value


def quoted(text: str) -> str:
    """A stranger's text, short and on one line, for an error message."""
    return repr(text if len(text) <= MAX_QUOTED_CHARS else text[:MAX_QUOTED_CHARS] + '…')


def _read_usage(chunk: JsonObject, reply: Reply) -> None:
    usage = chunk.get('usage')
    if not isinstance(usage, dict):
        return
    details = usage.get('prompt_tokens_details')
    reply.prompt_tokens = _count(usage.get('prompt_tokens'))
    reply.generated_tokens = _count(usage.get('completion_tokens'))
    cached_tokens = _count(details.get('cached_tokens')) if isinstance(details, dict) else 0
    reply.cached_tokens = min(cached_tokens, reply.prompt_tokens)


def _read_sglang(chunk: JsonObject, reply: Reply) -> None:
    """What SGLang adds at the end: the exact ids of the answer, and where the cached tokens were."""
    extension = chunk.get('sglext')
    if not isinstance(extension, dict):
        return
    details = extension.get('cached_tokens_details')
    if isinstance(details, dict):
        reply.cached_host_tokens = _count(details.get('host'))
        reply.cached_storage_tokens = _count(details.get('storage'))
    choices = extension.get('output_ids')
    reply.token_ids = _ids(choices[0]) if isinstance(choices, list) and choices else []


def _read_finish(reason: object, reply: Reply) -> None:
    if reason is None:
        return
    known = FINISH_REASONS.get(str(reason))
    if known is None:
        raise ModelUnavailableError(f'server: expected finish_reason stop or length, got {quoted(str(reason))}')
    reply.finish_reasons.append(known)


def _ids(value: object) -> list[int]:
    return value if isinstance(value, list) and all(isinstance(token, int) for token in value) else []


def _count(value: object) -> int:
    return value if isinstance(value, int) and value >= 0 else 0


def _objects(value: object) -> list[JsonObject]:
    if not isinstance(value, list) or not all(isinstance(item, dict) for item in value):
        raise ModelUnavailableError(f'server: expected a list of choices, got {quoted(str(value))}')
    return value
