"""The HTTP engines against a real server on loopback that speaks, or breaks, the server."""

from http.server import BaseHTTPRequestHandler
import json
from pathlib import Path

import pytest

from kv_agent_ros.deadline import Deadline
from kv_agent_ros.errors import BadRequestError, ConfigError, ModelUnavailableError, Outcome
from kv_agent_ros.inference.base import FinishReason, GenerationRequest, Message, Role
from kv_agent_ros.inference.loopback_server import (
    LoopbackServer,
    piece,
    reply,
    send_event,
    serving,
    stall_after_hello,
    start_stream,
    stream_hello,
)
from kv_agent_ros.inference.openai_http import HttpSettings, OpenAiHttpBackend, bearer_headers
from kv_agent_ros.inference.openai_wire import JsonObject
from kv_agent_ros.inference.session_name import session_name
from kv_agent_ros.inference.sglang import connect_sglang
from kv_agent_ros.inference.sglang_server import probe_sglang
from kv_agent_ros.kvcache.block import SessionKey


def settings_of(server: LoopbackServer) -> HttpSettings:
    return HttpSettings(base_url=server.base_url, model='m', engine='remote')


def request(**changes: object) -> GenerationRequest:
    values = {
        'session': SessionKey(robot_id='robot1', session_id='s1'),
        'messages': (Message(role=Role.SYSTEM, content='Plan.'), Message(role=Role.USER, content='Hi')),
    }
    return GenerationRequest(**(values | changes))


def test_streamed_answer_arrives_in_pieces_with_the_servers_own_counts() -> None:
    pieces: list[str] = []
    with serving(stream_hello) as server:
        answer = OpenAiHttpBackend(settings_of(server)).generate(request(), Deadline(10), pieces.append)
    assert pieces == ['Hel', 'lo']
    assert (answer.outcome, answer.text, answer.finish_reason) == (Outcome.SUCCESS, 'Hello', FinishReason.STOP)
    assert (answer.usage.prompt_tokens, answer.usage.cached_tokens, answer.usage.computed_tokens) == (20, 16, 4)
    assert answer.usage.generated_tokens == 2
    assert 0 < answer.usage.ttft_s <= answer.usage.total_s
    assert (answer.engine, answer.model) == ('remote', 'm')


def test_body_is_plain_openai_with_the_schema_as_response_format() -> None:
    schema = {'type': 'object', 'properties': {'a': {'type': 'integer'}}}
    with serving(stream_hello) as server:
        asked = request(json_schema=json.dumps(schema), max_new_tokens=7, temperature=0.5, seed=3)
        OpenAiHttpBackend(settings_of(server)).generate(asked, Deadline(10))
    body = server.bodies[0]
    assert body['messages'] == [{'role': 'system', 'content': 'Plan.'}, {'role': 'user', 'content': 'Hi'}]
    assert (body['model'], body['max_tokens'], body['temperature'], body['seed']) == ('m', 7, 0.5, 3)
    assert body['response_format'] == {
        'type': 'json_schema',
        'json_schema': {'name': 'answer', 'strict': True, 'schema': schema},
    }
    assert 'session_id' not in body


def test_server_that_does_not_stream_is_read_all_the_same() -> None:
    def answer_whole(handler: BaseHTTPRequestHandler, body: JsonObject) -> None:
        choice = {'message': {'role': 'assistant', 'content': 'Hello'}, 'finish_reason': 'length'}
        counts = {'prompt_tokens': 5, 'completion_tokens': 1, 'prompt_tokens_details': None}
        reply(handler, 200, 'application/json', json.dumps({'choices': [choice], 'usage': counts}))

    with serving(answer_whole) as server:
        answer = OpenAiHttpBackend(settings_of(server)).generate(request(), Deadline(10))
    assert (answer.text, answer.finish_reason) == ('Hello', FinishReason.LENGTH)
    assert (answer.usage.prompt_tokens, answer.usage.cached_tokens) == (5, 0)


def test_refused_connection_is_an_unavailable_model() -> None:
    with serving(stream_hello) as server:
        pass
    backend = OpenAiHttpBackend(settings_of(server))
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
    def refuse(handler: BaseHTTPRequestHandler, body: JsonObject) -> None:
        reply(handler, status, 'text/plain', 'no such thing')

    with serving(refuse) as server, pytest.raises(error, match=f'{status} .no such thing'):
        OpenAiHttpBackend(settings_of(server)).generate(request(), Deadline(10))


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
    def garbage(handler: BaseHTTPRequestHandler, body: JsonObject) -> None:
        start_stream(handler)
        send_event(handler, payload)

    with serving(garbage) as server, pytest.raises(ModelUnavailableError):
        OpenAiHttpBackend(settings_of(server)).generate(request(), Deadline(10))


