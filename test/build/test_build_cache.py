from dataclasses import replace
from pathlib import Path

import pytest

from kv_agent_ros.build.cache import CacheCore, open_cache, open_lower_tiers
from kv_agent_ros.config import KVCacheConfig
from kv_agent_ros.errors import ConfigError
from kv_agent_ros.kvcache.block import Tier

LOOPBACK = 'tcp://127.0.0.1:*'


@pytest.fixture
def config(tmp_path: Path) -> KVCacheConfig:
    return KVCacheConfig(state_dir=str(tmp_path), dram_bytes=1 << 20, ssd_bytes=1 << 20, remote_bytes=1 << 20)


def tiers(core: CacheCore) -> list[Tier]:
    with core.manager:
        return [tier.tier for tier in core.manager.stats().tiers]


def test_a_disk_that_cannot_be_written_leaves_a_cache_without_a_disk_tier(
    config: KVCacheConfig, tmp_path: Path
) -> None:
    blocked = tmp_path / 'file'
    blocked.write_text('not a folder')
    assert open_lower_tiers(replace(config, state_dir=str(blocked))) == ()


def test_an_update_begins_with_an_empty_disk_and_names_the_old_one(
    config: KVCacheConfig, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    old = tmp_path / 'kv' / 'STORE'
    old.parent.mkdir()
    old.write_bytes(b'kv_agent_ros/blocks/1\n')
    assert tiers(open_cache(config)) == [Tier.DRAM, Tier.SSD]
    assert old.read_bytes() == b'kv_agent_ros/blocks/1\n'
    assert f'can be deleted, nothing reads them: {old.parent}' in caplog.text


def test_a_second_cache_in_the_same_folder_is_a_config_error(config: KVCacheConfig) -> None:
    core = open_cache(config)
    try:
        with pytest.raises(ConfigError):
            open_cache(config)
    finally:
        core.close()


def test_a_cache_has_memory_in_front_of_disk(config: KVCacheConfig) -> None:
    assert tiers(open_cache(config)) == [Tier.DRAM, Tier.SSD]


def test_a_folder_that_machines_share_comes_behind_the_disk(config: KVCacheConfig, tmp_path: Path) -> None:
    assert tiers(open_cache(replace(config, remote_dir=str(tmp_path / 'all')))) == [Tier.DRAM, Tier.SSD, Tier.REMOTE]


def test_a_low_watermark_above_the_high_one_is_a_config_error(config: KVCacheConfig) -> None:
    with pytest.raises(ConfigError, match='watermarks'):
        open_cache(replace(config, high_watermark=0.5, low_watermark=0.9))


def test_events_are_streamed_where_an_endpoint_is_given(config: KVCacheConfig) -> None:
    core = open_cache(replace(config, events_endpoint=LOOPBACK, events_replay_endpoint=LOOPBACK))
    endpoints = [stream.endpoints for stream in core.streams]
    core.manager.clear()
    core.close()
    assert len(endpoints) == 1
    assert [event.kind.value for event in core.events] == ['cleared']
