"""A prompt that was warmed up costs its next turn only what is new."""

from pathlib import Path

from kv_agent_ros.deadline import Deadline
from kv_agent_ros.errors import Outcome
from kv_agent_ros.inference.base import GenerationRequest, Message, Role
from kv_agent_ros.inference.local import LocalBackend
from kv_agent_ros.inference.local_model import LocalModel
from kv_agent_ros.inference.warm_up import warm_up
from kv_agent_ros.kvcache.block import SessionKey, Tier
from kv_agent_ros.kvcache.dram_tier import DramTier
from kv_agent_ros.kvcache.eviction import SessionLruPolicy
from kv_agent_ros.kvcache.manager import KVCacheManager
from kv_agent_ros.kvcache.session_index import SessionIndex
from kv_agent_ros.kvcache.storage.disk import DiskStore
from kv_agent_ros.kvcache.storage.host import HostStore, SharedArena
from kv_agent_ros.kvcache.storage.segment import SegmentMap
from kv_agent_ros.kvcache.storage.tiered import BackingTier

BLOCK_TOKENS = 16
SYSTEM = Message(role=Role.SYSTEM, content='You plan for a robot that tidies a home with four rooms. ' * 4)
ASK = Message(role=Role.USER, content='Bring me the cup.')
REQUEST = GenerationRequest(
    session=SessionKey(robot_id='robot1', session_id='s1'), messages=(SYSTEM, ASK), max_new_tokens=8
)


def cache_over(directory: Path) -> KVCacheManager:
    sessions = SessionIndex()
    dram = DramTier(store=HostStore(SharedArena.create(64 << 20)), policy=SessionLruPolicy(sessions.is_referenced))
    tier = BackingTier.open(tier=Tier.SSD, store=DiskStore.open(directory, 256 << 20))
    return KVCacheManager(dram=dram, sessions=sessions, backing=(tier,))


def over(model: LocalModel, cache: KVCacheManager) -> LocalBackend:
    return LocalBackend(model=model, cache=cache, segments=SegmentMap(), namespace=model.namespace(BLOCK_TOKENS))


def test_a_warmed_up_prompt_is_cached_for_the_turn_and_the_answer_is_the_same(
    tiny_model: LocalModel, tmp_path: Path
) -> None:
    with cache_over(tmp_path / 'cold') as cache:
        cold = over(tiny_model, cache).generate(REQUEST, Deadline(60))
    with cache_over(tmp_path / 'warm') as cache:
        backend = over(tiny_model, cache)
        before = warm_up(backend, REQUEST, Deadline(60))
        warm = backend.generate(REQUEST, Deadline(60))
    assert before.outcome is Outcome.SUCCESS
    assert (before.usage.cached_tokens, before.usage.generated_tokens) == (0, 1)
    assert warm.usage.prompt_tokens - warm.usage.cached_tokens <= BLOCK_TOKENS
    assert warm.token_ids == cold.token_ids


def test_after_a_restart_a_warm_up_brings_the_prompt_up_from_the_disk(tiny_model: LocalModel, tmp_path: Path) -> None:
    with cache_over(tmp_path) as cache:
        over(tiny_model, cache).generate(REQUEST, Deadline(60))
        assert cache.flush(10.0)
    with cache_over(tmp_path) as cache:
        usage = warm_up(over(tiny_model, cache), REQUEST, Deadline(60)).usage
        assert usage.prompt_tokens - usage.cached_tokens <= BLOCK_TOKENS
        in_memory = {tier.tier: tier.num_blocks for tier in cache.stats().tiers}[Tier.DRAM]
        assert in_memory >= usage.cached_tokens // BLOCK_TOKENS
