"""A public fake: an HTTP server on loopback that speaks the dialects of OpenAI, SGLang and vLLM, or what a test wants.

Real sockets and real streams; only the model behind them is missing.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
import json
import threading

from kv_agent_ros.inference.openai_wire import JsonObject

Answer = Callable[[BaseHTTPRequestHandler, JsonObject], None]


def vllm_pages(*models: str) -> dict[str, JsonObject]:
    """What a vLLM server that serves these models says of itself."""
    served = [{'id': each, 'owned_by': 'vllm', 'root': each, 'parent': None, 'max_model_len': 8192} for each in models]
    return {'/v1/models': {'object': 'list', 'data': served}, '/version': {'version': '0.32.0'}}


class LoopbackServer:
    """The server's state: `answer` writes the reply to each POST; the rest is what clients sent and what GET says."""

    def __init__(self, answer: Answer) -> None:
        self.answer = answer
        self.base_url = ''
        self.bodies: list[JsonObject] = []
        self.headers: list[dict[str, str]] = []
        self.model: JsonObject = {'model_path': 'org/real-model', 'is_generation': True}
        self.pages = vllm_pages('org/real-model')  # by path; `model` for all others
        self.missing_paths: set[str] = set()
        self.client_left = threading.Event()
        self.is_ending = threading.Event()


@contextmanager
def serving(answer: Answer) -> Iterator[LoopbackServer]:
    """A running server on a port of its own."""
    state = LoopbackServer(answer)

    class Requests(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            num_bytes = int(self.headers['content-length'])
            text = self.rfile.read(num_bytes)
            if len(text) < num_bytes:
                state.client_left.set()
                return
            body = json.loads(text)
            state.bodies.append(body)
            state.headers.append(dict(self.headers))
            try:
                state.answer(self, body)
            except (BrokenPipeError, ConnectionResetError):
                state.client_left.set()

        def do_GET(self) -> None:
            if self.path in state.missing_paths:
                self.send_error(404)
                return
            reply(self, 200, 'application/json', json.dumps(state.pages.get(self.path, state.model)))

        def log_message(self, format: str, *arguments: object) -> None:
            pass

    server = ThreadingHTTPServer(('127.0.0.1', 0), Requests)
    server.daemon_threads = True
    state.base_url = f'http://127.0.0.1:{server.server_port}'
    thread = threading.Thread(target=server.serve_forever, kwargs={'poll_interval': 0.01}, daemon=True)
    thread.start()
    try:
        yield state
    finally:
        state.is_ending.set()
        server.shutdown()
        server.server_close()
        thread.join(5)


def reply(handler: BaseHTTPRequestHandler, status: int, content_type: str, text: str) -> None:
    """A whole reply."""
    handler.send_response(status)
    handler.send_header('content-type', content_type)
    handler.send_header('content-length', str(len(text.encode())))
    handler.end_headers()
    handler.wfile.write(text.encode())


def start_stream(handler: BaseHTTPRequestHandler) -> None:
    """The head of a reply of server-sent events."""
    handler.send_response(200)
    handler.send_header('content-type', 'text/event-stream')
    handler.send_header('connection', 'close')
    handler.end_headers()


def send_event(handler: BaseHTTPRequestHandler, payload: JsonObject | str) -> None:
    """One event."""
    text = payload if isinstance(payload, str) else json.dumps(payload)
    handler.wfile.write(f'data: {text}\n\n'.encode())
    handler.wfile.flush()


def piece(text: str) -> JsonObject:
    """A chunk with some text."""
    return {'choices': [{'index': 0, 'delta': {'content': text}, 'finish_reason': None}]}


def end(reason: str) -> JsonObject:
    """The chunk that says why the text ends."""
    return {'choices': [{'index': 0, 'delta': {}, 'finish_reason': reason}]}


def usage(prompt_tokens: int, cached_tokens: int, generated_tokens: int) -> JsonObject:
    """The last chunk, with the counts."""
    details = {'cached_tokens': cached_tokens}
    counts = {'prompt_tokens': prompt_tokens, 'completion_tokens': generated_tokens, 'prompt_tokens_details': details}
    return {'choices': [], 'usage': counts}


def stream_hello(handler: BaseHTTPRequestHandler, body: JsonObject) -> None:
    """An Answer: `Hello` in two pieces, 16 of 20 prompt tokens cached."""
    start_stream(handler)
    handler.wfile.write(b': keep-alive comment\n\n')
    for event in (piece('Hel'), piece('lo'), end('stop'), usage(20, 16, 2), '[DONE]'):
        send_event(handler, event)


def stall_after_hello(server: LoopbackServer) -> Answer:
    """An Answer that says one piece and then waits until the client has left."""

    def answer(handler: BaseHTTPRequestHandler, body: JsonObject) -> None:
        start_stream(handler)
        send_event(handler, piece('Hel'))
        handler.connection.settimeout(10)
        if handler.connection.recv(1) == b'':
            server.client_left.set()

    return answer
