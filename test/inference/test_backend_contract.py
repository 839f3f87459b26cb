"""What every engine owes its callers, whatever computes behind it."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from kv_agent_ros.deadline import Deadline
from kv_agent_ros.errors import BadRequestError, ModelUnavailableError, Outcome
from kv_agent_ros.inference.base import FinishReason, GenerationRequest, InferenceBackend, Message, Role
from kv_agent_ros.inference.local import LocalBackend
from kv_agent_ros.inference.local_model import LocalModel
from kv_agent_ros.inference.loopback_server import serving, stall_after_hello, stream_hello
from kv_agent_ros.inference.openai_http import HttpSettings, OpenAiHttpBackend
from kv_agent_ros.inference.scripted import ScriptedBackend, answers_in_order
from kv_agent_ros.inference.sglang import connect_sglang
from kv_agent_ros.kvcache.block import SessionKey
from kv_agent_ros.kvcache.dram_tier import DramTier
from kv_agent_ros.kvcache.eviction import SessionLruPolicy
from kv_agent_ros.kvcache.manager import KVCacheManager
from kv_agent_ros.kvcache.session_index import SessionIndex
from kv_agent_ros.kvcache.storage.host import HostStore, SharedArena
from kv_agent_ros.kvcache.storage.segment import SegmentMap

Make = Callable[[ExitStack, LocalModel], InferenceBackend]

REQUEST = GenerationRequest(
    session=SessionKey(robot_id='robot1', session_id='s1'),
    messages=(Message(role=Role.SYSTEM, content='Plan for a robot.'), Message(role=Role.USER, content='Say hello')),
    max_new_tokens=40,
)


def make_scripted(stack: ExitStack, model: LocalModel) -> InferenceBackend:
    return ScriptedBackend(lambda request: 'Hello, robot. The cup is in the kitchen.')


def make_local(stack: ExitStack, model: LocalModel) -> InferenceBackend:
    sessions = SessionIndex()
    store = HostStore(SharedArena.create(16 << 20))
    manager = stack.enter_context(
        KVCacheManager(dram=DramTier(store=store, policy=SessionLruPolicy(sessions.is_referenced)), sessions=sessions)
    )
    return LocalBackend(model=model, cache=manager, segments=SegmentMap(), namespace=model.namespace(16))


def make_openai(stack: ExitStack, model: LocalModel) -> InferenceBackend:
    server = stack.enter_context(serving(stream_hello))
    return OpenAiHttpBackend(HttpSettings(base_url=server.base_url, model='m'))


def make_sglang(stack: ExitStack, model: LocalModel) -> InferenceBackend:
    server = stack.enter_context(serving(stream_hello))
    settings = HttpSettings(base_url=server.base_url, model='m', engine='sglang')
    return connect_sglang(settings, cache_salt='home', deadline=Deadline(10))


def make_stalling(stack: ExitStack, model: LocalModel) -> InferenceBackend:
    server = stack.enter_context(serving(stream_hello))
    server.answer = stall_after_hello(server)
    return OpenAiHttpBackend(HttpSettings(base_url=server.base_url, model='m'))


@pytest.fixture(params=[make_scripted, make_local, make_openai, make_sglang])
def backend(request: pytest.FixtureRequest, tiny_model: LocalModel) -> Iterator[InferenceBackend]:
    with ExitStack() as stack:
        made = request.param(stack, tiny_model)
        yield made
        made.close()


@pytest.fixture(params=[make_scripted, make_local, make_stalling])
def long_backend(request: pytest.FixtureRequest, tiny_model: LocalModel) -> Iterator[InferenceBackend]:
    """Engines that are never done by the time they are cancelled."""
    with ExitStack() as stack:
        yield request.param(stack, tiny_model)


def test_answer_is_whole_streamed_and_accounted(backend: InferenceBackend) -> None:
    pieces: list[str] = []
    answer = backend.generate(REQUEST, Deadline(30), pieces.append)
    usage = answer.usage
    assert answer.outcome is Outcome.SUCCESS
    assert answer.finish_reason in (FinishReason.STOP, FinishReason.LENGTH)
    assert ''.join(pieces) == answer.text != ''
    assert usage.prompt_tokens == usage.cached_tokens + usage.computed_tokens > 0
    assert 0 < usage.generated_tokens <= REQUEST.max_new_tokens
    assert 0 < usage.ttft_s <= usage.total_s
    assert answer.engine and answer.model


def test_books_add_up_over_requests(backend: InferenceBackend) -> None:
    answers = [backend.generate(REQUEST, Deadline(30)) for _ in range(2)]
    stats = backend.stats()
    assert (stats.num_requests, stats.num_failures) == (2, 0)
    assert stats.prompt_tokens == sum(answer.usage.prompt_tokens for answer in answers)
    assert stats.cached_tokens == sum(answer.usage.cached_tokens for answer in answers)
    assert stats.prefilled_tokens == sum(answer.usage.computed_tokens for answer in answers)
    assert stats.generated_tokens == sum(answer.usage.generated_tokens for answer in answers)
    assert stats.last_ttft_s == answers[-1].usage.ttft_s
    assert (stats.engine, stats.model) == (answers[0].engine, answers[0].model)


def test_repeated_prompt_is_mostly_cached(backend: InferenceBackend) -> None:
    first, second = (backend.generate(REQUEST, Deadline(30)) for _ in range(2))
    assert second.usage.cached_tokens > first.usage.prompt_tokens // 2
    assert second.usage.computed_tokens >= 1
    assert second.text == first.text


def test_deadline_that_has_passed_is_a_timeout_not_an_error(backend: InferenceBackend) -> None:
    answer = backend.generate(REQUEST, Deadline(1e-9))
    assert (answer.outcome, answer.finish_reason) == (Outcome.TIMEOUT, FinishReason.TIMEOUT)
    assert answer.message
    assert backend.stats().num_failures == 1


def test_cancelled_before_the_start_says_nothing(backend: InferenceBackend) -> None:
    deadline = Deadline(30)
    deadline.cancel()
    answer = backend.generate(REQUEST, deadline)
    assert (answer.outcome, answer.finish_reason, answer.text) == (Outcome.CANCELED, FinishReason.CANCELED, '')


def test_cancel_in_the_middle_keeps_what_was_said(long_backend: InferenceBackend) -> None:
    deadline = Deadline(30)
    pieces: list[str] = []

    def listen(text: str) -> None:
        pieces.append(text)
        deadline.cancel()

    answer = long_backend.generate(REQUEST, deadline, listen)
    assert (answer.outcome, answer.finish_reason) == (Outcome.CANCELED, FinishReason.CANCELED)
    assert answer.text == ''.join(pieces) != ''


def test_engine_answers_again_after_a_cancel(backend: InferenceBackend) -> None:
    deadline = Deadline(30)
    backend.generate(REQUEST, deadline, lambda text: deadline.cancel())
    assert backend.generate(REQUEST, Deadline(30)).outcome is Outcome.SUCCESS


def test_close_can_be_repeated(backend: InferenceBackend) -> None:
    backend.close()
    backend.close()


def test_script_that_has_run_out_is_an_unavailable_model() -> None:
    backend = ScriptedBackend(answers_in_order(['one']))
    assert backend.generate(REQUEST, Deadline(5)).text == 'one'
    with pytest.raises(ModelUnavailableError, match='at most 1'):
        backend.generate(REQUEST, Deadline(5))


def test_scripted_answer_respects_the_token_budget() -> None:
    backend = ScriptedBackend(lambda request: 'one two three four')
    answer = backend.generate(GenerationRequest(session=REQUEST.session, messages=(), max_new_tokens=3), Deadline(5))
    assert (answer.text, answer.finish_reason, answer.usage.generated_tokens) == ('one two', FinishReason.LENGTH, 3)


@pytest.mark.parametrize('make', [make_local, make_openai])
def test_schema_that_is_not_json_is_a_bad_request(make: Make, tiny_model: LocalModel, tmp_path: Path) -> None:
    with ExitStack() as stack:
        backend = make(stack, tiny_model)
        broken = GenerationRequest(session=REQUEST.session, messages=REQUEST.messages, json_schema='{')
        with pytest.raises(BadRequestError, match='json_schema'):
            backend.generate(broken, Deadline(5))
