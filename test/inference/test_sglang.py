"""The SGLang dialect against a loopback server: what is probed, repeated, aborted and refused."""

from collections.abc import Iterator
from dataclasses import replace
from http.server import BaseHTTPRequestHandler
from pathlib import Path
import socket
import threading

from hypothesis import given
from hypothesis import strategies as st
import pytest

from kv_agent_ros.deadline import Deadline
from kv_agent_ros.errors import ModelUnavailableError, Outcome
from kv_agent_ros.inference.base import GenerationRequest, Message, Role
from kv_agent_ros.inference.chat_format import ChatTokenizer, chat_format_of, read_tokenizer
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
)
from kv_agent_ros.inference.openai_http import HttpSettings
from kv_agent_ros.inference.openai_wire import JsonObject
from kv_agent_ros.inference.sglang import SglangBackend, connect_sglang
from kv_agent_ros.inference.sglang_prompts import SAMPLE
from kv_agent_ros.inference.sglang_server import PriorityOrder, probe_sglang, read_server
from kv_agent_ros.kvcache.block import SessionKey

SESSION = SessionKey(robot_id='robot1', session_id='s1')
REQUEST = GenerationRequest(session=SESSION, messages=(Message(role=Role.USER, content='Hi'),), priority=3)


@pytest.fixture
def server() -> Iterator[LoopbackServer]:
    with serving(stream_hello) as state:
        yield state


def settings_of(server: LoopbackServer) -> HttpSettings:
    return HttpSettings(base_url=server.base_url, model='m', engine='sglang')


def connected(server: LoopbackServer) -> SglangBackend:
    return connect_sglang(settings_of(server), cache_salt='home', deadline=Deadline(10.0))


@pytest.mark.parametrize(
    ('flags', 'core'),
    [
        ({'version': '0.5.23'}, 'rust'),
        ({'version': '0.6.0rc1'}, 'rust'),
        ({'version': '0.5.9'}, 'python'),
        ({}, 'python'),
        ({'version': '0.5.23', 'enable_session_radix_cache': True}, 'python'),
        ({'version': '0.5.23', 'radix_cache_backend': 'own'}, 'own'),
        ({'version': '0.5.23', 'disable_radix_cache': True}, 'none'),
    ],
)
def test_tree_core_follows_from_version_and_flags(server: LoopbackServer, flags: JsonObject, core: str) -> None:
    server.model |= flags
    assert probe_sglang(settings_of(server), Deadline(10.0)).tree_core == core


@pytest.mark.parametrize(
    ('flags', 'order', 'sent'),
    [
        ({}, PriorityOrder.IGNORED, 3),
        ({'abort_on_priority_when_disabled': True}, PriorityOrder.REFUSED, None),
        ({'enable_priority_scheduling': True}, PriorityOrder.HIGHER_FIRST, 3),
        (
            {'enable_priority_scheduling': True, 'schedule_low_priority_values_first': True},
            PriorityOrder.LOWER_FIRST,
            -3,
        ),
    ],
)
def test_priority_is_sent_as_the_server_understands_it(
    server: LoopbackServer, flags: JsonObject, order: PriorityOrder, sent: int | None
) -> None:
    server.model |= flags
    backend = connected(server)
    backend.generate(REQUEST, Deadline(10.0))
    assert backend.server.priority is order
    assert server.bodies[-1].get('priority') == sent


def test_adapter_that_the_server_has_loaded_is_named_in_every_request(server: LoopbackServer) -> None:
    server.pages['/v1/models'] = {'data': [{'id': 'org/real-model'}, {'id': 'gripper'}]}
    settings = replace(settings_of(server), adapter='gripper')
    connect_sglang(settings, cache_salt='home', deadline=Deadline(10.0)).generate(REQUEST, Deadline(10.0))
    assert server.bodies[-1]['lora_path'] == 'gripper'
    connected(server).generate(REQUEST, Deadline(10.0))
    assert 'lora_path' not in server.bodies[-1]


def test_adapter_that_the_server_does_not_have_is_an_unavailable_model(server: LoopbackServer) -> None:
    for named in ('gripper', 'org/real-model'):
        settings = replace(settings_of(server), adapter=named)
        with pytest.raises(ModelUnavailableError, match='--lora-paths'):
            connect_sglang(settings, cache_salt='home', deadline=Deadline(10.0))


