"""Our backend against a real SGLang server with a real model on this machine."""

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass
import json
from pathlib import Path
import random
import signal
import statistics
import threading
import time

import jsonschema
import psutil
import pytest
from sglang_process import SglangProcess

from kv_agent_ros.deadline import Deadline
from kv_agent_ros.errors import BadRequestError, ModelUnavailableError, Outcome
from kv_agent_ros.inference.base import FinishReason, Generation, GenerationRequest, Message, Role, ignore_tokens
from kv_agent_ros.inference.chat_format import ChatTokenizer, chat_format_of, read_tokenizer
from kv_agent_ros.inference.engine_mirror import MirrorState, MirrorStats
from kv_agent_ros.inference.kv_events import EventFollower
from kv_agent_ros.inference.local import LocalBackend
from kv_agent_ros.inference.local_model import load_local_model
from kv_agent_ros.inference.openai_http import HttpSettings
from kv_agent_ros.inference.sglang import SglangBackend, connect_sglang
from kv_agent_ros.inference.sglang_server import PriorityOrder
from kv_agent_ros.kvcache.block import SessionKey, Tier
from kv_agent_ros.kvcache.dram_tier import DramTier
from kv_agent_ros.kvcache.eviction import SessionLruPolicy
from kv_agent_ros.kvcache.manager import KVCacheManager
from kv_agent_ros.kvcache.session_index import SessionIndex
from kv_agent_ros.kvcache.storage.host import HostStore, SharedArena
from kv_agent_ros.kvcache.storage.segment import SegmentMap

pytestmark = pytest.mark.sglang

PAGE_TOKENS = 16
ANSWER_S = 60.0
TOKEN_BYTES = 2 * 30 * 3 * 64 * 4  # of SmolLM2's keys and values in float32, as SGLang's own file backend writes them
PLAN_SCHEMA = {
    'type': 'object',
    'properties': {'skill': {'enum': ['navigate', 'pick']}, 'target': {'enum': ['kitchen', 'cup1']}},
    'required': ['skill', 'target'],
    'additionalProperties': False,
}


def connected(server: SglangProcess, tenant: str) -> SglangBackend:
    settings = HttpSettings(base_url=server.url, model='any', engine='sglang')
    return connect_sglang(settings, cache_salt=tenant, deadline=Deadline(30.0))


@pytest.fixture(scope='module')
def backend(server: SglangProcess) -> Iterator[SglangBackend]:
    made = connected(server, 'home')
    yield made
    made.close()


def asked(topic: str, robot: str = 'robot1', max_new_tokens: int = 8, **changes: object) -> GenerationRequest:
    """A question after some hundred tokens about `topic` that no other test asks about."""
    head = ' '.join(f'The {topic} {number} is in room {number * 7 % 31}.' for number in range(30))
    values = {
        'session': SessionKey(robot_id=robot, session_id='s1'),
        'messages': (Message(role=Role.SYSTEM, content=head), Message(role=Role.USER, content='Tell a long story.')),
        'max_new_tokens': max_new_tokens,
    }
    return GenerationRequest(**(values | changes))


def is_idle(server: SglangProcess) -> bool:
    """Whether it comes to rest within some seconds."""
    deadline = Deadline(10.0)
    while server.num_requests() and not deadline.wait(0.1):
        pass
    return server.num_requests() == 0


def wait_for(mirror: EventFollower, predicate: Callable[[], bool]) -> None:
    """Follow the events until the predicate is true; fails after some seconds."""
    deadline = Deadline(20.0)
    while not predicate():
        assert not deadline.is_over, mirror.stats()
        mirror.poll(0.1)


def test_the_probe_finds_what_the_server_is(server: SglangProcess, backend: SglangBackend) -> None:
    found = backend.server
    assert (found.version, found.model, found.tree_core) == ('0.5.23', 'SmolLM2-135M-Instruct', 'rust')
    assert (found.page_tokens, found.capacity_tokens, found.grammar) == (PAGE_TOKENS, 3072, 'xgrammar')
    assert (found.priority, found.reports_cached_tokens) == (PriorityOrder.HIGHER_FIRST, True)
    assert (found.has_host_tier, found.storage) == (True, 'dynamic')
    assert (found.events_endpoint, found.events_replay_endpoint) == server.event_endpoints
    assert 'tree core rust' in found.summary()


