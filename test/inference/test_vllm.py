"""The vLLM dialect, and KTransformers' of SGLang's, against a loopback server."""

from collections.abc import Iterator
from dataclasses import replace
from http.server import BaseHTTPRequestHandler
import json

from hypothesis import given
from hypothesis import strategies as st
import pytest

from kv_agent_ros.deadline import Deadline
from kv_agent_ros.errors import BadRequestError, ModelUnavailableError, Outcome
from kv_agent_ros.inference.base import GenerationRequest, Message, Role
from kv_agent_ros.inference.ktransformers import connect_ktransformers
from kv_agent_ros.inference.loopback_server import (
    LoopbackServer,
    end,
    piece,
    reply,
    send_event,
    serving,
    start_stream,
    stream_hello,
    usage,
    vllm_pages,
)
from kv_agent_ros.inference.openai_http import HttpSettings
from kv_agent_ros.inference.openai_wire import JsonObject
from kv_agent_ros.inference.vllm import VllmBackend, connect_vllm
from kv_agent_ros.inference.vllm_server import probe_vllm, read_server
from kv_agent_ros.kvcache.block import SessionKey

REQUEST = GenerationRequest(
    session=SessionKey(robot_id='robot1', session_id='s1'),
    messages=(Message(role=Role.USER, content='Hi'),),
    priority=3,
)
METRICS = 'vllm:cache_config_info{block_size="128",enable_prefix_caching="True",engine="0",num_gpu_blocks="182"} 1.0\n'


@pytest.fixture
def server() -> Iterator[LoopbackServer]:
    with serving(stream_hello) as state:
        yield state


def settings_of(server: LoopbackServer, model: str = 'bundled') -> HttpSettings:
    return HttpSettings(base_url=server.base_url, model=model, engine='vllm')


def connected(server: LoopbackServer, cache_salt: str = 'home') -> VllmBackend:
    return connect_vllm(settings_of(server), cache_salt=cache_salt, deadline=Deadline(10.0))


def test_body_has_session_salt_and_a_priority_the_other_way_round(server: LoopbackServer) -> None:
    answer = connected(server).generate(REQUEST, Deadline(10.0))
    body = server.bodies[0]
    assert (body['session_id'], body['cache_salt'], body['priority']) == ('robot1/s1', 'home', -3)
    assert (body['model'], answer.model) == ('org/real-model', 'org/real-model')
    assert (answer.text, answer.usage.cached_tokens, answer.usage.computed_tokens) == ('Hello', 16, 4)


def test_empty_salt_is_left_out_since_the_server_refuses_one(server: LoopbackServer) -> None:
    connected(server, cache_salt='').generate(REQUEST, Deadline(10.0))
    assert 'cache_salt' not in server.bodies[0]


def test_schema_goes_as_structured_outputs_to_versions_that_know_them(server: LoopbackServer) -> None:
    schema = {'type': 'object'}
    asked = replace(REQUEST, json_schema=json.dumps(schema))
    connected(server).generate(asked, Deadline(10.0))
    assert server.bodies[-1]['structured_outputs'] == {'json': schema}
    assert server.bodies[-1]['response_format'] is None
    server.pages['/version'] = {'version': '0.11.2'}
    connected(server).generate(asked, Deadline(10.0))
    assert 'structured_outputs' not in server.bodies[-1]
    assert server.bodies[-1]['response_format']['type'] == 'json_schema'


def test_ids_of_the_answer_are_read_piece_by_piece(server: LoopbackServer) -> None:
    def answer(handler: BaseHTTPRequestHandler, body: JsonObject) -> None:
        start_stream(handler)
        pieces = [piece('Hel'), piece('lo')]
        for each, ids in zip(pieces, ([8], [9, 10]), strict=True):
            each['choices'][0]['token_ids'] = ids
            send_event(handler, each)
        for event in (end('stop'), usage(20, 16, 3), '[DONE]'):
            send_event(handler, event)

    server.answer = answer
    assert connected(server).generate(REQUEST, Deadline(10.0)).token_ids == (8, 9, 10)