@pytest.mark.parametrize(
    ('config', 'endpoint'),
    [
        ('{"publisher": "zmq", "endpoint": "tcp://*:5557", "replay_endpoint": "tcp://*:5558"}', 'tcp://*:5557'),
        ('not JSON', ''),
        (None, ''),
    ],
)
def test_server_says_where_its_events_are(server: LoopbackServer, config: object, endpoint: str) -> None:
    server.model['kv_events_config'] = config
    found = probe_sglang(settings_of(server), Deadline(10.0))
    assert found.events_endpoint == endpoint
    assert ('events at' in found.summary()) == bool(endpoint)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5), lambda each: st.lists(each), max_leaves=3
)
FACTS = [
    'kv_events_config',
    'version',
    'tokenizer_path',
    'page_size',
    'radix_cache_backend',
    'grammar_backend',
    'served_model_name',
]


@given(st.dictionaries(st.sampled_from(FACTS), JSON))
def test_whatever_a_server_says_of_itself_is_a_server(facts: JsonObject) -> None:
    found = read_server('http://host', {'model_path': 'org/model'} | facts, facts)
    assert found.model_path == 'org/model'
    assert 'pages of' in found.summary()


def test_prompt_goes_as_ids_where_both_sides_make_the_same(server: LoopbackServer, tiny_directory: Path) -> None:
    tokenizer = read_tokenizer(tiny_directory / 'tokenizer.json')
    chat = ChatTokenizer(tokenizer, chat_format_of(tokenizer))
    theirs = chat.prompt(SAMPLE).tolist()
    server.model['tokenizer_path'] = str(tiny_directory)

    def answer(handler: BaseHTTPRequestHandler, body: JsonObject) -> None:
        if handler.path == '/v1/tokenize':
            reply(handler, 200, 'application/json', f'{{"tokens": {theirs}}}')
        else:
            stream_hello(handler, body)

    server.answer = answer
    said = Message(role=Role.ASSISTANT, content='Hello', token_ids=(5, 6, 7))
    request = GenerationRequest(session=SESSION, messages=(*REQUEST.messages, said))
    connected(server).generate(request, Deadline(10.0))
    assert server.bodies[-1]['input_ids'] == chat.prompt(request.messages).tolist()
    theirs[0] += 1
    connected(server).generate(request, Deadline(10.0))
    assert 'input_ids' not in server.bodies[-1]


def test_ids_and_tiers_are_read_from_the_end_of_the_stream(server: LoopbackServer) -> None:
    def answer(handler: BaseHTTPRequestHandler, body: JsonObject) -> None:
        start_stream(handler)
        details = {'device': 10, 'host': 4, 'storage': 2}
        extension: JsonObject = {'choices': [], 'sglext': {'cached_tokens_details': details, 'output_ids': [[8, 9]]}}
        for event in (piece('Hello'), end('stop'), extension, usage(20, 16, 2), '[DONE]'):
            send_event(handler, event)

    server.answer = answer
    generation = connected(server).generate(REQUEST, Deadline(10.0))
    assert generation.token_ids == (8, 9)
    spent = generation.usage
    assert (spent.cached_tokens, spent.cached_host_tokens, spent.cached_storage_tokens) == (16, 4, 2)


@pytest.mark.parametrize('status', [429, 502, 503, 504])
def test_busy_server_is_asked_again(server: LoopbackServer, status: int) -> None:
    backend = connected(server)
    refusals = iter([status, status])

    def answer(handler: BaseHTTPRequestHandler, body: JsonObject) -> None:
        refusal = next(refusals, 200)
        if refusal != 200:
            reply(handler, refusal, 'text/plain', 'busy')
        else:
            stream_hello(handler, body)

    server.answer = answer
    assert backend.generate(REQUEST, Deadline(10.0)).text == 'Hello'
    ids = [body['rid'] for body in server.bodies]
    assert len(set(ids)) == len(ids) == 3
    assert (backend.stats().num_requests, backend.stats().num_failures) == (3, 2)