def test_greedy_answer_is_token_by_token_that_of_our_own_engine(backend: SglangBackend) -> None:
    model = load_local_model(backend.server.model_path, Path(backend.server.model_path).parent)
    sessions = SessionIndex()
    dram = DramTier(store=HostStore(SharedArena.create(64 << 20)), policy=SessionLruPolicy(sessions.is_referenced))
    with KVCacheManager(dram=dram, sessions=sessions) as cache:
        local = LocalBackend(model=model, cache=cache, segments=SegmentMap(), namespace=model.namespace(PAGE_TOKENS))
        pieces: list[str] = []
        theirs = backend.generate(asked('plate', max_new_tokens=16), Deadline(ANSWER_S), pieces.append)
        ours = local.generate(asked('plate', max_new_tokens=16), Deadline(ANSWER_S))
    assert theirs.token_ids == ours.token_ids != ()
    assert ''.join(pieces) == theirs.text == ours.text
    assert len(pieces) > 1
    assert theirs.usage.prompt_tokens == ours.usage.prompt_tokens
    assert (theirs.outcome, theirs.finish_reason) == (Outcome.SUCCESS, FinishReason.LENGTH)


def test_repeated_prompt_is_cached_but_for_its_last_page(backend: SglangBackend) -> None:
    first, second = (backend.generate(asked('bowl'), Deadline(ANSWER_S)) for _ in range(2))
    assert first.usage.cached_tokens < PAGE_TOKENS
    assert second.usage.prompt_tokens - second.usage.cached_tokens <= PAGE_TOKENS
    assert second.usage.cached_tokens + second.usage.computed_tokens == second.usage.prompt_tokens
    assert second.text == first.text


def test_next_turn_reuses_the_answer_of_the_last_one_token_by_token(backend: SglangBackend) -> None:
    first = asked('spoon', max_new_tokens=40, temperature=1.5, seed=11)
    answer = backend.generate(first, Deadline(ANSWER_S))
    said = Message(role=Role.ASSISTANT, content=answer.text, token_ids=answer.token_ids)
    again = asked('spoon', messages=(*first.messages, said, Message(role=Role.USER, content='Go on.')))
    second = backend.generate(again, Deadline(ANSWER_S))
    known_tokens = answer.usage.prompt_tokens + len(answer.token_ids) - 1
    assert second.usage.cached_tokens >= known_tokens // PAGE_TOKENS * PAGE_TOKENS


def test_robots_of_one_tenant_share_a_prefix_and_another_tenant_does_not(
    server: SglangProcess, backend: SglangBackend
) -> None:
    backend.generate(asked('fork', robot='robot1'), Deadline(ANSWER_S))
    shared = backend.generate(asked('fork', robot='robot2'), Deadline(ANSWER_S))
    foreign = connected(server, 'neighbour').generate(asked('fork', robot='robot1'), Deadline(ANSWER_S))
    assert shared.usage.cached_tokens > 200
    assert foreign.usage.cached_tokens == 0


def test_mirror_says_what_the_server_then_serves(server: SglangProcess, backend: SglangBackend) -> None:
    tokenizer = read_tokenizer(Path(backend.server.tokenizer_path) / 'tokenizer.json')
    prompt = ChatTokenizer(tokenizer, chat_format_of(tokenizer)).prompt(asked('clock').messages)
    with closing(server.events()) as mirror:
        mirror.poll(1.0)
        before = mirror.matched_tokens(prompt, 'home')
        cold = backend.generate(asked('clock'), Deadline(ANSWER_S)).usage
        wait_for(mirror, lambda: mirror.matched_tokens(prompt, 'home') >= len(prompt) - PAGE_TOKENS)
        known = mirror.matched_tokens(prompt, 'home')
        warm = backend.generate(asked('clock'), Deadline(ANSWER_S)).usage
        assert (before, known) == (cold.cached_tokens, warm.cached_tokens)
        assert mirror.matched_tokens(prompt, 'neighbour') == 0
        stats = mirror.stats()
        assert (stats.state, stats.num_orphans) == (MirrorState.SYNCED, 0)
        assert stats.blocks_by_tier[Tier.HBM] > 0
        assert is_idle(server)
        server.flush()
        wait_for(mirror, lambda: mirror.matched_tokens(prompt, 'home') == 0)


