"""When blocks go down, how far, in which bytes, and that they come up again."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
import time

import numpy as np
import pytest
from small_cache import HEAD, NAMESPACE, ROBOT_1, ROBOT_2, Cache

from kv_agent_ros.errors import ConfigError
from kv_agent_ros.kvcache.block import EventKind, Tier, block_keys
from kv_agent_ros.kvcache.codec_policy import CodecPolicy
from kv_agent_ros.kvcache.path import token_path
from kv_agent_ros.kvcache.storage.base import checksum
from kv_agent_ros.kvcache.storage.disk import DiskStore
from kv_agent_ros.kvcache.storage.fake import FakeStore
from kv_agent_ros.kvcache.storage.guarded import GuardedStore, GuardLimits
from kv_agent_ros.kvcache.storage.tiered import BackingTier, TierOptions
from kv_agent_ros.kvcache.write_policy import Watermarks, WritePolicy

BACK = TierOptions(write_policy=WritePolicy.WRITE_BACK)
SELECTIVE = TierOptions(write_policy=WritePolicy.SELECTIVE)
PROMPT = [*HEAD, 99]


def sources(cache: Cache, tokens: list[int]) -> list[Tier]:
    lease = cache.manager.acquire(NAMESPACE, ROBOT_1, np.asarray(tokens, np.int32))
    cache.manager.release(lease.lease_id)
    return [slot.tier for slot in lease.slots]


def remote(directory: Path, options: TierOptions, num_blocks: int = 64) -> BackingTier:
    store = DiskStore.open(directory, num_blocks * 4096)
    return BackingTier.open(tier=Tier.REMOTE, store=store, options=options)


def test_write_through_is_on_disk_before_anything_leaves_memory(open_cache: Callable[..., Cache]) -> None:
    cache = open_cache()
    cache.write(HEAD)
    cache.flush()
    assert cache.manager.stats().tiers[1].num_blocks == 4


def test_write_back_writes_when_blocks_leave_and_not_before(open_cache: Callable[..., Cache]) -> None:
    cache = open_cache(options=BACK)
    cache.write(HEAD)
    assert cache.ssd.flush(10.0)
    assert cache.manager.stats().tiers[1].written_bytes == 0
    cache.drop_dram()
    assert (cache.num_in_dram, cache.manager.stats().tiers[1].num_blocks) == (0, 4)
    assert cache.read(PROMPT) == 16


def test_write_back_survives_an_orderly_end(open_cache: Callable[..., Cache]) -> None:
    first = open_cache(options=BACK)
    first.write(HEAD)
    first.close()
    assert open_cache(options=BACK).read(PROMPT) == 16


def test_selective_writes_what_is_used_twice_and_loses_the_rest(open_cache: Callable[..., Cache]) -> None:
    cache = open_cache(options=SELECTIVE)
    cache.write(HEAD)
    cache.write(list(range(100, 116)))
    assert cache.read(PROMPT) == 16
    cache.flush()
    cache.drop_dram()
    assert cache.read(PROMPT) == 16
    assert cache.read([*range(100, 116), 0]) == 0


def test_what_a_full_queue_refused_is_written_when_it_leaves(open_cache: Callable[..., Cache]) -> None:
    store = FakeStore(1 << 20)
    cache = open_cache(wrap_store=lambda disk: store, options=TierOptions(max_queued_transfers=1))
    store.works.clear()
    for start in range(0, 160, 16):
        cache.write(list(range(start, start + 16)))
    store.works.set()
    assert cache.ssd.flush(10.0)
    cache.drop_dram()
    assert [cache.read([*range(start, start + 16), 0]) for start in range(80, 160, 16)] == [16] * 5


def test_put_then_drop_upper_tiers_then_get_hits_and_every_byte_is_counted(open_cache: Callable[..., Cache]) -> None:
    cache = open_cache()
    cache.write(HEAD)
    cache.flush()
    cache.drop_dram()
    assert sources(cache, PROMPT) == [Tier.SSD] * 4
    disk = cache.manager.stats().tiers[1]
    assert (disk.written_bytes, disk.read_bytes) == (4 * NAMESPACE.block_bytes, 4 * NAMESPACE.block_bytes)


def test_block_that_is_being_copied_down_stays_and_is_served_until_the_copy_is_done(
    open_cache: Callable[..., Cache],
) -> None:
    store = FakeStore(1 << 20)
    cache = open_cache(wrap_store=lambda disk: store, options=BACK)
    cache.write(HEAD)
    store.works.clear()
    assert cache.manager.evict(1 << 30) == 0
    assert cache.num_in_dram == 4
    assert cache.read(PROMPT) == 16
    store.works.set()
    assert cache.ssd.flush(10.0)
    assert cache.manager.evict(1 << 30) == 4 * NAMESPACE.block_bytes
    assert cache.read(PROMPT) == 16


def test_slow_tier_does_not_stop_writers(open_cache: Callable[..., Cache]) -> None:
    store = FakeStore(1 << 20)
    cache = open_cache(dram_blocks=8, wrap_store=lambda disk: store, options=BACK)
    cache.write(HEAD)
    store.works.clear()
    visible = [cache.write(list(range(start, start + 16))) for start in range(100, 200, 16)]
    store.works.set()
    assert visible == [4] * 7
    cache.manager.check_integrity()


def test_what_leaves_the_disk_goes_to_the_remote_tier_and_comes_back_from_there(
    open_cache: Callable[..., Cache], tmp_path: Path
) -> None:
    far = remote(tmp_path / 'far', BACK)
    cache = open_cache(disk_bytes=4 * 4096, below=(far,))
    cache.write(HEAD)
    cache.flush()
    cache.write(list(range(100, 116)))
    cache.flush()
    cache.drop_dram()
    assert sources(cache, PROMPT) == [Tier.REMOTE] * 4
    assert cache.read(PROMPT) == 16
    stats = cache.manager.stats()
    assert stats.tiers[2].read_bytes == 4 * NAMESPACE.block_bytes
    kinds = {(event.kind, event.tier) for event in cache.events}
    assert {(EventKind.REMOVED, Tier.SSD), (EventKind.STORED, Tier.REMOTE)} <= kinds


def test_prefix_is_joined_from_all_tiers_and_match_says_so_and_changes_nothing(
    open_cache: Callable[..., Cache], tmp_path: Path
) -> None:
    far = remote(tmp_path / 'far', TierOptions())
    cache = open_cache(disk_bytes=3 * 4096, below=(far,))
    cache.write(HEAD)
    cache.flush()
    cache.drop_dram()
    assert cache.read(PROMPT[:5]) == 4
    before = cache.manager.stats()
    match = cache.manager.match(NAMESPACE, np.asarray(PROMPT, np.int32))
    assert match.sources == ((Tier.DRAM, 4), (Tier.SSD, 8), (Tier.REMOTE, 4))
    assert match.matched_tokens == 16
    assert cache.manager.stats() == before
    assert sources(cache, PROMPT) == [Tier.DRAM, Tier.SSD, Tier.SSD, Tier.REMOTE]


def test_a_block_in_three_tiers_is_one_block(open_cache: Callable[..., Cache], tmp_path: Path) -> None:
    cache = open_cache(below=(remote(tmp_path / 'far', TierOptions()),))
    cache.write(HEAD)
    cache.flush()
    assert [tier.num_blocks for tier in cache.manager.stats().tiers] == [4, 4, 4]
    assert cache.manager.stats().num_blocks == 4
    cache.drop_dram()
    assert cache.manager.stats().num_blocks == 4


def test_clear_empties_every_tier_also_for_the_next_start(open_cache: Callable[..., Cache], tmp_path: Path) -> None:
    first = open_cache(below=(remote(tmp_path / 'far', TierOptions()),))
    first.write(HEAD)
    first.flush()
    first.drop_dram()
    first.manager.clear()
    stats = first.manager.stats()
    assert [tier.used_bytes for tier in stats.tiers] == [0, 0, 0]
    assert (stats.num_blocks, stats.sessions[0].num_blocks) == (0, 0)
    first.close()
    second = open_cache(below=(remote(tmp_path / 'far', TierOptions()),))
    assert second.read(PROMPT) == 0


def test_watermarks_keep_room_so_that_writers_need_not_wait(open_cache: Callable[..., Cache]) -> None:
    cache = open_cache(dram_blocks=20, watermarks=Watermarks(high=0.8, low=0.5))
    for start in range(0, 400, 4):
        cache.write(list(range(start, start + 4)))
        cache.flush()
        assert cache.num_in_dram <= 16
    assert cache.num_in_dram >= 10
    with pytest.raises(ConfigError, match='watermarks'):
        Watermarks(high=0.5, low=0.8)


@pytest.mark.parametrize('break_store', ['fail', 'hang'])
def test_broken_tier_is_a_miss_that_shows_and_its_blocks_are_there_again_when_it_works(
    open_cache: Callable[..., Cache], break_store: str
) -> None:
    store = FakeStore(1 << 20)
    now_s = [0.0]
    guard = GuardedStore(store, GuardLimits(deadline_s=0.05, max_failures=1, retry_s=10.0), lambda: now_s[0])
    cache = open_cache(wrap_store=lambda disk: guard)
    cache.write(HEAD)
    cache.flush()
    cache.drop_dram()
    if break_store == 'hang':
        store.works.clear()
    store.is_failing = break_store == 'fail'
    assert cache.read(PROMPT) == 0
    usage = cache.manager.stats().tiers[1]
    assert usage.is_degraded
    assert usage.num_errors >= 1
    assert cache.write(list(range(100, 116))) == 4
    store.is_failing = False
    store.works.set()
    now_s[0] = 20.0
    end_s = time.monotonic() + 10.0
    while guard.usage().is_degraded and time.monotonic() < end_s:
        pass  # the operation that hung comes back
    assert cache.read(PROMPT) == 16
    cache.manager.check_integrity()


NAMESPACE_4_BITS = replace(NAMESPACE, head_dim=64, bits=4)


def test_lower_tiers_keep_fewer_bits_except_at_both_ends_of_the_prompt(open_cache: Callable[..., Cache]) -> None:
    options = TierOptions(codecs=CodecPolicy(sink_tokens=4, recent_tokens=4))
    cache = open_cache(dram_blocks=32 * 16, options=options)
    generator = np.random.default_rng(0)
    tokens = np.asarray(HEAD, np.int32)
    lease = cache.manager.reserve(NAMESPACE_4_BITS, ROBOT_1, tokens)
    written = []
    for slot in lease.slots:
        written.append(generator.standard_normal(NAMESPACE_4_BITS.block_shape).astype(np.float32))
        cache.segments.slot(slot)[:] = written[-1].view(np.uint8).ravel()
    cache.manager.commit(lease.lease_id, [checksum(block.view(np.uint8).ravel()) for block in written])
    cache.flush()
    cache.drop_dram()
    read = cache.manager.acquire(NAMESPACE_4_BITS, ROBOT_2, np.append(tokens, 99))
    assert [slot.bits for slot in read.slots] == [16, 4, 4, 16]
    for slot, block in zip(read.slots, written, strict=True):
        view = cache.segments.slot(slot)
        assert checksum(view) == slot.checksum
        error = np.abs(view.view(np.float32).reshape(block.shape) - block).max()
        assert error == 0.0 if slot.bits == 16 else 0.0 < error < 1.0
    usage = cache.manager.stats().tiers[1]
    assert usage.read_bytes == usage.written_bytes < 2.6 * NAMESPACE_4_BITS.block_bytes
    assert block_keys(NAMESPACE_4_BITS, HEAD) != block_keys(NAMESPACE, HEAD)


def test_block_that_went_down_coarsely_never_gets_coarser_and_is_never_told_to_be_exact(
    open_cache: Callable[..., Cache],
) -> None:
    options = TierOptions(write_policy=WritePolicy.WRITE_BACK, codecs=CodecPolicy(sink_tokens=4, recent_tokens=4))
    cache = open_cache(dram_blocks=32 * 16, options=options)
    generator = np.random.default_rng(0)
    lease = cache.manager.reserve(NAMESPACE_4_BITS, ROBOT_1, np.asarray(HEAD, np.int32))
    for slot in lease.slots:
        values = generator.standard_normal(NAMESPACE_4_BITS.block_shape).astype(np.float32)
        cache.segments.slot(slot)[:] = values.view(np.uint8).ravel()
    cache.manager.commit(lease.lease_id, [checksum(cache.segments.slot(slot)) for slot in lease.slots])
    seen = []
    for length in (16, 16, 12, 12, 16):  # the third block is the last one of some prompts, which would stay exact
        cache.drop_dram()
        prompt = np.asarray([*HEAD[:length], 99], np.int32)
        read = cache.manager.acquire(NAMESPACE_4_BITS, ROBOT_1, prompt)
        seen.append([(slot.bits, cache.segments.slot(slot).tobytes()) for slot in read.slots[:3]])
        cache.manager.release(read.lease_id)
        cache.ssd.cut(token_path(NAMESPACE_4_BITS, HEAD), 0)  # so that it goes down again
    assert [bits for bits, _ in seen[0]] == [16, 4, 4]
    assert seen[1:] == seen[:1] * 4


def test_block_with_fewer_bits_than_its_namespace_asks_for_is_a_miss(open_cache: Callable[..., Cache]) -> None:
    cache = open_cache()
    cache.write(HEAD)
    cache.flush()
    keys = block_keys(NAMESPACE, HEAD)
    out = np.empty(NAMESPACE.block_bytes, np.uint8)
    record = cache.disk.get(keys[2], out)
    assert record is not None
    cache.disk.delete(keys[2])
    cache.disk.put(replace(record, bits=4), out)
    cache.drop_dram()
    assert cache.read(PROMPT) == 8


def test_block_that_cannot_be_encoded_is_kept_exact(open_cache: Callable[..., Cache]) -> None:
    cache = open_cache(dram_blocks=512, options=TierOptions(codecs=CodecPolicy(sink_tokens=4, recent_tokens=1)))
    lease = cache.manager.reserve(NAMESPACE_4_BITS, ROBOT_1, np.asarray(HEAD, np.int32))
    block = np.full(NAMESPACE_4_BITS.block_shape, np.nan, np.float32).view(np.uint8).ravel()
    for slot in lease.slots:
        cache.segments.slot(slot)[:] = block
    cache.manager.commit(lease.lease_id, [checksum(block)] * 4)
    cache.flush()
    cache.drop_dram()
    read = cache.manager.acquire(NAMESPACE_4_BITS, ROBOT_1, np.asarray(PROMPT, np.int32))
    assert [cache.segments.slot(slot).tobytes() for slot in read.slots] == [block.tobytes()] * 4


def test_bytes_that_change_while_they_are_encoded_are_refused(open_cache: Callable[..., Cache]) -> None:
    cache = open_cache(dram_blocks=512, options=TierOptions(codecs=CodecPolicy(sink_tokens=4, recent_tokens=1)))
    lease = cache.manager.reserve(NAMESPACE_4_BITS, ROBOT_1, np.asarray(HEAD, np.int32))
    block = np.ones(NAMESPACE_4_BITS.block_shape, np.float32).view(np.uint8).ravel()
    for slot in lease.slots:
        cache.segments.slot(slot)[:] = block
    cache.manager.commit(lease.lease_id, [checksum(block), bytes(16), checksum(block), checksum(block)])
    cache.flush()
    cache.drop_dram()
    assert cache.manager.match(NAMESPACE_4_BITS, np.asarray(PROMPT, np.int32)).matched_tokens == 4
