"""The HTTP engines against a real server on loopback that speaks, or breaks, the dialect."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
import http.server
import json
from pathlib import Path
import threading

import pytest

from kv_agent_ros.deadline import Deadline
from kv_agent_ros.errors import BadRequestError, ConfigError, ModelUnavailableError, Outcome
from kv_agent_ros.inference.base import FinishReason, GenerationRequest, Message, Role
from kv_agent_ros.inference.openai_http import HttpSettings, OpenAiHttpBackend, bearer_headers
from kv_agent_ros.inference.sglang import connect_sglang, probe_sglang, session_name
from kv_agent_ros.kvcache.block import SessionKey

Handler = http.server.BaseHTTPRequestHandler
Answer = Callable[[Handler, dict[str, object]], None]


class Dialect:
    """A server on an ephemeral port; `answer` writes the reply to each POST."""

    def __init__(self, answer: Answer) -> None:
        self.answer = answer
        self.bodies: list[dict[str, object]] = []
        self.headers: list[dict[str, str]] = []
        self.model: dict[str, object] = {'model_path': 'org/real-model', 'is_generation': True}
        self.missing_paths: set[str] = set()
        self.client_left = threading.Event()
        self.release = threading.Event()


@contextmanager
def serving(answer: Answer) -> Iterator[tuple[Dialect, HttpSettings]]:
    dialect = Dialect(answer)

    class Requests(Handler):
        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers['content-length'])))
            dialect.bodies.append(body)
            dialect.headers.append(dict(self.headers))
            try:
                dialect.answer(self, body)
            except (BrokenPipeError, ConnectionResetError):
                dialect.client_left.set()

        def do_GET(self) -> None:
            if self.path in dialect.missing_paths:
                self.send_error(404)
                return
            reply(self, 200, 'application/json', json.dumps(dialect.model))

        def log_message(self, format: str, *arguments: object) -> None:
            pass

    server = http.server.ThreadingHTTPServer(('127.0.0.1', 0), Requests)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, kwargs={'poll_interval': 0.01}, daemon=True)
    thread.start()
    try:
        yield dialect, HttpSettings(base_url=f'http://127.0.0.1:{server.server_port}', model='m', engine='remote')
    finally:
        dialect.release.set()
        server.shutdown()
        server.server_close()
        thread.join(5)


def reply(handler: Handler, status: int, kind: str, text: str) -> None:
    handler.send_response(status)
    handler.send_header('content-type', kind)
    handler.send_header('content-length', str(len(text.encode())))
    handler.end_headers()
    handler.wfile.write(text.encode())


def start_stream(handler: Handler) -> None:
    handler.send_response(200)
    handler.send_header('content-type', 'text/event-stream')
    handler.send_header('connection', 'close')
    handler.end_headers()


def send_event(handler: Handler, payload: object) -> None:
    text = payload if isinstance(payload, str) else json.dumps(payload)
    handler.wfile.write(f'data: {text}\n\n'.encode())
    handler.wfile.flush()


def piece(text: str) -> dict[str, object]:
    return {'choices': [{'index': 0, 'delta': {'content': text}, 'finish_reason': None}]}


def end(reason: str) -> dict[str, object]:
    return {'choices': [{'index': 0, 'delta': {}, 'finish_reason': reason}]}


def usage(prompt: int, cached: int, generated: int) -> dict[str, object]:
    details = {'cached_tokens': cached}
    counts = {'prompt_tokens': prompt, 'completion_tokens': generated, 'prompt_tokens_details': details}
    return {'choices': [], 'usage': counts}


def stream_hello(handler: Handler, body: dict[str, object]) -> None:
    start_stream(handler)
    handler.wfile.write(b': keep-alive comment\n\n')
    for event in (piece('Hel'), piece('lo'), end('stop'), usage(20, 16, 2), '[DONE]'):
        send_event(handler, event)


def request(**changes: object) -> GenerationRequest:
    values = {
        'session': SessionKey(robot_id='robot1', session_id='s1'),
        'messages': (Message(role=Role.SYSTEM, content='Plan.'), Message(role=Role.USER, content='Hi')),
    }
    return GenerationRequest(**(values | changes))


def test_streamed_answer_arrives_in_pieces_with_the_servers_own_counts() -> None:
    pieces: list[str] = []
    with serving(stream_hello) as (_, settings):
        answer = OpenAiHttpBackend(settings).generate(request(), Deadline(10), pieces.append)
    assert pieces == ['Hel', 'lo']
    assert (answer.outcome, answer.text, answer.finish_reason) == (Outcome.SUCCESS, 'Hello', FinishReason.STOP)
    assert (answer.usage.prompt_tokens, answer.usage.cached_tokens, answer.usage.computed_tokens) == (20, 16, 4)
    assert answer.usage.generated_tokens == 2
    assert 0 < answer.usage.ttft_s <= answer.usage.total_s
    assert (answer.engine, answer.model) == ('remote', 'm')


def test_body_is_plain_openai_with_the_schema_as_response_format() -> None:
    schema = {'type': 'object', 'properties': {'a': {'type': 'integer'}}}
    with serving(stream_hello) as (dialect, settings):
        asked = request(json_schema=json.dumps(schema), max_new_tokens=7, temperature=0.5, seed=3)
        OpenAiHttpBackend(settings).generate(asked, Deadline(10))
    body = dialect.bodies[0]
    assert body['messages'] == [{'role': 'system', 'content': 'Plan.'}, {'role': 'user', 'content': 'Hi'}]
    assert (body['model'], body['max_tokens'], body['temperature'], body['seed']) == ('m', 7, 0.5, 3)
    assert body['response_format'] == {
        'type': 'json_schema',
        'json_schema': {'name': 'answer', 'strict': True, 'schema': schema},
    }
    assert 'session_id' not in body


def test_server_that_does_not_stream_is_read_all_the_same() -> None:
    def answer_whole(handler: Handler, body: dict[str, object]) -> None:
        choice = {'message': {'role': 'assistant', 'content': 'Hello'}, 'finish_reason': 'length'}
        counts = {'prompt_tokens': 5, 'completion_tokens': 1, 'prompt_tokens_details': None}
        reply(handler, 200, 'application/json', json.dumps({'choices': [choice], 'usage': counts}))

    with serving(answer_whole) as (_, settings):
        answer = OpenAiHttpBackend(settings).generate(request(), Deadline(10))
    assert (answer.text, answer.finish_reason) == ('Hello', FinishReason.LENGTH)
    assert (answer.usage.prompt_tokens, answer.usage.cached_tokens) == (5, 0)


def test_refused_connection_is_an_unavailable_model() -> None:
    with serving(stream_hello) as (_, settings):
        pass
    backend = OpenAiHttpBackend(settings)
    with pytest.raises(ModelUnavailableError, match='is it running'):
        backend.generate(request(), Deadline(10))
    assert backend.stats().num_failures == 1


@pytest.mark.parametrize('base_url', ['', 'not a url', 'ftp://127.0.0.1', 'http://', 'http://127.0.0.1:99999'])
def test_impossible_url_is_a_config_error(base_url: str) -> None:
    with pytest.raises(ConfigError, match='base_url'):
        HttpSettings(base_url=base_url, model='m')


@pytest.mark.parametrize(
    ('status', 'error'),
    [
        (400, BadRequestError),
        (422, BadRequestError),
        (401, ModelUnavailableError),
        (404, ModelUnavailableError),
        (429, ModelUnavailableError),
        (500, ModelUnavailableError),
        (503, ModelUnavailableError),
    ],
)
def test_error_status_is_a_typed_error_with_the_servers_words(status: int, error: type[Exception]) -> None:
    def refuse(handler: Handler, body: dict[str, object]) -> None:
        reply(handler, status, 'text/plain', 'no such thing')

    with serving(refuse) as (_, settings), pytest.raises(error, match=f'{status} .no such thing'):
        OpenAiHttpBackend(settings).generate(request(), Deadline(10))


@pytest.mark.parametrize(
    'payload',
    [
        'not json',
        '[1, 2]',
        '{"choices": 3}',
        '{"choices": [7]}',
        '{"error": {"message": "out of memory"}}',
        '{"choices": [{"delta": {}, "finish_reason": "abort"}]}',
    ],
)
def test_garbage_in_the_stream_is_an_unavailable_model(payload: str) -> None:
    def garbage(handler: Handler, body: dict[str, object]) -> None:
        start_stream(handler)
        send_event(handler, payload)

    with serving(garbage) as (_, settings), pytest.raises(ModelUnavailableError):
        OpenAiHttpBackend(settings).generate(request(), Deadline(10))


def test_stream_that_ends_early_is_no_answer() -> None:
    def die(handler: Handler, body: dict[str, object]) -> None:
        start_stream(handler)
        send_event(handler, piece('Hel'))

    with serving(die) as (_, settings), pytest.raises(ModelUnavailableError, match='finish_reason'):
        OpenAiHttpBackend(settings).generate(request(), Deadline(10))


def stall_after_hello(dialect: Dialect) -> Answer:
    """Says one piece, then waits to be released and notices whether the client has left."""

    def answer(handler: Handler, body: dict[str, object]) -> None:
        start_stream(handler)
        send_event(handler, piece('Hel'))
        handler.connection.settimeout(10)
        if handler.connection.recv(1) == b'':
            dialect.client_left.set()

    return answer


def test_cancel_closes_the_stream_and_keeps_the_partial_text() -> None:
    deadline = Deadline(30)
    with serving(stream_hello) as (dialect, settings):
        dialect.answer = stall_after_hello(dialect)
        answer = OpenAiHttpBackend(settings).generate(request(), deadline, lambda text: deadline.cancel())
        assert dialect.client_left.wait(5)
    assert (answer.outcome, answer.finish_reason, answer.text) == (Outcome.CANCELED, FinishReason.CANCELED, 'Hel')
    assert answer.usage.total_s < 5


def test_deadline_ends_a_stalled_stream() -> None:
    with serving(stream_hello) as (dialect, settings):
        dialect.answer = stall_after_hello(dialect)
        answer = OpenAiHttpBackend(settings).generate(request(), Deadline(0.3))
        assert dialect.client_left.wait(5)
    assert (answer.outcome, answer.finish_reason, answer.text) == (Outcome.TIMEOUT, FinishReason.TIMEOUT, 'Hel')
    assert answer.usage.total_s < 5


def test_deadline_ends_a_server_that_never_answers() -> None:
    with serving(stream_hello) as (dialect, settings):
        dialect.answer = lambda handler, body: dialect.release.wait(10) and None
        answer = OpenAiHttpBackend(settings).generate(request(), Deadline(0.2))
    assert (answer.outcome, answer.text) == (Outcome.TIMEOUT, '')


def test_api_key_is_sent_but_never_shown(tmp_path: Path) -> None:
    path = tmp_path / 'key'
    path.write_text('sk-secret\n')
    with serving(stream_hello) as (dialect, settings):
        keyed = HttpSettings(base_url=settings.base_url, model='m', headers=bearer_headers(path))
        OpenAiHttpBackend(keyed).generate(request(), Deadline(10))
        dialect.answer = lambda handler, body: reply(handler, 401, 'text/plain', 'bad key')
        with pytest.raises(ModelUnavailableError) as caught:
            OpenAiHttpBackend(keyed).generate(request(), Deadline(10))
    assert dialect.headers[0]['Authorization'] == 'Bearer sk-secret'
    assert 'sk-secret' not in repr(keyed)
    assert 'sk-secret' not in str(caught.value)


@pytest.mark.parametrize('content', [b'', b'two\nlines', b'\xff\xfe'])
def test_unusable_key_file_is_a_config_error_without_its_content(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / 'key'
    path.write_bytes(content)
    with pytest.raises(ConfigError, match='api_key_path') as caught:
        bearer_headers(path)
    assert 'two' not in str(caught.value)


def test_missing_key_file_is_a_config_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match='api_key_path'):
        bearer_headers(tmp_path / 'none')


def test_sglang_gets_session_priority_and_salt() -> None:
    with serving(stream_hello) as (dialect, settings):
        backend = connect_sglang(settings, cache_salt='tenant7', deadline=Deadline(10))
        answer = backend.generate(request(priority=5), Deadline(10))
    body = dialect.bodies[0]
    assert (body['session_id'], body['priority'], body['cache_salt']) == ('robot1/s1', 5, 'tenant7')
    assert (body['model'], answer.model) == ('org/real-model', 'org/real-model')
    assert backend.stats().cached_tokens == 16


def test_sglang_without_salt_sends_none() -> None:
    with serving(stream_hello) as (dialect, settings):
        connect_sglang(settings, cache_salt='', deadline=Deadline(10)).generate(request(), Deadline(10))
    assert 'cache_salt' not in dialect.bodies[0]


def test_sglang_of_an_older_name_is_found() -> None:
    with serving(stream_hello) as (dialect, settings):
        dialect.missing_paths = {'/model_info'}
        assert probe_sglang(settings, Deadline(10)).model_path == 'org/real-model'


def test_server_that_is_not_sglang_is_refused_at_connect() -> None:
    with serving(stream_hello) as (dialect, settings):
        dialect.missing_paths = {'/model_info', '/get_model_info'}
        with pytest.raises(ModelUnavailableError, match='404'):
            connect_sglang(settings, cache_salt='', deadline=Deadline(10))


def test_embedding_model_is_refused_at_connect() -> None:
    with serving(stream_hello) as (dialect, settings):
        dialect.model = {'model_path': 'org/embedder', 'is_generation': False}
        with pytest.raises(ModelUnavailableError, match='embedding model'):
            connect_sglang(settings, cache_salt='', deadline=Deadline(10))


def test_no_two_sessions_share_a_name() -> None:
    names = {
        session_name(SessionKey(robot_id=robot, session_id=session))
        for robot in ('a', 'a/b', '', 'a%2Fb')
        for session in ('c', 'b/c', '', '/')
    }
    assert len(names) == 16
