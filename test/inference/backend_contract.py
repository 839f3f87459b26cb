"""What every engine owes its callers: tests over the fixture `backend`, for files that bring one and import these."""

from dataclasses import replace
import json
import threading

import jsonschema
import pytest

from kv_agent_ros.deadline import Deadline
from kv_agent_ros.errors import BadRequestError, ModelUnavailableError, Outcome
from kv_agent_ros.inference.base import FinishReason, GenerationRequest, InferenceBackend, Message, Role
from kv_agent_ros.kvcache.block import SessionKey

ANSWER_S = 180.0
HEAD = 'Plan for a robot. ' + ' '.join(f'The plate {number} is in room {number * 7 % 31}.' for number in range(30))
REQUEST = GenerationRequest(
    session=SessionKey(robot_id='robot1', session_id='s1'),
    messages=(Message(role=Role.SYSTEM, content=HEAD), Message(role=Role.USER, content='Tell a long story')),
    max_new_tokens=12,
)
SCHEMA = {
    'type': 'object',
    'properties': {'skill': {'enum': ['go', 'pick']}, 'target': {'enum': ['cup1', 'sink']}},
    'required': ['skill', 'target'],
    'additionalProperties': False,
}


def test_answer_is_whole_streamed_and_accounted(backend: InferenceBackend) -> None:
    pieces: list[str] = []
    answer = backend.generate(REQUEST, Deadline(ANSWER_S), pieces.append)
    usage = answer.usage
    assert answer.outcome is Outcome.SUCCESS
    assert answer.finish_reason in (FinishReason.STOP, FinishReason.LENGTH)
    assert ''.join(pieces) == answer.text != ''
    assert len(pieces) > 1
    assert usage.prompt_tokens == usage.cached_tokens + usage.computed_tokens > 0
    assert 0 < usage.generated_tokens <= REQUEST.max_new_tokens
    assert 0 < usage.ttft_s <= usage.total_s
    assert answer.engine and answer.model


def test_books_add_up_over_requests(backend: InferenceBackend) -> None:
    before = backend.stats()
    answers = [backend.generate(REQUEST, Deadline(ANSWER_S)) for _ in range(2)]
    stats = backend.stats()
    assert (stats.num_requests - before.num_requests, stats.num_failures) == (2, before.num_failures)
    assert stats.prompt_tokens - before.prompt_tokens == sum(answer.usage.prompt_tokens for answer in answers)
    assert stats.cached_tokens - before.cached_tokens == sum(answer.usage.cached_tokens for answer in answers)
    assert stats.prefilled_tokens - before.prefilled_tokens == sum(answer.usage.computed_tokens for answer in answers)
    assert stats.generated_tokens - before.generated_tokens == sum(answer.usage.generated_tokens for answer in answers)
    assert stats.last_ttft_s == answers[-1].usage.ttft_s
    assert stats.engine and stats.model


def test_repeated_prompt_is_mostly_cached(backend: InferenceBackend) -> None:
    first, second = (backend.generate(REQUEST, Deadline(ANSWER_S)) for _ in range(2))
    assert second.usage.cached_tokens > first.usage.prompt_tokens // 2
    assert second.usage.computed_tokens >= 1
    assert second.text == first.text


def test_answer_ends_at_the_token_budget(backend: InferenceBackend) -> None:
    answer = backend.generate(replace(REQUEST, max_new_tokens=3), Deadline(ANSWER_S))
    assert (answer.finish_reason, answer.usage.generated_tokens) == (FinishReason.LENGTH, 3)


def test_answer_under_a_schema_follows_it(backend: InferenceBackend) -> None:
    asked = replace(REQUEST, json_schema=json.dumps(SCHEMA), max_new_tokens=80)
    pieces: list[str] = []
    answer = backend.generate(asked, Deadline(ANSWER_S), pieces.append)
    jsonschema.validate(json.loads(answer.text), SCHEMA)
    assert (answer.finish_reason, ''.join(pieces)) == (FinishReason.STOP, answer.text)


@pytest.mark.parametrize('schema', ['{', '[1]'])
def test_schema_that_is_no_json_object_is_a_bad_request(backend: InferenceBackend, schema: str) -> None:
    with pytest.raises(BadRequestError, match='json_schema'):
        backend.generate(replace(REQUEST, json_schema=schema), Deadline(ANSWER_S))


def test_deadline_that_has_passed_is_a_timeout_not_an_error(backend: InferenceBackend) -> None:
    before = backend.stats().num_failures
    answer = backend.generate(REQUEST, Deadline(1e-9))
    assert (answer.outcome, answer.finish_reason, answer.text) == (Outcome.TIMEOUT, FinishReason.TIMEOUT, '')
    assert answer.message
    assert backend.stats().num_failures == before + 1


def test_cancelled_before_the_start_says_nothing(backend: InferenceBackend) -> None:
    deadline = Deadline(ANSWER_S)
    deadline.cancel()
    answer = backend.generate(REQUEST, deadline)
    assert (answer.outcome, answer.finish_reason, answer.text) == (Outcome.CANCELED, FinishReason.CANCELED, '')


def test_engine_answers_again_after_a_cancel(backend: InferenceBackend) -> None:
    deadline = Deadline(ANSWER_S)
    pieces: list[str] = []

    def listen(piece: str) -> None:
        pieces.append(piece)
        deadline.cancel()

    cut = backend.generate(REQUEST, deadline, listen)
    assert ''.join(pieces) == cut.text
    assert backend.generate(REQUEST, Deadline(ANSWER_S)).outcome is Outcome.SUCCESS


def test_two_robots_are_answered_at_once_each_by_its_own(backend: InferenceBackend) -> None:
    alone = backend.generate(REQUEST, Deadline(ANSWER_S)).text
    texts: dict[str, tuple[str, str]] = {}

    def ask(robot: str) -> None:
        pieces: list[str] = []
        request = replace(REQUEST, session=SessionKey(robot_id=robot, session_id='s'))
        answer = backend.generate(request, Deadline(ANSWER_S), pieces.append)
        texts[robot] = answer.text, ''.join(pieces)

    threads = [threading.Thread(target=ask, args=(f'robot{number}',)) for number in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(ANSWER_S)
    assert texts == {f'robot{number}': (alone, alone) for number in range(3)}


def test_closed_engine_is_an_unavailable_model_and_close_can_be_repeated(backend: InferenceBackend) -> None:
    backend.close()
    backend.close()
    with pytest.raises(ModelUnavailableError):
        backend.generate(REQUEST, Deadline(ANSWER_S))
