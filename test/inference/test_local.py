"""The local engine over the real KV cache: what is reused is exact, counted truthfully, and never in the way."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
import json
from pathlib import Path
import threading

import numpy as np
import pytest

from kv_agent_ros.deadline import Deadline
from kv_agent_ros.errors import BadRequestError, ModelUnavailableError, Outcome, UnreachableError
from kv_agent_ros.inference.base import FinishReason, Generation, GenerationRequest, Message, Role
from kv_agent_ros.inference.local import LocalBackend
from kv_agent_ros.inference.local_engine import DEFAULT_BATCHING, Batching
from kv_agent_ros.inference.local_llama import KVBuffer
from kv_agent_ros.inference.local_model import LocalModel
from kv_agent_ros.inference.local_reuse import KVReuse
from kv_agent_ros.kvcache.base import PrefixCache
from kv_agent_ros.kvcache.block import CacheStats, KVNamespace, PrefixLease, SessionKey, Tier, TokenArray, WriteLease
from kv_agent_ros.kvcache.dram_tier import DramTier
from kv_agent_ros.kvcache.eviction import SessionLruPolicy
from kv_agent_ros.kvcache.manager import KVCacheManager
from kv_agent_ros.kvcache.session_index import SessionIndex
from kv_agent_ros.kvcache.storage.disk import DiskStore
from kv_agent_ros.kvcache.storage.host import HostStore, SharedArena
from kv_agent_ros.kvcache.storage.segment import SegmentMap
from kv_agent_ros.kvcache.storage.tiered import BackingTier

SESSION = SessionKey(robot_id='robot1', session_id='s1')
BLOCK_TOKENS = 16
SYSTEM = Message(role=Role.SYSTEM, content='You plan for a robot that tidies a home with four rooms. ' * 3)
ASK = Message(role=Role.USER, content='Bring me the cup.')


@contextmanager
def managed(directory: Path, dram_bytes: int = 64 << 20) -> Iterator[KVCacheManager]:
    sessions = SessionIndex()
    tier = BackingTier.open(tier=Tier.SSD, store=DiskStore.open(directory, 256 << 20))
    with KVCacheManager(
        dram=DramTier(store=HostStore(SharedArena.create(dram_bytes)), policy=SessionLruPolicy(sessions.is_referenced)),
        sessions=sessions,
        backing=(tier,),
    ) as manager:
        yield manager
        assert manager.stats().num_leases == 0
        manager.check_integrity()


@pytest.fixture
def manager(tmp_path: Path) -> Iterator[KVCacheManager]:
    with managed(tmp_path / 'kv') as opened:
        yield opened


def backend_over(
    model: LocalModel, cache: PrefixCache, dtype: str = 'float32', batching: Batching = DEFAULT_BATCHING
) -> LocalBackend:
    namespace = model.namespace(BLOCK_TOKENS, dtype)
    return LocalBackend(model=model, cache=cache, segments=SegmentMap(), namespace=namespace, batching=batching)


def ask(backend: LocalBackend, *messages: Message, **changes: object) -> Generation:
    values = {'session': SESSION, 'messages': messages, 'max_new_tokens': 24}
    return backend.generate(GenerationRequest(**(values | changes)), Deadline(60))


class FaultyCache:
    """A PrefixCache around another in which chosen calls do not answer."""

    def __init__(self, inner: PrefixCache, broken: Sequence[str]) -> None:
        self._inner = inner
        self._broken = broken

    def _pass(self, call: str) -> PrefixCache:
        if call in self._broken:
            raise UnreachableError(f'{call}: expected an answer within 1 s, got none')
        return self._inner

    def acquire(self, namespace: KVNamespace, session: SessionKey, tokens: TokenArray) -> PrefixLease:
        return self._pass('acquire').acquire(namespace, session, tokens)

    def reserve(self, namespace: KVNamespace, session: SessionKey, tokens: TokenArray) -> WriteLease:
        return self._pass('reserve').reserve(namespace, session, tokens)

    def commit(self, lease_id: str, checksums: Sequence[bytes]) -> int:
        return self._pass('commit').commit(lease_id, checksums)

    def release(self, lease_id: str) -> None:
        self._pass('release').release(lease_id)

    def discard(self, lease_id: str, num_good_blocks: int) -> None:
        self._pass('discard').discard(lease_id, num_good_blocks)

    def pin(self, session: SessionKey, duration_s: float) -> int:
        return self._inner.pin(session, duration_s)

    def end_session(self, session: SessionKey) -> int:
        return self._inner.end_session(session)

    def stats(self) -> CacheStats:
        return self._inner.stats()


def test_second_request_reuses_all_full_blocks_and_says_the_same(
    tiny_model: LocalModel, manager: KVCacheManager
) -> None:
    backend = backend_over(tiny_model, manager)
    cold, warm = ask(backend, SYSTEM, ASK), ask(backend, SYSTEM, ASK)
    num_prompt = len(tiny_model.chat.prompt([SYSTEM, ASK]))
    assert (cold.usage.prompt_tokens, cold.usage.cached_tokens) == (num_prompt, 0)
    assert warm.usage.cached_tokens == (num_prompt - 1) // BLOCK_TOKENS * BLOCK_TOKENS
    assert warm.usage.computed_tokens == num_prompt - warm.usage.cached_tokens
    assert warm.token_ids == cold.token_ids
    assert backend.stats().cached_tokens == manager.stats().cached_tokens == warm.usage.cached_tokens


def test_generated_tokens_are_cached_for_the_next_turn(tiny_model: LocalModel, manager: KVCacheManager) -> None:
    backend = backend_over(tiny_model, manager)
    first = ask(backend, SYSTEM, ASK, max_new_tokens=40)
    assert first.usage.generated_tokens == 40
    said = Message(role=Role.ASSISTANT, content=first.text, token_ids=first.token_ids)
    second = ask(backend, SYSTEM, ASK, said, ASK)
    # The last generated token was never an input of the network, so its block may still be open.
    held = first.usage.prompt_tokens + 39
    assert second.usage.cached_tokens == held // BLOCK_TOKENS * BLOCK_TOKENS > first.usage.prompt_tokens


def test_another_robot_reuses_the_shared_head(tiny_model: LocalModel, manager: KVCacheManager) -> None:
    backend = backend_over(tiny_model, manager)
    ask(backend, SYSTEM, ASK)
    other = SessionKey(robot_id='robot2', session_id='s1')
    answer = ask(backend, SYSTEM, Message(role=Role.USER, content='Go to the dock.'), session=other)
    head = len(tiny_model.chat.prompt([SYSTEM])) - len(tiny_model.chat.prompt([]))
    assert answer.usage.cached_tokens >= head // BLOCK_TOKENS * BLOCK_TOKENS


@pytest.mark.parametrize(('dtype', 'tolerance'), [('float32', 1e-4), ('float16', 0.05)])
@pytest.mark.parametrize('num_tail', [1, 5, 40, 300])
def test_logits_with_reused_kv_equal_a_cold_prefill(
    tiny_model: LocalModel, manager: KVCacheManager, dtype: str, tolerance: float, num_tail: int
) -> None:
    random = np.random.default_rng(4)
    tokens = random.integers(0, tiny_model.llama.config.vocab_size, 400).astype(np.int32)
    reuse = KVReuse(cache=manager, segments=SegmentMap(), namespace=tiny_model.namespace(BLOCK_TOKENS, dtype))
    cold, warm = KVBuffer(tiny_model.llama.config), KVBuffer(tiny_model.llama.config)
    expected = tiny_model.llama.forward(tokens, cold, 0)
    assert reuse.store(SESSION, tokens[: len(tokens) - num_tail], cold) > 0
    warm.ensure(400, 0)
    warm.values.fill_(float('nan'))  # anything that is read without having been copied shows
    num_cached = reuse.fetch(SESSION, tokens, warm)
    assert num_cached == (len(tokens) - num_tail) // BLOCK_TOKENS * BLOCK_TOKENS
    got = tiny_model.llama.forward(tokens[num_cached:], warm, num_cached)
    assert np.abs(got - expected).max() <= tolerance


def test_smollm2_answers_alike_cold_warm_and_after_a_restart_from_disk(smollm2: LocalModel, tmp_path: Path) -> None:
    question = Message(role=Role.USER, content='What is the capital of France?')
    answers = []
    for _ in range(2):
        with managed(tmp_path / 'kv', 128 << 20) as manager:
            backend = backend_over(smollm2, manager)
            answers += [ask(backend, SYSTEM, question, max_new_tokens=8) for _ in range(2)]
            assert manager.flush(10)
    assert [answer.text for answer in answers] == ['The capital of France is Paris.'] * 4
    assert [answer.usage.cached_tokens for answer in answers] == [0, 48, 48, 48]


def test_corrupt_block_ends_the_prefix_and_is_made_anew(tiny_model: LocalModel, manager: KVCacheManager) -> None:
    backend = backend_over(tiny_model, manager)
    cold = ask(backend, SYSTEM, ASK)
    assert manager.flush(10)  # else the copy to disk may be the first to see it
    tokens = tiny_model.chat.prompt([SYSTEM, ASK])
    lease = manager.acquire(tiny_model.namespace(BLOCK_TOKENS), SESSION, tokens)
    manager.release(lease.lease_id)
    SegmentMap().slot(lease.slots[2])[100] ^= 1
    after = ask(backend, SYSTEM, ASK)
    assert after.usage.cached_tokens == 2 * BLOCK_TOKENS
    assert after.token_ids == cold.token_ids
    assert backend.reuse_stats.num_bad_checksums == 1
    assert ask(backend, SYSTEM, ASK).usage.cached_tokens == lease.matched_tokens


@pytest.mark.parametrize('broken', ['acquire', 'reserve', 'commit', 'release', 'discard'])
def test_unreachable_cache_costs_time_but_never_the_answer(tiny_model: LocalModel, tmp_path: Path, broken: str) -> None:
    sessions = SessionIndex()
    with KVCacheManager(
        dram=DramTier(store=HostStore(SharedArena.create(16 << 20)), policy=SessionLruPolicy(sessions.is_referenced)),
        sessions=sessions,
    ) as manager:
        expected = ask(backend_over(tiny_model, manager), SYSTEM, ASK)
        lease = manager.acquire(tiny_model.namespace(BLOCK_TOKENS), SESSION, tiny_model.chat.prompt([SYSTEM, ASK]))
        manager.release(lease.lease_id)
        SegmentMap().slot(lease.slots[-1])[0] ^= 1
        backend = backend_over(tiny_model, FaultyCache(manager, [broken]))
        answer = ask(backend, SYSTEM, ASK)
    assert (answer.outcome, answer.token_ids) == (Outcome.SUCCESS, expected.token_ids)
    assert backend.reuse_stats.num_faults >= 1
    assert answer.usage.cached_tokens == (0 if broken == 'acquire' else lease.matched_tokens - BLOCK_TOKENS)


def test_segment_that_is_gone_is_a_miss(tiny_model: LocalModel, manager: KVCacheManager, tmp_path: Path) -> None:
    ask(backend_over(tiny_model, manager), SYSTEM, ASK)
    elsewhere = SegmentMap([tmp_path])
    namespace = tiny_model.namespace(BLOCK_TOKENS)
    backend = LocalBackend(model=tiny_model, cache=manager, segments=elsewhere, namespace=namespace)
    answer = ask(backend, SYSTEM, ASK)
    assert (answer.outcome, answer.usage.cached_tokens) == (Outcome.SUCCESS, 0)


def test_cache_without_room_still_answers(tiny_model: LocalModel, tmp_path: Path) -> None:
    with managed(tmp_path / 'kv', 3 * tiny_model.namespace(BLOCK_TOKENS).block_bytes) as manager:
        backend = backend_over(tiny_model, manager)
        first, second = ask(backend, SYSTEM, ASK), ask(backend, SYSTEM, ASK)
    assert first.token_ids == second.token_ids
    assert second.usage.cached_tokens <= 3 * BLOCK_TOKENS


def test_cancel_while_text_streams_keeps_the_partial_answer(tiny_model: LocalModel, manager: KVCacheManager) -> None:
    deadline = Deadline(60)
    pieces: list[str] = []

    def listen(text: str) -> None:
        pieces.append(text)
        if len(pieces) == 3:
            deadline.cancel()

    request = GenerationRequest(session=SESSION, messages=(SYSTEM, ASK), max_new_tokens=500)
    answer = backend_over(tiny_model, manager).generate(request, deadline, listen)
    assert (answer.outcome, answer.finish_reason) == (Outcome.CANCELED, FinishReason.CANCELED)
    assert ''.join(pieces) == answer.text
    assert answer.usage.generated_tokens < 20
    warm = ask(backend_over(tiny_model, manager), SYSTEM, ASK)
    assert warm.usage.cached_tokens > 0  # what the cancelled request computed is not lost


def test_cancel_between_prefill_chunks_keeps_the_chunks(tiny_model: LocalModel, manager: KVCacheManager) -> None:
    class CountingClock:
        """Time passes by being read."""

        now_s = 0.0

        def __call__(self) -> float:
            self.now_s += 1.0
            return self.now_s

    long = Message(role=Role.USER, content='a' * 900)
    request = GenerationRequest(session=SESSION, messages=(long,), max_new_tokens=8)
    backend = backend_over(tiny_model, manager)
    answer = backend.generate(request, Deadline(4.5, CountingClock()))
    assert (answer.outcome, answer.finish_reason, answer.text) == (Outcome.TIMEOUT, FinishReason.TIMEOUT, '')
    again = backend.generate(request, Deadline(60))
    assert 0 < again.usage.cached_tokens < 900
    assert again.usage.cached_tokens % 256 == 0


def test_request_that_waits_too_long_for_its_turn_is_late(tiny_model: LocalModel, manager: KVCacheManager) -> None:
    backend = backend_over(tiny_model, manager, batching=Batching(max_batch=1))
    late: list[Generation] = []

    def listen(text: str) -> None:
        if not late:
            request = GenerationRequest(session=SESSION, messages=(ASK,))
            thread = threading.Thread(target=lambda: late.append(backend.generate(request, Deadline(0.05))))
            thread.start()
            thread.join(10)

    request = GenerationRequest(session=SESSION, messages=(SYSTEM, ASK), max_new_tokens=500)
    assert backend.generate(request, Deadline(60), listen).outcome is Outcome.SUCCESS
    assert (late[0].outcome, late[0].usage.cached_tokens, late[0].text) == (Outcome.TIMEOUT, 0, '')


def test_listener_that_fails_leaks_neither_turn_nor_lease(tiny_model: LocalModel, manager: KVCacheManager) -> None:
    def fail(text: str) -> None:
        raise ZeroDivisionError

    backend = backend_over(tiny_model, manager)
    with pytest.raises(ZeroDivisionError):
        backend.generate(GenerationRequest(session=SESSION, messages=(SYSTEM, ASK)), Deadline(60), fail)
    assert manager.stats().num_leases == 0
    assert ask(backend, SYSTEM, ASK).outcome is Outcome.SUCCESS


def test_json_is_the_same_cold_and_warm_and_fits_its_schema(smollm2: LocalModel, manager: KVCacheManager) -> None:
    schema = {
        'type': 'object',
        'properties': {'skill': {'enum': ['navigate', 'pick']}, 'place': {'enum': ['kitchen', 'bedroom']}},
        'required': ['skill', 'place'],
        'additionalProperties': False,
    }
    backend = backend_over(smollm2, manager)
    asked = Message(role=Role.USER, content='Go to the kitchen. Answer in JSON.')
    cold, warm = (ask(backend, SYSTEM, asked, json_schema=json.dumps(schema)) for _ in range(2))
    assert json.loads(cold.text).keys() == {'skill', 'place'}
    assert (cold.text, cold.token_ids, cold.finish_reason) == (warm.text, warm.token_ids, FinishReason.STOP)
    assert warm.usage.cached_tokens > 0


def test_json_that_does_not_fit_the_budget_ends_by_length(tiny_model: LocalModel, manager: KVCacheManager) -> None:
    backend = backend_over(tiny_model, manager)
    schema = '{"const":{"alpha":1}}'
    whole = ask(backend, ASK, json_schema=schema)
    cut = ask(backend, ASK, json_schema=schema, max_new_tokens=6)
    assert (whole.text, whole.finish_reason) == ('{"alpha":1}', FinishReason.STOP)
    assert (cut.text, cut.finish_reason) == ('{"alph', FinishReason.LENGTH)


def test_answer_stops_at_the_end_of_the_context(tiny_model: LocalModel, manager: KVCacheManager) -> None:
    backend = backend_over(tiny_model, manager)
    num_frame = len(tiny_model.chat.prompt([Message(role=Role.USER, content='')]))
    nearly_full = Message(role=Role.USER, content='a' * (1024 - num_frame - 5))
    answer = ask(backend, nearly_full, max_new_tokens=100, temperature=1.0, json_schema='{"type":"string"}')
    assert answer.usage.generated_tokens <= 5
    with pytest.raises(BadRequestError, match='1024'):
        ask(backend, Message(role=Role.USER, content='a' * 1024))


def test_seeded_temperature_repeats_itself(tiny_model: LocalModel, manager: KVCacheManager) -> None:
    backend = backend_over(tiny_model, manager)
    first, again, other = (ask(backend, ASK, temperature=1.0, seed=seed).token_ids for seed in (1, 1, 2))
    assert first == again != other


def test_interleaved_robots_do_not_hear_each_other(tiny_model: LocalModel, tmp_path: Path) -> None:
    robots = [SessionKey(robot_id=f'robot{index}', session_id='s') for index in range(3)]

    def talk(backend: LocalBackend, robot: SessionKey, num_turns: int) -> Iterator[str]:
        turns = [SYSTEM]
        for number in range(num_turns):
            turns.append(Message(role=Role.USER, content=f'{robot.robot_id} turn {number}'))
            answer = ask(backend, *turns, session=robot)
            turns.append(Message(role=Role.ASSISTANT, content=answer.text, token_ids=answer.token_ids))
            yield answer.text

    alone = []
    for robot in robots:
        with managed(tmp_path / robot.robot_id) as manager:
            alone.append(list(talk(backend_over(tiny_model, manager), robot, 3)))
    with managed(tmp_path / 'together') as manager:
        backend = backend_over(tiny_model, manager)
        rounds = list(zip(*(talk(backend, robot, 3) for robot in robots), strict=True))
    assert [list(said) for said in zip(*rounds, strict=True)] == alone


def test_two_engines_share_one_cache(tiny_model: LocalModel, manager: KVCacheManager) -> None:
    first = ask(backend_over(tiny_model, manager), SYSTEM, ASK)
    second = ask(backend_over(tiny_model, manager), SYSTEM, ASK)
    assert second.usage.cached_tokens > 0
    assert second.token_ids == first.token_ids


def test_storage_precisions_do_not_meet(tiny_model: LocalModel, manager: KVCacheManager) -> None:
    ask(backend_over(tiny_model, manager, 'float16'), SYSTEM, ASK)
    assert ask(backend_over(tiny_model, manager, 'float32'), SYSTEM, ASK).usage.cached_tokens == 0
    assert ask(backend_over(tiny_model, manager, 'float16'), SYSTEM, ASK).usage.cached_tokens > 0


def test_closed_engine_refuses(tiny_model: LocalModel, manager: KVCacheManager) -> None:
    backend = backend_over(tiny_model, manager)
    backend.close()
    backend.close()
    with pytest.raises(ModelUnavailableError, match='closed'):
        ask(backend, ASK)


@pytest.mark.parametrize(
    'changes', [{'max_new_tokens': 0}, {'max_new_tokens': -1}, {'temperature': -1.0}, {'json_schema': '{'}]
)
def test_malformed_request_is_refused_before_any_work(
    tiny_model: LocalModel, manager: KVCacheManager, changes: dict[str, object]
) -> None:
    backend = backend_over(tiny_model, manager)
    with pytest.raises(BadRequestError):
        ask(backend, ASK, **changes)
    assert backend.stats().num_requests == 0