def test_usage_tells_from_which_tier_the_cached_tokens_came(server: SglangProcess, backend: SglangBackend) -> None:
    backend.generate(asked('lamp'), Deadline(ANSWER_S))
    device = backend.generate(asked('lamp'), Deadline(ANSWER_S)).usage
    for number in range(9):
        backend.generate(asked(f'flood{number}', max_new_tokens=1), Deadline(ANSWER_S))
    host = backend.generate(asked('lamp'), Deadline(ANSWER_S)).usage
    assert is_idle(server)
    server.flush()
    storage = backend.generate(asked('lamp'), Deadline(ANSWER_S)).usage
    assert (device.cached_host_tokens, device.cached_storage_tokens) == (0, 0)
    assert host.cached_host_tokens > 200
    assert storage.cached_storage_tokens > 200
    assert device.cached_tokens == host.cached_tokens == storage.cached_tokens


def test_schema_makes_a_small_model_answer_in_valid_json(backend: SglangBackend) -> None:
    answer = backend.generate(asked('door', max_new_tokens=60, json_schema=json.dumps(PLAN_SCHEMA)), Deadline(ANSWER_S))
    assert (answer.outcome, answer.finish_reason) == (Outcome.SUCCESS, FinishReason.STOP)
    jsonschema.validate(json.loads(answer.text), PLAN_SCHEMA)


def test_prompt_beyond_the_context_is_a_bad_request(backend: SglangBackend) -> None:
    long = Message(role=Role.USER, content='go home ' * 9000)
    with pytest.raises(BadRequestError, match='400'):
        backend.generate(asked('hall', messages=(long,)), Deadline(ANSWER_S))


def test_cancel_ends_the_work_in_the_server(server: SglangProcess, backend: SglangBackend) -> None:
    deadline = Deadline(ANSWER_S)
    answer = backend.generate(asked('vase', max_new_tokens=2000), deadline, lambda text: deadline.cancel())
    assert (answer.outcome, answer.finish_reason) == (Outcome.CANCELED, FinishReason.CANCELED)
    assert answer.message == 'canceled on request; the server has stopped'
    assert 0 < len(answer.token_ids) == answer.usage.generated_tokens < 200
    assert is_idle(server)


def test_deadline_ends_the_work_in_the_server(server: SglangProcess, backend: SglangBackend) -> None:
    backend.generate(asked('sofa', max_new_tokens=1), Deadline(ANSWER_S))
    answer = backend.generate(asked('sofa', max_new_tokens=2000), Deadline(2.0))
    assert (answer.outcome, answer.message) == (Outcome.TIMEOUT, 'deadline passed; the server has stopped')
    assert answer.text != ''
    assert is_idle(server)


def test_urgent_request_overtakes_those_that_wait(server: SglangProcess, backend: SglangBackend) -> None:
    ended: list[str] = []
    pool = ThreadPoolExecutor(max_workers=5)

    def ask(name: str, priority: int, max_new_tokens: int) -> Generation:
        request = asked('urn', max_new_tokens=max_new_tokens, priority=priority)
        answer = backend.generate(request, Deadline(ANSWER_S))
        ended.append(name)
        return answer

    chats = [pool.submit(ask, f'chat{number}', 0, 24) for number in range(4)]
    deadline = Deadline(20.0)
    while server.num_requests() < 4 and not deadline.wait(0.05):
        pass
    urgent = pool.submit(ask, 'stop', 5, 4)
    outcomes = {future.result(ANSWER_S).outcome for future in (*chats, urgent)}
    pool.shutdown()
    assert outcomes == {Outcome.SUCCESS}
    assert ended.index('stop') <= 2  # behind the two at work, before the two that waited


def test_random_cancels_leave_nothing_behind(server: SglangProcess, backend: SglangBackend) -> None:
    chance = random.Random(3)
    before = backend.stats()

    def one(number: int) -> Outcome:
        deadline = Deadline(ANSWER_S)
        timer = threading.Timer(chance.uniform(0.0, 1.5), deadline.cancel)
        timer.start()
        answer = backend.generate(asked('rug', robot=f'robot{number}', max_new_tokens=200), deadline)
        timer.cancel()
        return answer.outcome

    with ThreadPoolExecutor(max_workers=4) as pool:
        outcomes = set(pool.map(one, range(16)))
    assert outcomes == {Outcome.CANCELED}
    assert is_idle(server)
    assert backend.stats().num_requests == before.num_requests + 16
    ours = [link for link in psutil.Process().net_connections('tcp') if link.raddr and link.raddr.port == server.port]
    assert [link for link in ours if link.status == psutil.CONN_ESTABLISHED] == []


