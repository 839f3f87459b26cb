"""Several robots at once on the local engine: each is told what it would be told alone, in the right order."""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import replace
from itertools import count
import threading

from batch_engine import (
    BLOCK_TOKENS,
    SCHEMA,
    SYSTEM,
    TIMEOUT_S,
    Spoken,
    asked,
    engine,
    engine_threads,
    together,
    wait_until,
)
import numpy as np
import pytest

from kv_agent_ros.deadline import Deadline
from kv_agent_ros.errors import BadRequestError, DeadlineError, ModelUnavailableError, Outcome
from kv_agent_ros.inference.base import FinishReason, GenerationRequest, Message, Role
from kv_agent_ros.inference.local import LocalBackend
from kv_agent_ros.inference.local_engine import Batching
from kv_agent_ros.inference.local_llama import KVBuffer, Llama, Part
from kv_agent_ros.inference.local_model import LocalModel
from kv_agent_ros.kvcache.dram_tier import DramTier
from kv_agent_ros.kvcache.eviction import SessionLruPolicy
from kv_agent_ros.kvcache.manager import KVCacheManager
from kv_agent_ros.kvcache.session_index import SessionIndex
from kv_agent_ros.kvcache.storage.host import HostStore, SharedArena
from kv_agent_ros.kvcache.storage.segment import SegmentMap


@pytest.mark.parametrize('num_sequences', [2, 5, 9])
def test_logits_of_a_batch_are_those_of_each_sequence_alone(tiny_model: LocalModel, num_sequences: int) -> None:
    llama = tiny_model.llama
    random_ = np.random.default_rng(num_sequences)
    starts = [int(start) for start in random_.integers(0, 300, num_sequences)]
    lengths = [1, 70, *random_.integers(1, 4, num_sequences - 2).tolist()]
    parts, alone = [], []
    for start, length in zip(starts, lengths, strict=True):
        tokens = random_.integers(0, llama.config.vocab_size, start + length).astype(np.int32)
        alone.append(llama.forward(tokens, KVBuffer(llama.config), 0))
        buffer = KVBuffer(llama.config)
        if start:
            llama.forward(tokens[:start], buffer, 0)
        parts.append(Part(tokens=tokens[start:], buffer=buffer, start=start))
    assert np.abs(llama.forward_batch(parts) - np.stack(alone)).max() < 1e-4


@pytest.mark.parametrize('batching', [Batching(max_batch=2, chunk_tokens=16), Batching(), Batching(chunk_tokens=33)])
def test_answers_together_are_the_answers_alone(tiny_model: LocalModel, batching: Batching) -> None:
    kinds = [{}, {'temperature': 1.0, 'seed': 3}, {'json_schema': SCHEMA}, {'max_new_tokens': 3}, {'priority': 4}]
    requests = [asked(f'robot{n}', f'turn {n} ' * (1 + 7 * n), **kinds[n % len(kinds)]) for n in range(10)]
    alone = []
    for request in requests:
        with engine(tiny_model) as (backend, _):
            alone.append(backend.generate(request, Deadline(TIMEOUT_S)))
    with engine(tiny_model, batching) as (backend, manager):
        answers = together(backend, requests)
        stats = manager.stats()
    assert [(a.token_ids, a.text, a.finish_reason) for a in answers] == [
        (a.token_ids, a.text, a.finish_reason) for a in alone
    ]
    assert stats.cached_tokens >= sum(answer.usage.cached_tokens for answer in answers) > 0


def test_robots_talk_in_parallel_over_several_turns_as_they_do_alone(tiny_model: LocalModel) -> None:
    def talk(backend: LocalBackend, robot: str) -> list[str]:
        turns, said = [SYSTEM], []
        for number in range(4):
            turns.append(Message(role=Role.USER, content=f'{robot} turn {number}'))
            answer = backend.generate(asked(robot, '', messages=tuple(turns)), Deadline(TIMEOUT_S))
            turns.append(Message(role=Role.ASSISTANT, content=answer.text, token_ids=answer.token_ids))
            said.append(answer.text)
            assert answer.usage.cached_tokens > 0 or number == 0
        return said

    robots = [f'robot{number}' for number in range(6)]
    alone = []
    for robot in robots:
        with engine(tiny_model) as (backend, _):
            alone.append(talk(backend, robot))
    with engine(tiny_model) as (backend, _), ThreadPoolExecutor(len(robots)) as pool:
        assert list(pool.map(lambda robot: talk(backend, robot), robots)) == alone