def test_stream_that_ends_early_is_no_answer() -> None:
    def die(handler: BaseHTTPRequestHandler, body: JsonObject) -> None:
        start_stream(handler)
        send_event(handler, piece('Hel'))

    with serving(die) as server, pytest.raises(ModelUnavailableError, match='finish_reason'):
        OpenAiHttpBackend(settings_of(server)).generate(request(), Deadline(10))


def test_cancel_closes_the_stream_and_keeps_the_partial_text() -> None:
    deadline = Deadline(30)
    with serving(stream_hello) as server:
        server.answer = stall_after_hello(server)
        answer = OpenAiHttpBackend(settings_of(server)).generate(request(), deadline, lambda text: deadline.cancel())
        assert server.client_left.wait(5)
    assert (answer.outcome, answer.finish_reason, answer.text) == (Outcome.CANCELED, FinishReason.CANCELED, 'Hel')
    assert answer.usage.total_s < 5


def test_deadline_ends_a_stalled_stream() -> None:
    with serving(stream_hello) as server:
        server.answer = stall_after_hello(server)
        answer = OpenAiHttpBackend(settings_of(server)).generate(request(), Deadline(0.3))
        assert server.client_left.wait(5)
    assert (answer.outcome, answer.finish_reason, answer.text) == (Outcome.TIMEOUT, FinishReason.TIMEOUT, 'Hel')
    assert answer.usage.total_s < 5


def test_deadline_ends_a_server_that_never_answers() -> None:
    with serving(stream_hello) as server:
        server.answer = lambda handler, body: server.is_ending.wait(10) and None
        answer = OpenAiHttpBackend(settings_of(server)).generate(request(), Deadline(0.2))
    assert (answer.outcome, answer.text) == (Outcome.TIMEOUT, '')


def test_api_key_is_sent_but_never_shown(tmp_path: Path) -> None:
    path = tmp_path / 'key'
    path.write_text('sk-secret\n')
    with serving(stream_hello) as server:
        keyed = HttpSettings(base_url=server.base_url, model='m', headers=bearer_headers(path))
        OpenAiHttpBackend(keyed).generate(request(), Deadline(10))
        server.answer = lambda handler, body: reply(handler, 401, 'text/plain', 'bad key')
        with pytest.raises(ModelUnavailableError) as caught:
            OpenAiHttpBackend(keyed).generate(request(), Deadline(10))
    assert server.headers[0]['Authorization'] == 'Bearer sk-secret'
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
    with serving(stream_hello) as server:
        backend = connect_sglang(settings_of(server), cache_salt='tenant7', deadline=Deadline(10))
        answer = backend.generate(request(priority=5), Deadline(10))
    body = server.bodies[0]
    assert (body['session_id'], body['priority'], body['cache_salt']) == ('robot1/s1', 5, 'tenant7')
    assert (body['model'], answer.model) == ('org/real-model', 'org/real-model')
    assert backend.stats().cached_tokens == 16


def test_sglang_without_salt_sends_none() -> None:
    with serving(stream_hello) as server:
        connect_sglang(settings_of(server), cache_salt='', deadline=Deadline(10)).generate(request(), Deadline(10))
    assert 'cache_salt' not in server.bodies[0]


def test_sglang_of_an_older_name_is_found() -> None:
    with serving(stream_hello) as server:
        server.missing_paths = {'/model_info'}
        assert probe_sglang(settings_of(server), Deadline(10)).model_path == 'org/real-model'


def test_server_that_is_not_sglang_is_refused_at_connect() -> None:
    with serving(stream_hello) as server:
        server.missing_paths = {'/model_info', '/get_model_info'}
        with pytest.raises(ModelUnavailableError, match='404'):
            connect_sglang(settings_of(server), cache_salt='', deadline=Deadline(10))


def test_embedding_model_is_refused_at_connect() -> None:
    with serving(stream_hello) as server:
        server.model = {'model_path': 'org/embedder', 'is_generation': False}
        with pytest.raises(ModelUnavailableError, match='embedding model'):
            connect_sglang(settings_of(server), cache_salt='', deadline=Deadline(10))


def test_no_two_sessions_share_a_name() -> None:
    names = {
        session_name(SessionKey(robot_id=robot, session_id=session))
        for robot in ('a', 'a/b', '', 'a%2Fb')
        for session in ('c', 'b/c', '', '/')
    }
    assert len(names) == 16