def test_hung_server_is_a_timeout_and_is_used_again_when_it_goes_on(
    server: SglangProcess, backend: SglangBackend
) -> None:
    with server.hung():
        begun_s = time.monotonic()
        answer = backend.generate(asked('tray'), Deadline(1.0))
        assert time.monotonic() - begun_s < 5.0
    assert answer.outcome is Outcome.TIMEOUT
    assert answer.message == 'deadline passed; the server did not say that it stopped'
    assert backend.generate(asked('tray'), Deadline(ANSWER_S)).outcome is Outcome.SUCCESS
    assert is_idle(server)


@dataclass(frozen=True, kw_only=True)
class Restart:
    """What happened around a kill -9 of the server and its next start over the same store."""

    cold: Generation
    lost: ModelUnavailableError  # in mid-answer
    missing: ModelUnavailableError  # while it was away
    while_away: MirrorState
    emptied: MirrorStats  # after its start
    warm: Generation
    foreign: Generation  # another tenant's
    refilled: MirrorStats


@pytest.fixture(scope='module')
def restart(server: SglangProcess, backend: SglangBackend) -> Restart:
    """Kill it in the middle of an answer; runs once, after the tests that need no restart."""

    def failure(listen: Callable[[str], None]) -> ModelUnavailableError:
        with pytest.raises(ModelUnavailableError) as caught:
            backend.generate(asked('key', max_new_tokens=2000), Deadline(ANSWER_S), listen)
        return caught.value

    def kill_at_first(piece: str) -> None:
        if not pieces:
            server.send(signal.SIGKILL)
        pieces.append(piece)

    pieces: list[str] = []
    with closing(server.events()) as mirror:
        cold = backend.generate(asked('key'), Deadline(ANSWER_S))
        assert is_idle(server)
        server.flush()  # after its writes
        wait_for(mirror, lambda: mirror.stats().state is MirrorState.SYNCED)
        backend.generate(asked('key'), Deadline(ANSWER_S))
        wait_for(mirror, lambda: mirror.stats().num_blocks > 0)
        lost = failure(kill_at_first)
        missing = failure(ignore_tokens)
        wait_for(mirror, lambda: mirror.stats().state is not MirrorState.SYNCED)
        while_away = mirror.stats().state
        server.stop()
        server.start('--l3', str(server.l3_dir))
        wait_for(mirror, lambda: mirror.stats().state is MirrorState.SYNCED)
        emptied = mirror.stats()
        warm = backend.generate(asked('key'), Deadline(ANSWER_S))
        foreign = connected(server, 'neighbour').generate(asked('key'), Deadline(ANSWER_S))
        wait_for(mirror, lambda: mirror.stats().num_blocks > 0)
        return Restart(
            cold=cold,
            lost=lost,
            missing=missing,
            while_away=while_away,
            emptied=emptied,
            warm=warm,
            foreign=foreign,
            refilled=mirror.stats(),
        )


def test_killed_server_is_an_unavailable_model(restart: Restart) -> None:
    assert 'is it running' in str(restart.lost)
    assert 'is it running' in str(restart.missing)


def test_server_that_is_back_is_used_again_and_goes_on_from_our_store(restart: Restart) -> None:
    assert (restart.warm.outcome, restart.warm.text) == (Outcome.SUCCESS, restart.cold.text)
    usage = restart.warm.usage
    assert usage.prompt_tokens > 300
    assert usage.cached_storage_tokens >= usage.prompt_tokens - 2 * PAGE_TOKENS
    assert restart.foreign.usage.cached_tokens == 0


def test_mirror_is_degraded_while_the_server_is_away_and_then_mirrors_its_next_life(restart: Restart) -> None:
    assert restart.while_away is MirrorState.DEGRADED
    assert restart.emptied.num_blocks == 0
    assert (restart.refilled.state, restart.refilled.num_orphans) == (MirrorState.SYNCED, 0)


def test_pages_of_our_store_take_little_of_their_room_in_the_server(restart: Restart, server: SglangProcess) -> None:
    page_bytes = PAGE_TOKENS * TOKEN_BYTES
    shares = [path.stat().st_blocks * 512 / page_bytes for path in (server.l3_dir / 'blocks').iterdir()]
    assert max(shares) <= 0.205  # a file ends at a full block of the file system
    assert statistics.mean(shares) <= 0.20
