"""The contract of engines over all that need no server of others, and what they make of a server that fails."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import replace
import json
import socket
import time

from backend_contract import *  # noqa: F403
from backend_contract import REQUEST, SCHEMA
import pytest

from kv_agent_ros.deadline import Deadline
from kv_agent_ros.errors import ModelUnavailableError, Outcome
from kv_agent_ros.inference.base import FinishReason, GenerationRequest, InferenceBackend
from kv_agent_ros.inference.edge_cloud import EdgeCloudBackend
from kv_agent_ros.inference.edge_cloud_route import Difficulty
from kv_agent_ros.inference.ktransformers import connect_ktransformers
from kv_agent_ros.inference.local import LocalBackend
from kv_agent_ros.inference.local_model import LocalModel
from kv_agent_ros.inference.loopback_engine import LoopbackEngine
from kv_agent_ros.inference.loopback_faults import BROKEN, SILENT, Fault, stuck
from kv_agent_ros.inference.loopback_server import LoopbackServer, serving
from kv_agent_ros.inference.openai_http import HttpSettings, OpenAiHttpBackend
from kv_agent_ros.inference.privacy import PrivacyPolicy
from kv_agent_ros.inference.scripted import ScriptedBackend, answers_in_order
from kv_agent_ros.inference.sglang import connect_sglang
from kv_agent_ros.inference.vllm import connect_vllm
from kv_agent_ros.kvcache.dram_tier import DramTier
from kv_agent_ros.kvcache.eviction import SessionLruPolicy
from kv_agent_ros.kvcache.manager import KVCacheManager
from kv_agent_ros.kvcache.session_index import SessionIndex
from kv_agent_ros.kvcache.storage.host import HostStore, SharedArena
from kv_agent_ros.kvcache.storage.segment import SegmentMap

Make = Callable[[ExitStack, LocalModel], InferenceBackend]
Connect = Callable[[LoopbackServer, str], InferenceBackend]

EVERYTHING_IS_HARD = Difficulty(hard_purposes=frozenset({REQUEST.purpose}))
PATIENCE_S = 0.3
HANG_S = 10.0  # nothing may take longer than this beyond its deadline


def make_scripted(stack: ExitStack, model: LocalModel) -> InferenceBackend:
    return ScriptedBackend(answer_of)


def answer_of(request: GenerationRequest) -> str:
    return json.dumps({'skill': 'go', 'target': 'cup1'}) if request.json_schema else 'Hello, robot. The cup is there.'


def make_local(stack: ExitStack, model: LocalModel) -> InferenceBackend:
    sessions = SessionIndex()
    store = HostStore(SharedArena.create(16 << 20))
    manager = stack.enter_context(
        KVCacheManager(dram=DramTier(store=store, policy=SessionLruPolicy(sessions.is_referenced)), sessions=sessions)
    )
    return LocalBackend(model=model, cache=manager, segments=SegmentMap(), namespace=model.namespace(16))


def settings_of(server: LoopbackServer, engine: str) -> HttpSettings:
    return HttpSettings(base_url=server.base_url, model='bundled', engine=engine)


def openai(server: LoopbackServer, salt: str) -> InferenceBackend:
    return OpenAiHttpBackend(settings_of(server, 'openai'))


def sglang(server: LoopbackServer, salt: str) -> InferenceBackend:
    return connect_sglang(settings_of(server, 'sglang'), cache_salt=salt, deadline=Deadline(HANG_S))


def vllm(server: LoopbackServer, salt: str) -> InferenceBackend:
    return connect_vllm(settings_of(server, 'vllm'), cache_salt=salt, deadline=Deadline(HANG_S))


def ktransformers(server: LoopbackServer, salt: str) -> InferenceBackend:
    server.model['kt_weight_path'] = 'org/experts'
    return connect_ktransformers(settings_of(server, 'ktransformers'), cache_salt=salt, deadline=Deadline(HANG_S))


def on_the_edge(server: LoopbackServer, salt: str) -> InferenceBackend:
    return edge_and_cloud(server, Difficulty(), HANG_S)


def in_the_cloud(server: LoopbackServer, salt: str) -> InferenceBackend:
    return edge_and_cloud(server, EVERYTHING_IS_HARD, HANG_S)


def edge_and_cloud(server: LoopbackServer, difficulty: Difficulty, patience_s: float) -> InferenceBackend:
    return EdgeCloudBackend(
        edge=ScriptedBackend(answer_of),
        cloud=sglang(server, 'home'),
        is_private=PrivacyPolicy(shared_purposes=frozenset({'*'})),
        difficulty=difficulty,
        patience_s=patience_s,
    )


SERVERS: list[Connect] = [openai, sglang, vllm]
PAIRS: list[Connect] = [on_the_edge, in_the_cloud]
REPLACEABLE = {name: fault for name, fault in (BROKEN | SILENT).items() if name != 'slow'}  # slow is not lost


def behind(connect: Connect) -> Make:
    """A backend over a loopback server of its own."""

    def make(stack: ExitStack, model: LocalModel) -> InferenceBackend:
        return connect(stack.enter_context(serving(LoopbackEngine())), 'home')

    make.__name__ = connect.__name__
    return make


BACKENDS: list[Make] = [make_scripted, make_local, *(behind(connect) for connect in (*SERVERS, ktransformers, *PAIRS))]


def name_of(value: object) -> str | None:
    return value.__name__.removeprefix('make_') if callable(value) else None


@pytest.fixture(params=BACKENDS, ids=name_of)
def backend(request: pytest.FixtureRequest, tiny_model: LocalModel) -> Iterator[InferenceBackend]:
    with ExitStack() as stack:
        made = request.param(stack, tiny_model)
        yield made
        made.close()


@pytest.fixture
def server() -> Iterator[LoopbackServer]:
    with serving(LoopbackEngine()) as state:
        yield state


def make_stuck(stack: ExitStack, model: LocalModel) -> InferenceBackend:
    state = stack.enter_context(serving(LoopbackEngine()))
    made = openai(state, 'home')
    state.answer = stuck(state)
    return made


@pytest.mark.parametrize('make', [make_scripted, make_local, make_stuck], ids=name_of)
def test_cancel_in_the_middle_keeps_what_was_said(make: Make, tiny_model: LocalModel) -> None:
    deadline = Deadline(30.0)
    pieces: list[str] = []

    def listen(text: str) -> None:
        pieces.append(text)
        deadline.cancel()

    with ExitStack() as stack:
        answer = make(stack, tiny_model).generate(REQUEST, deadline, listen)
    assert (answer.outcome, answer.finish_reason) == (Outcome.CANCELED, FinishReason.CANCELED)
    assert answer.text == ''.join(pieces) != ''


@pytest.mark.parametrize('connect', [sglang, vllm, ktransformers], ids=name_of)
def test_tenants_on_one_server_never_share_a_prefix(connect: Connect, server: LoopbackServer) -> None:
    ours, ours_too, theirs = (connect(server, salt) for salt in ('home', 'home', 'neighbour'))
    ours.generate(REQUEST, Deadline(HANG_S))
    assert ours_too.generate(REQUEST, Deadline(HANG_S)).usage.cached_tokens > 100
    assert theirs.generate(REQUEST, Deadline(HANG_S)).usage.cached_tokens == 0


@pytest.mark.parametrize('fault', BROKEN.values(), ids=BROKEN)
@pytest.mark.parametrize('connect', SERVERS, ids=name_of)
def test_broken_server_is_an_unavailable_model_and_is_used_again_when_it_is_well(
    connect: Connect, fault: Fault, server: LoopbackServer
) -> None:
    backend = connect(server, 'home')
    well, server.answer = server.answer, fault(server)
    pieces: list[str] = []
    with pytest.raises(ModelUnavailableError):
        backend.generate(REQUEST, Deadline(HANG_S), pieces.append)
    assert pieces in ([], ['Hel'])
    server.answer = well
    assert backend.generate(REQUEST, Deadline(HANG_S)).outcome is Outcome.SUCCESS


@pytest.mark.parametrize('fault', SILENT.values(), ids=SILENT)
@pytest.mark.parametrize('connect', SERVERS, ids=name_of)
def test_silent_server_is_a_timeout_with_what_was_said(connect: Connect, fault: Fault, server: LoopbackServer) -> None:
    backend = connect(server, 'home')
    well, server.answer = server.answer, fault(server)
    pieces: list[str] = []
    begun_s = time.monotonic()
    answer = backend.generate(REQUEST, Deadline(0.5), pieces.append)
    assert time.monotonic() - begun_s < 0.5 + HANG_S
    assert (answer.outcome, answer.finish_reason, answer.text) == (
        Outcome.TIMEOUT,
        FinishReason.TIMEOUT,
        ''.join(pieces),
    )
    server.answer = well
    assert backend.generate(REQUEST, Deadline(HANG_S)).outcome is Outcome.SUCCESS


@pytest.mark.parametrize('connect', SERVERS, ids=name_of)
def test_half_open_connection_is_a_timeout(connect: Connect, server: LoopbackServer) -> None:
    backend = connect(server, 'home')
    with socket.create_server(('127.0.0.1', 0)) as listener:  # connects and is never heard of again
        half_open = replace(settings_of(server, 'x'), base_url=f'http://127.0.0.1:{listener.getsockname()[1]}')
        begun_s = time.monotonic()
        assert OpenAiHttpBackend(half_open).generate(REQUEST, Deadline(0.3)).outcome is Outcome.TIMEOUT
        assert time.monotonic() - begun_s < 0.3 + HANG_S
    assert backend.generate(REQUEST, Deadline(HANG_S)).outcome is Outcome.SUCCESS


@pytest.mark.parametrize('fault', REPLACEABLE.values(), ids=REPLACEABLE)
@pytest.mark.parametrize('schema', ['', json.dumps(SCHEMA)], ids=['text', 'schema'])
def test_edge_answers_when_the_cloud_fails_and_the_text_is_what_was_told(
    fault: Fault, schema: str, server: LoopbackServer
) -> None:
    backend = edge_and_cloud(server, EVERYTHING_IS_HARD, PATIENCE_S)
    server.answer = fault(server)
    pieces: list[str] = []
    asked = replace(REQUEST, json_schema=schema, max_new_tokens=64)  # what was told counts, a piece a token or more
    answer = backend.generate(asked, Deadline(HANG_S), pieces.append)
    assert (answer.outcome, answer.engine) == (Outcome.SUCCESS, 'scripted')
    assert ''.join(pieces) == answer.text
    assert answer.text in (answer_of(asked), 'Hel' + answer_of(asked))


def test_script_that_has_run_out_is_an_unavailable_model() -> None:
    backend = ScriptedBackend(answers_in_order(['one']))
    assert backend.generate(REQUEST, Deadline(5)).text == 'one'
    with pytest.raises(ModelUnavailableError, match='at most 1'):
        backend.generate(REQUEST, Deadline(5))
