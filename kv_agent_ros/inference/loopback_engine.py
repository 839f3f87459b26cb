"""A public fake: what a server with a prefix cache answers on loopback. Words are its tokens, salts are its tenants.

Counts cached prefixes as SGLang and vLLM do, follows a JSON schema in either dialect, and refuses an empty prompt.
"""

from http.server import BaseHTTPRequestHandler
import json
import threading

from kv_agent_ros.inference.loopback_server import end, piece, reply, send_event, start_stream, usage
from kv_agent_ros.inference.openai_wire import JsonObject

ANSWER = ('Hello', ', ', 'robot', '. ', 'The ', 'cup ', 'is ', 'in ', 'the ', 'kitchen', '.')


class LoopbackEngine:
    """An Answer. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._seen: dict[str, list[list[str]]] = {}  # prompts by salt
        self.num_open = 0  # requests at work now

    def __call__(self, handler: BaseHTTPRequestHandler, body: JsonObject) -> None:
        if handler.path != '/v1/chat/completions':
            reply(handler, 200, 'application/json', '{}')
            return
        prompt = _prompt(body)
        if not prompt:
            reply(handler, 400, 'application/json', '{"error": {"message": "empty prompt", "code": 400}}')
            return
        with self._lock:
            self.num_open += 1
        try:
            self._stream(handler, body, prompt)
        finally:
            with self._lock:
                self.num_open -= 1

    def _stream(self, handler: BaseHTTPRequestHandler, body: JsonObject, prompt: list[str]) -> None:
        num_cached = self._cached(str(body.get('cache_salt') or ''), prompt)
        budget = body.get('max_tokens')
        pieces = _pieces(body)[: budget if isinstance(budget, int) else None]
        start_stream(handler)
        for text in pieces:
            send_event(handler, piece(text))
        send_event(handler, end('stop' if len(pieces) == len(_pieces(body)) else 'length'))
        send_event(handler, usage(len(prompt), num_cached, len(pieces)))
        send_event(handler, '[DONE]')

    def _cached(self, salt: str, prompt: list[str]) -> int:
        with self._lock:
            seen = self._seen.setdefault(salt, [])
            longest = max((_shared(each, prompt) for each in seen), default=0)
            if prompt not in seen:
                seen.append(prompt)
        return min(longest, len(prompt) - 1)


def _prompt(body: JsonObject) -> list[str]:
    messages = body.get('messages')
    return [
        word
        for message in (messages if isinstance(messages, list) else [])
        for word in (message['role'], *message['content'].split())
    ]


def _pieces(body: JsonObject) -> tuple[str, ...]:
    for field, path in (('structured_outputs', ('json',)), ('response_format', ('json_schema', 'schema'))):
        schema = body.get(field)
        for key in path:
            schema = schema.get(key) if isinstance(schema, dict) else None
        if isinstance(schema, dict):
            return tuple(json.dumps(_smallest(schema)))
    return ANSWER


def _smallest(schema: JsonObject) -> object:
    """The first value that the schema allows."""
    if isinstance(choices := schema.get('enum'), list):
        return choices[0]
    if isinstance(properties := schema.get('properties'), dict):
        return {name: _smallest(each) for name, each in properties.items()}
    return {'integer': 0, 'string': '', 'array': [], 'boolean': False}.get(str(schema.get('type')), {})


def _shared(first: list[str], second: list[str]) -> int:
    pairs = zip(first, second, strict=False)
    return next((i for i, (a, b) in enumerate(pairs) if a != b), min(len(first), len(second)))
