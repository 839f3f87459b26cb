"""A cache in another process serves what it serves in this one."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from kv_agent_ros.build.cache import open_cache
from kv_agent_ros.config import KVCacheConfig
from kv_agent_ros.errors import UnreachableError
from kv_agent_ros.kvcache.base import Prefetched, PrefetchPolicy
from kv_agent_ros.kvcache.block import KVNamespace, SessionKey
from kv_agent_ros.kvcache.storage.base import checksum
from kv_agent_ros.kvcache.storage.segment import SegmentMap
from kv_agent_ros.nodes.kv_cache_node import serve
from kv_agent_ros.ros.clients import RosPrefixCache
from kv_agent_ros.ros.endpoints import Endpoints

CALL_S = 20.0
NAMESPACE = KVNamespace(
    model='tiny', revision='1', dtype='float32', num_layers=1, num_kv_heads=1, head_dim=4, block_tokens=4
)
ROBOT, RETRY = (SessionKey(robot_id='robot1', session_id=name) for name in ('planner', 'retry'))
TOKENS = np.arange(16, dtype=np.int32)


@pytest.fixture(scope='module')
def cache(endpoints: Endpoints, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RosPrefixCache]:
    """A client of a cache that has four blocks of the robot's session."""
    directory: Path = tmp_path_factory.mktemp('state')
    config = KVCacheConfig(state_dir=str(directory), dram_bytes=1 << 20, ssd_bytes=1 << 20)
    core = open_cache(config)
    serve(core, config, endpoints)
    client = RosPrefixCache(endpoints, '', CALL_S)
    lease = client.reserve(NAMESPACE, ROBOT, TOKENS)
    segments = SegmentMap()
    for slot in lease.slots:
        segments.slot(slot)[:] = 7
    assert client.commit(lease.lease_id, [checksum(segments.slot(slot)) for slot in lease.slots]) == 4
    yield client
    core.close()


def test_fork_gives_a_second_session_the_same_blocks(cache: RosPrefixCache) -> None:
    assert cache.fork(ROBOT, RETRY) == 4
    assert [usage.num_blocks for usage in cache.stats().sessions] == [4, 4]
    assert cache.end_session(RETRY) == 4


@pytest.mark.parametrize('tokens', [TOKENS, TOKENS[:0]])
@pytest.mark.parametrize('policy', PrefetchPolicy)
def test_prefetch_says_what_is_in_memory(cache: RosPrefixCache, tokens: np.ndarray, policy: PrefetchPolicy) -> None:
    done = cache.prefetch(NAMESPACE, ROBOT, tokens, policy, 1.0)
    assert done == Prefetched(num_blocks=4, is_complete=True)


def test_impossible_prefetch_is_refused_by_the_node(cache: RosPrefixCache) -> None:
    with pytest.raises(UnreachableError, match='timeout_s'):
        cache.prefetch(NAMESPACE, ROBOT, TOKENS, PrefetchPolicy.TIMEOUT, -1.0)
