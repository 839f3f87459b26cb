from pathlib import Path

import pytest

from kv_agent_ros.build.cache import open_cache, open_disk_tiers
from kv_agent_ros.config import KVCacheConfig
from kv_agent_ros.errors import ConfigError
from kv_agent_ros.kvcache.block import Tier


def test_a_disk_that_cannot_be_written_leaves_a_cache_without_a_disk_tier(tmp_path: Path) -> None:
    blocked = tmp_path / 'file'
    blocked.write_text('not a folder')
    assert open_disk_tiers(blocked / 'kv', 1 << 20) == ()


def test_a_second_cache_in_the_same_folder_is_a_config_error(tmp_path: Path) -> None:
    config = KVCacheConfig(state_dir=str(tmp_path), dram_bytes=1 << 20, ssd_bytes=1 << 20)
    core = open_cache(config)
    try:
        with pytest.raises(ConfigError):
            open_cache(config)
    finally:
        core.close()


def test_a_cache_has_memory_in_front_of_disk(tmp_path: Path) -> None:
    core = open_cache(KVCacheConfig(state_dir=str(tmp_path), dram_bytes=1 << 20, ssd_bytes=1 << 20))
    try:
        assert [tier.tier for tier in core.manager.stats().tiers] == [Tier.DRAM, Tier.SSD]
    finally:
        core.close()