def test_smollm2_says_the_same_together_and_alone(smollm2: LocalModel) -> None:
    questions = ['What is the capital of France?', 'Name a fruit.', 'Where do cups belong in a kitchen?', 'Count to 5.']
    requests = [asked(f'robot{n}', question, max_new_tokens=12) for n, question in enumerate(questions)]
    with engine(smollm2) as (backend, _):
        alone = [backend.generate(request, Deadline(TIMEOUT_S)).token_ids for request in requests]
    with engine(smollm2) as (backend, _):
        answers = together(backend, requests)
    assert [answer.token_ids for answer in answers] == alone
    assert 'Paris' in answers[0].text


def test_shared_prefix_is_computed_once_even_when_all_ask_at_once(tiny_model: LocalModel) -> None:
    head = Message(role=Role.SYSTEM, content='word ' * 100)
    num_shared = len(tiny_model.chat.prompt([head])) - len(tiny_model.chat.prompt([]))
    requests = [asked(f'robot{n}', '', messages=(head, Message(role=Role.USER, content=f'{n}'))) for n in range(6)]
    with engine(tiny_model, Batching(chunk_tokens=64)) as (backend, _):
        answers = together(backend, requests)
    cached = sorted(answer.usage.cached_tokens for answer in answers)
    assert cached[0] == 0
    assert all(num_tokens >= num_shared // BLOCK_TOKENS * BLOCK_TOKENS for num_tokens in cached[1:])


def test_short_urgent_request_overtakes_a_long_prefill(tiny_model: LocalModel) -> None:
    long = asked('robot1', '', messages=(Message(role=Role.USER, content='a' * 900),), max_new_tokens=2)
    urgent = asked('robot2', 'stop', messages=(Message(role=Role.USER, content='stop'),), priority=9)
    order: list[str] = []

    def ask(name: str, request: GenerationRequest) -> None:
        backend.generate(request, Deadline(TIMEOUT_S))
        order.append(name)

    with engine(tiny_model, Batching(chunk_tokens=16)) as (backend, manager), ThreadPoolExecutor(2) as pool:
        asks = [pool.submit(ask, 'long', long)]
        wait_until(lambda: manager.stats().prompt_tokens > 0)  # the long one has begun
        asks.append(pool.submit(ask, 'urgent', urgent))
        wait(asks, TIMEOUT_S)
    assert order == ['urgent', 'long']


def test_urgent_request_takes_the_place_of_another_that_goes_on_afterwards(tiny_model: LocalModel) -> None:
    long = asked('robot1', 'tell me all', max_new_tokens=300)
    with engine(tiny_model) as (backend, _):
        expected = backend.generate(long, Deadline(TIMEOUT_S)).token_ids
    with engine(tiny_model, Batching(max_batch=1)) as (backend, _), ThreadPoolExecutor(1) as pool:
        spoken = Spoken()
        first = pool.submit(backend.generate, long, Deadline(TIMEOUT_S), spoken)
        assert spoken.begun.wait(TIMEOUT_S)
        urgent = backend.generate(asked('robot2', 'stop', max_new_tokens=4, priority=100), Deadline(TIMEOUT_S))
        assert not first.done()
        answer = first.result(TIMEOUT_S)
    assert urgent.outcome is Outcome.SUCCESS
    assert (answer.token_ids, answer.text) == (expected, spoken.text)


def test_nobody_starves_behind_a_stream_of_urgent_requests(tiny_model: LocalModel) -> None:
    ticks = count()
    sessions = SessionIndex()
    dram = DramTier(store=HostStore(SharedArena.create(16 << 20)), policy=SessionLruPolicy(sessions.is_referenced))
    with KVCacheManager(dram=dram, sessions=sessions) as manager:
        backend = LocalBackend(
            model=tiny_model,
            cache=manager,
            segments=SegmentMap(),
            namespace=tiny_model.namespace(BLOCK_TOKENS),
            batching=Batching(max_batch=1),
            clock=lambda: float(next(ticks)),
        )
        is_answered = threading.Event()

        def hurry(number: int) -> int:
            for turn in count():
                if is_answered.is_set() or turn == 500:
                    return turn
                backend.generate(asked(f'urgent{number}', f'{turn}', max_new_tokens=2, priority=9), Deadline(TIMEOUT_S))
            return 0

        with ThreadPoolExecutor(3) as pool:
            hurried = [pool.submit(hurry, number) for number in range(3)]
            wait_until(lambda: backend.stats().num_requests > 2)
            answer = backend.generate(asked('patient', 'hello', max_new_tokens=2), Deadline(TIMEOUT_S))
            is_answered.set()
            assert all(future.result(TIMEOUT_S) < 500 for future in hurried)
        backend.close()
    assert answer.outcome is Outcome.SUCCESS


def test_one_request_that_breaks_ends_no_other(tiny_model: LocalModel) -> None:
    class Broken:
        is_complete = False

        def forced(self) -> list[int]:
            return []

        def restrict(self, logits: np.ndarray) -> np.ndarray:
            raise ModelUnavailableError('grammar: expected to go on, got stuck')

        def accept(self, token: int) -> None: ...

    class Grammars:
        def constraint(self, json_schema: str) -> object:
            return Broken() if json_schema else tiny_model.grammars.constraint('')

    requests = [asked(f'robot{n}', f'{n}', max_new_tokens=40, json_schema='{}' if n == 1 else '') for n in range(4)]
    with engine(replace(tiny_model, grammars=Grammars())) as (backend, _), ThreadPoolExecutor(4) as pool:
        futures = [pool.submit(backend.generate, request, Deadline(TIMEOUT_S)) for request in requests]
        with pytest.raises(ModelUnavailableError, match='stuck'):
            futures[1].result(TIMEOUT_S)
        assert [futures[n].result(TIMEOUT_S).usage.generated_tokens for n in (0, 2, 3)] == [40, 40, 40]
        assert backend.stats().num_failures == 1


class FragileLlama:
    """Fails as told whenever a chosen token is in the batch."""

    def __init__(self, llama: Llama, token: int, error: Exception) -> None:
        self.config = llama.config
        self._llama = llama
        self._token = token
        self._error = error

    def forward_batch(self, parts: Sequence[Part]) -> np.ndarray:
        if any(self._token in part.tokens for part in parts):
            raise self._error
        return self._llama.forward_batch(parts)


def test_sequence_that_the_network_cannot_compute_ends_alone(tiny_model: LocalModel) -> None:
    llama = FragileLlama(tiny_model.llama, tiny_model.tokenizer.token_to_id('%'), RuntimeError('no memory'))
    requests = [asked(f'robot{n}', f'{n}', json_schema=SCHEMA) for n in range(3)]
    with engine(replace(tiny_model, llama=llama)) as (backend, _), ThreadPoolExecutor(4) as pool:
        futures = [pool.submit(backend.generate, request, Deadline(TIMEOUT_S)) for request in requests]
        with pytest.raises(ModelUnavailableError, match='no memory'):
            backend.generate(asked('robot9', '100 %'), Deadline(TIMEOUT_S))
        assert all(future.result(TIMEOUT_S).outcome is Outcome.SUCCESS for future in futures)
        assert backend.stats().num_failures == 1


@pytest.mark.filterwarnings('ignore::pytest.PytestUnhandledThreadExceptionWarning')
def test_engine_that_breaks_tells_all_callers_and_serves_the_next(tiny_model: LocalModel) -> None:
    llama = FragileLlama(tiny_model.llama, tiny_model.tokenizer.token_to_id('%'), ZeroDivisionError())
    with engine(replace(tiny_model, llama=llama)) as (backend, _), ThreadPoolExecutor(1) as pool:
        spoken = Spoken()
        other = pool.submit(backend.generate, asked('robot1', '1', max_new_tokens=500), Deadline(TIMEOUT_S), spoken)
        assert spoken.begun.wait(TIMEOUT_S)
        with pytest.raises(ModelUnavailableError, match='ZeroDivisionError'):
            backend.generate(asked('robot9', '100 %'), Deadline(TIMEOUT_S))
        with pytest.raises(ModelUnavailableError, match='ZeroDivisionError'):
            other.result(TIMEOUT_S)
        wait_until(lambda: not engine_threads())
        assert backend.generate(asked('robot2', '2'), Deadline(TIMEOUT_S)).outcome is Outcome.SUCCESS


def test_token_id_outside_the_vocabulary_is_a_bad_request(tiny_model: LocalModel) -> None:
    wrong = Message(role=Role.ASSISTANT, content='?', token_ids=(10**6,))
    with engine(tiny_model) as (backend, _), pytest.raises(BadRequestError, match='token_ids'):
        backend.generate(asked('robot9', '', messages=(SYSTEM, wrong)), Deadline(TIMEOUT_S))


def test_cancel_of_one_leaves_the_others_alone_and_within_a_step(tiny_model: LocalModel) -> None:
    deadline = Deadline(TIMEOUT_S)
    heard: list[str] = []

    def listen(text: str) -> None:
        heard.append(text)
        if len(heard) == 3:
            deadline.cancel()

    with engine(tiny_model) as (backend, _), ThreadPoolExecutor(3) as pool:
        canceled = pool.submit(backend.generate, asked('robot1', 'long', max_new_tokens=500), deadline, listen)
        others = [
            pool.submit(backend.generate, asked(f'robot{n}', f'{n}', max_new_tokens=60), Deadline(TIMEOUT_S))
            for n in (2, 3)
        ]
        answer = canceled.result(TIMEOUT_S)
        assert [other.result(TIMEOUT_S).usage.generated_tokens for other in others] == [60, 60]
    assert (answer.finish_reason, answer.text) == (FinishReason.CANCELED, ''.join(heard))
    assert len(heard) == 3 or (len(heard) == 4 and heard[3] == '\ufffd')


def test_scores_are_the_summed_log_probabilities_of_each_continuation(tiny_model: LocalModel) -> None:
    request = asked('robot1', 'which plan?')
    plans = ['go to the kitchen', 'wait', 'go to the bed']
    prompt = tiny_model.chat.prompt(request.messages)
    expected = []
    for plan in plans:
        said = tiny_model.tokenizer.encode(plan, add_special_tokens=False).ids
        total, buffer = 0.0, KVBuffer(tiny_model.llama.config)
        logits = tiny_model.llama.forward(prompt, buffer, 0)
        for place, token in enumerate(said):
            total += float(logits[token] - np.log(np.exp(logits.astype(np.float64)).sum()))
            logits = tiny_model.llama.forward(np.array([token], np.int32), buffer, len(prompt) + place)
        expected.append(total)
    with engine(tiny_model) as (backend, _):
        scores = backend.score(request, plans, Deadline(TIMEOUT_S))
        with pytest.raises(BadRequestError):
            backend.score(request, ['fine', ''], Deadline(TIMEOUT_S))
        with pytest.raises(DeadlineError):
            backend.score(request, plans, Deadline(1e-6))
    assert [score.continuation for score in scores] == plans
    assert [score.log_probability for score in scores] == pytest.approx(expected, abs=1e-3)
    assert scores[1].num_tokens == 4


def test_smollm2_finds_the_right_capital_more_likely(smollm2: LocalModel) -> None:
    request = asked('robot1', 'What is the capital of France? Answer in one word.')
    with engine(smollm2) as (backend, _):
        scores = backend.score(request, ['Paris', 'Madrid', 'Berlin'], Deadline(TIMEOUT_S))
    assert max(scores, key=lambda score: score.log_probability).continuation == 'Paris'


def test_thread_ends_when_there_is_nothing_to_do_and_comes_back(tiny_model: LocalModel) -> None:
    with engine(tiny_model) as (backend, _):
        backend.generate(asked('robot1', 'one'), Deadline(TIMEOUT_S))
        wait_until(lambda: not engine_threads())
        assert backend.generate(asked('robot1', 'two'), Deadline(TIMEOUT_S)).outcome is Outcome.SUCCESS
    wait_until(lambda: not engine_threads())