def test_answer_that_has_begun_is_never_repeated(server: LoopbackServer) -> None:
    def die(handler: BaseHTTPRequestHandler, body: JsonObject) -> None:
        start_stream(handler)
        send_event(handler, piece('Hel'))

    backend = connected(server)
    server.answer = die
    pieces: list[str] = []
    with pytest.raises(ModelUnavailableError, match='finish_reason'):
        backend.generate(REQUEST, Deadline(10.0), pieces.append)
    assert pieces == ['Hel']
    assert len(server.bodies) == 1


def test_server_that_comes_back_with_another_model_is_refused(server: LoopbackServer) -> None:
    backend = connected(server)

    def swap(handler: BaseHTTPRequestHandler, body: JsonObject) -> None:
        server.model['model_path'] = 'org/other-model'
        reply(handler, 503, 'text/plain', 'loading')

    server.answer = swap
    with pytest.raises(ModelUnavailableError, match='org/real-model again, got org/other-model'):
        backend.generate(REQUEST, Deadline(10.0))


def test_lost_server_that_comes_back_mute_is_a_timeout_and_a_cancel_is_a_cancel() -> None:
    with serving(stream_hello) as server:
        backend = connected(server)
    with pytest.raises(ModelUnavailableError, match='is it running'):
        backend.generate(REQUEST, Deadline(10.0))
    port = int(server.base_url.rsplit(':', 1)[1])
    with socket.create_server(('127.0.0.1', port)):
        assert backend.generate(REQUEST, Deadline(0.3)).outcome is Outcome.TIMEOUT
        deadline = Deadline(30.0)
        timer = threading.Timer(0.3, deadline.cancel)
        timer.start()
        assert backend.generate(REQUEST, deadline).outcome is Outcome.CANCELED
        timer.join(5.0)


def test_work_that_the_server_aborts_by_itself_is_asked_for_again(server: LoopbackServer) -> None:
    backend = connected(server)
    aborts = iter([True])

    def answer(handler: BaseHTTPRequestHandler, body: JsonObject) -> None:
        if not next(aborts, False):
            stream_hello(handler, body)
            return
        start_stream(handler)
        send_event(handler, end('abort'))
        send_event(handler, '[DONE]')

    server.answer = answer
    assert backend.generate(REQUEST, Deadline(10.0)).outcome is Outcome.SUCCESS


def test_cancel_is_confirmed_by_the_end_of_the_stream(server: LoopbackServer) -> None:
    backend = connected(server)
    aborted = threading.Event()

    def answer(handler: BaseHTTPRequestHandler, body: JsonObject) -> None:
        if handler.path == '/abort_request':
            aborted.set()
            reply(handler, 200, 'text/plain', '')
            return
        start_stream(handler)
        send_event(handler, piece('Hel'))
        assert aborted.wait(10.0)
        for event in (end('abort'), usage(20, 16, 1), '[DONE]'):
            send_event(handler, event)

    server.answer = answer
    deadline = Deadline(10.0)
    generation = backend.generate(REQUEST, deadline, lambda text: deadline.cancel())
    assert (generation.outcome, generation.text) == (Outcome.CANCELED, 'Hel')
    assert generation.message == 'canceled on request; the server has stopped'
    assert generation.usage.generated_tokens == 1
    assert server.bodies[-1] == {'rid': server.bodies[-2]['rid']}


def test_deadline_passes_though_the_server_does_not_even_hear_the_abort(server: LoopbackServer) -> None:
    backend = connected(server)
    server.answer = lambda handler, body: server.is_ending.wait(30.0) and None
    generation = backend.generate(REQUEST, Deadline(0.5))
    assert (generation.outcome, generation.text) == (Outcome.TIMEOUT, '')
    assert generation.message == 'deadline passed; the server did not say that it stopped'


def test_session_is_closed_only_in_a_server_that_has_references(server: LoopbackServer) -> None:
    server.answer = lambda handler, body: reply(handler, 200, 'text/plain', '')
    connected(server).close_session(SESSION, Deadline(10.0))
    assert server.bodies == []
    server.model['enable_session_radix_cache'] = True
    connected(server).close_session(SESSION, Deadline(10.0))
    assert server.bodies == [{'session_id': 'robot1/s1'}]