def test_fault_of_the_request_that_comes_in_the_stream_is_a_bad_request(server: LoopbackServer) -> None:
    def answer(handler: BaseHTTPRequestHandler, body: JsonObject) -> None:
        start_stream(handler)
        send_event(handler, {'error': {'message': 'Grammar error', 'type': 'BadRequestError', 'code': 400}})

    server.answer = answer
    with pytest.raises(BadRequestError, match='Grammar error'):
        connected(server).generate(REQUEST, Deadline(10.0))


def test_model_is_found_by_name_or_by_where_it_lies_and_an_unknown_one_is_refused(server: LoopbackServer) -> None:
    server.pages |= vllm_pages('first', 'second')
    server.pages['/v1/models']['data'][1] |= {'root': 'org/second', 'parent': 'first'}
    names = [
        probe_vllm(settings_of(server, name), Deadline(10.0)).model for name in ('second', 'org/second', 'bundled')
    ]
    assert names == ['second', 'second', 'first']
    assert 'second on first' in probe_vllm(settings_of(server, 'second'), Deadline(10.0)).summary()
    with pytest.raises(ModelUnavailableError, match=r'third.*first, second'):
        probe_vllm(settings_of(server, 'third'), Deadline(10.0))


def test_prefix_cache_is_read_from_the_metrics() -> None:
    pages = vllm_pages('m')
    settings = HttpSettings(base_url='http://host', model='m')
    found = read_server(settings, pages['/v1/models'], pages['/version'], METRICS)
    assert (found.has_prefix_cache, found.block_tokens, found.capacity_tokens) == (True, 128, 182 * 128)
    assert 'vLLM 0.32.0, m: context of 8192 tokens, prefix cache of 23296 tokens' in found.summary()


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5), lambda each: st.lists(each), max_leaves=3
)


@given(st.dictionaries(st.sampled_from(['root', 'parent', 'max_model_len']), JSON), JSON, st.text())
def test_whatever_a_server_says_of_itself_is_a_server(facts: JsonObject, version: object, metrics: str) -> None:
    settings = HttpSettings(base_url='http://host', model='m')
    models = {'data': [{'id': 'm'} | facts]}
    assert 'vLLM' in read_server(settings, models, {'version': version}, metrics).summary()


@pytest.mark.parametrize('models', [{}, {'data': 3}, {'data': []}, {'data': [7]}, {'data': [{'id': ''}]}])
def test_server_without_models_is_refused(models: JsonObject) -> None:
    with pytest.raises(ModelUnavailableError, match='expected a vLLM server'):
        read_server(HttpSettings(base_url='http://host', model='m'), models, {}, '')


def test_busy_server_is_asked_again_and_one_with_other_weights_is_refused(server: LoopbackServer) -> None:
    backend = connected(server)
    refusals = iter([503])

    def answer(handler: BaseHTTPRequestHandler, body: JsonObject) -> None:
        if refusal := next(refusals, 0):
            reply(handler, refusal, 'text/plain', 'busy')
        else:
            stream_hello(handler, body)

    server.answer = answer
    assert backend.generate(REQUEST, Deadline(10.0)).outcome is Outcome.SUCCESS

    def swap(handler: BaseHTTPRequestHandler, body: JsonObject) -> None:
        server.pages['/v1/models']['data'][0]['root'] = 'org/other'
        reply(handler, 503, 'text/plain', 'loading')

    server.answer = swap
    with pytest.raises(ModelUnavailableError, match='org/real-model again, got org/other'):
        backend.generate(REQUEST, Deadline(10.0))


def test_ktransformers_is_an_sglang_that_tells_where_its_experts_are(server: LoopbackServer) -> None:
    settings = HttpSettings(base_url=server.base_url, model='m', engine='ktransformers')
    with pytest.raises(ModelUnavailableError, match='plain SGLang'):
        connect_ktransformers(settings, cache_salt='home', deadline=Deadline(10.0))
    server.model |= {'kt_weight_path': 'org/experts', 'kt_method': 'AMXINT4'}
    backend = connect_ktransformers(settings, cache_salt='home', deadline=Deadline(10.0))
    assert 'experts on the CPU by AMXINT4' in backend.server.summary()
    answer = backend.generate(REQUEST, Deadline(10.0))
    assert (answer.engine, answer.text) == ('ktransformers', 'Hello')
    assert (server.bodies[0]['session_id'], server.bodies[0]['cache_salt']) == ('robot1/s1', 'home')
