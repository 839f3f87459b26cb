"""Our backend against a real vLLM server with a real model on this machine."""

from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
import signal

import pytest
from vllm_process import VllmProcess

from kv_agent_ros.deadline import Deadline
from kv_agent_ros.errors import BadRequestError, ModelUnavailableError, Outcome
from kv_agent_ros.inference.base import FinishReason, GenerationRequest, InferenceBackend, Message, Role
from kv_agent_ros.inference.chat_format import ChatTokenizer, chat_format_of, read_tokenizer
from kv_agent_ros.inference.engine_mirror import MirrorState
from kv_agent_ros.inference.kv_events import EventFollower
from kv_agent_ros.inference.openai_http import HttpSettings
from kv_agent_ros.inference.vllm import VllmBackend, connect_vllm

pytestmark = pytest.mark.vllm

from backend_contract import *  # noqa: E402, F403
from backend_contract import ANSWER_S, REQUEST  # noqa: E402

BLOCK_TOKENS = 128


def connected(server: VllmProcess, tenant: str) -> VllmBackend:
    settings = HttpSettings(base_url=server.url, model='bundled', engine='vllm')
    return connect_vllm(settings, cache_salt=tenant, deadline=Deadline(30.0))


@pytest.fixture
def backend(server: VllmProcess) -> Iterator[InferenceBackend]:
    made = connected(server, 'home')
    yield made
    made.close()


def asked(topic: str, **changes: object) -> GenerationRequest:
    """A question after some hundred tokens about `topic` that no other test asks about."""
    head = ' '.join(f'The {topic} {number} is in room {number * 7 % 31}.' for number in range(30))
    messages = (Message(role=Role.SYSTEM, content=head), Message(role=Role.USER, content='Tell a long story.'))
    return replace(REQUEST, **({'messages': messages, 'max_new_tokens': 4} | changes))


def wait_for(mirror: EventFollower, predicate: Callable[[], bool]) -> None:
    deadline = Deadline(20.0)
    while not predicate():
        assert not deadline.is_over, mirror.stats()
        mirror.poll(0.1)


def is_idle(server: VllmProcess) -> bool:
    """Whether it comes to rest within some seconds."""
    deadline = Deadline(20.0)
    while server.num_requests() and not deadline.wait(0.1):
        pass
    return server.num_requests() == 0


def test_the_probe_finds_what_the_server_is(server: VllmProcess) -> None:
    found = connected(server, 'home').server
    assert (found.version, found.model, found.context_tokens) == ('0.32.0', 'SmolLM2-135M-Instruct', 8192)
    assert (found.has_prefix_cache, found.block_tokens) == (True, BLOCK_TOKENS)
    assert found.capacity_tokens > 10_000


def test_tenants_share_nothing_and_robots_of_one_tenant_share_all(server: VllmProcess) -> None:
    request = asked('fork')
    connected(server, 'home').generate(request, Deadline(ANSWER_S))
    shared = connected(server, 'home').generate(request, Deadline(ANSWER_S))
    foreign = connected(server, 'neighbour').generate(request, Deadline(ANSWER_S))
    assert shared.usage.cached_tokens >= 2 * BLOCK_TOKENS
    assert foreign.usage.cached_tokens == 0


def test_mirror_of_its_events_says_what_it_then_serves(server: VllmProcess, backend: VllmBackend) -> None:
    tokenizer = read_tokenizer(Path(backend.server.root) / 'tokenizer.json')
    request = asked('clock')
    prompt = ChatTokenizer(tokenizer, chat_format_of(tokenizer)).prompt(request.messages)
    with closing(server.events()) as mirror:
        mirror.poll(1.0)
        assert mirror.matched_tokens(prompt, 'home') == 0
        cold = backend.generate(request, Deadline(ANSWER_S))
        assert (cold.usage.prompt_tokens, cold.usage.cached_tokens) == (len(prompt), 0)
        wait_for(mirror, lambda: mirror.matched_tokens(prompt, 'home') > 0)
        known = mirror.matched_tokens(prompt, 'home')
        assert backend.generate(request, Deadline(ANSWER_S)).usage.cached_tokens == known == 2 * BLOCK_TOKENS
        assert mirror.matched_tokens(prompt, 'neighbour') == 0
        assert (mirror.stats().state, mirror.stats().num_orphans) == (MirrorState.SYNCED, 0)


def test_answer_tells_its_ids(backend: InferenceBackend) -> None:
    answer = backend.generate(asked('spoon'), Deadline(ANSWER_S))
    assert (len(answer.token_ids), answer.finish_reason) == (4, FinishReason.LENGTH)


def test_prompt_beyond_the_context_and_an_impossible_schema_are_bad_requests(backend: InferenceBackend) -> None:
    long = Message(role=Role.USER, content='go home ' * 9000)
    with pytest.raises(BadRequestError, match='maximum context length'):
        backend.generate(asked('hall', messages=(long,)), Deadline(ANSWER_S))
    with pytest.raises(BadRequestError):
        backend.generate(asked('hall', json_schema='{"type": "objekt"}'), Deadline(ANSWER_S))


def test_cancel_and_deadline_end_the_work_in_the_server(server: VllmProcess, backend: InferenceBackend) -> None:
    deadline = Deadline(ANSWER_S)
    answer = backend.generate(asked('vase', max_new_tokens=2000), deadline, lambda text: deadline.cancel())
    assert (answer.outcome, answer.text != '') == (Outcome.CANCELED, True)
    assert is_idle(server)
    assert backend.generate(asked('vase', max_new_tokens=2000), Deadline(3.0)).outcome is Outcome.TIMEOUT
    assert is_idle(server)


def test_hung_server_is_a_timeout_and_is_used_again_when_it_goes_on(
    server: VllmProcess, backend: InferenceBackend
) -> None:
    with server.hung():
        assert backend.generate(asked('tray'), Deadline(1.0)).outcome is Outcome.TIMEOUT
    assert backend.generate(asked('tray'), Deadline(ANSWER_S)).outcome is Outcome.SUCCESS


def test_killed_server_is_an_unavailable_model(server: VllmProcess, backend: InferenceBackend) -> None:
    pieces: list[str] = []

    def kill_at_first(piece: str) -> None:
        if not pieces:
            server.send(signal.SIGKILL)
        pieces.append(piece)

    with pytest.raises(ModelUnavailableError):
        backend.generate(asked('key', max_new_tokens=2000), Deadline(ANSWER_S), kill_at_first)
    with pytest.raises(ModelUnavailableError, match='is it running'):
        backend.generate(asked('key'), Deadline(ANSWER_S))
