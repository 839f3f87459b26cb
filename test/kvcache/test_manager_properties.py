"""The manager against a dictionary: any order of calls, restarts included, serves only what was written."""

from pathlib import Path
import tempfile

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule
import numpy as np
from small_cache import NAMESPACE, Cache, content, replay

from kv_agent_ros.kvcache.base import PrefetchPolicy
from kv_agent_ros.kvcache.block import PrefixLease, SessionKey, Tier, WriteLease, block_keys
from kv_agent_ros.kvcache.storage.base import checksum
from kv_agent_ros.kvcache.storage.disk import DiskStore
from kv_agent_ros.kvcache.storage.tiered import BackingTier, TierOptions
from kv_agent_ros.kvcache.write_policy import Watermarks, WritePolicy

PROMPTS = st.lists(st.integers(0, 2), min_size=1, max_size=6).map(lambda blocks: [n for n in blocks for _ in range(4)])
SESSIONS = st.sampled_from([SessionKey(robot_id=f'robot{n}', session_id='planner') for n in range(3)])
DISK_BYTES = 6 * 4096


class ManagerMachine(RuleBasedStateMachine):
    """10 blocks of DRAM, 6 of disk, and more different prompts than fit."""

    def __init__(self) -> None:
        super().__init__()
        self.place = tempfile.TemporaryDirectory()
        self.cache = self.open_cache()
        self.written: dict[bytes, bytes] = {}  # key -> bytes, since the last clear()
        self.readers: list[tuple[float, PrefixLease]] = []  # with the time of their end
        self.writers: list[tuple[float, WriteLease]] = []

    def open_cache(self) -> Cache:
        return Cache(10, Path(self.place.name) / 'kv', DISK_BYTES)

    @rule(prompt=PROMPTS, session=SESSIONS)
    def reserve(self, prompt: list[int], session: SessionKey) -> None:
        lease = self.cache.manager.reserve(NAMESPACE, session, np.array(prompt, np.int32))
        self.writers.append((self.cache.now_s + 60.0, lease))

    @rule(index=st.integers(0, 9), num_blocks=st.integers(0, 6))
    def commit(self, index: int, num_blocks: int) -> None:
        if not self.writers:
            return
        _, lease = self.writers.pop(index % len(self.writers))
        for slot in lease.slots[:num_blocks]:
            self.cache.segments.slot(slot)[:] = content(slot.block_key)
        checksums = [checksum(content(slot.block_key)) for slot in lease.slots[:num_blocks]]
        visible = self.cache.manager.commit(lease.lease_id, checksums)
        assert visible <= len(checksums)
        self.written |= {slot.block_key: content(slot.block_key).tobytes() for slot in lease.slots[:visible]}

    @rule(prompt=PROMPTS, session=SESSIONS)
    def write(self, prompt: list[int], session: SessionKey) -> None:
        self.cache.write(prompt, session)
        lease = self.cache.manager.acquire(NAMESPACE, session, np.array([*prompt, 0], np.int32))
        self.written |= {slot.block_key: content(slot.block_key).tobytes() for slot in lease.slots}
        self.cache.manager.release(lease.lease_id)

    @rule(prompt=PROMPTS, session=SESSIONS)
    def acquire(self, prompt: list[int], session: SessionKey) -> None:
        lease = self.cache.manager.acquire(NAMESPACE, session, np.array(prompt, np.int32))
        assert [slot.block_key for slot in lease.slots] == block_keys(NAMESPACE, prompt)[: len(lease.slots)]
        assert lease.matched_tokens == 4 * len(lease.slots) < len(prompt)
        for slot in lease.slots:
            assert self.cache.segments.slot(slot).tobytes() == self.written[slot.block_key]
            assert checksum(self.cache.segments.slot(slot)) == slot.checksum
        self.readers.append((self.cache.now_s + 60.0, lease))

    @rule(index=st.integers(0, 9))
    def release(self, index: int) -> None:
        if self.readers:
            self.cache.manager.release(self.readers.pop(index % len(self.readers))[1].lease_id)

    @rule(seconds=st.sampled_from([1.0, 30.0, 61.0]))
    def time_passes(self, seconds: float) -> None:
        self.cache.now_s += seconds
        self.readers = [held for held in self.readers if held[0] > self.cache.now_s]
        self.writers = [held for held in self.writers if held[0] > self.cache.now_s]

    @rule(session=SESSIONS)
    def pin(self, session: SessionKey) -> None:
        self.cache.manager.pin(session, 20.0)

    @rule(source=SESSIONS, session=SESSIONS)
    def fork(self, source: SessionKey, session: SessionKey) -> None:
        self.cache.manager.fork(source, session)

    @rule(prompt=PROMPTS, session=SESSIONS, policy=st.sampled_from(PrefetchPolicy))
    def prefetch(self, prompt: list[int], session: SessionKey, policy: PrefetchPolicy) -> None:
        done = self.cache.manager.prefetch(NAMESPACE, session, np.array(prompt, np.int32), policy, 5.0)
        assert done.num_blocks <= len(prompt) // 4

    @rule(prompt=PROMPTS)
    def match(self, prompt: list[int]) -> None:
        match = self.cache.manager.match(NAMESPACE, np.array(prompt, np.int32))
        assert match.matched_tokens % 4 == 0
        assert match.matched_tokens < len(prompt)

    @rule(session=SESSIONS)
    def end_session(self, session: SessionKey) -> None:
        self.cache.manager.end_session(session)

    @rule(num_bytes=st.integers(0, 10 * NAMESPACE.block_bytes))
    def evict(self, num_bytes: int) -> None:
        self.cache.manager.evict(num_bytes)

    @rule()
    def clear(self) -> None:
        self.cache.manager.clear()
        self.written = {}
        self.writers = []

    @rule()
    def flush(self) -> None:
        self.cache.flush()
        told = replay(self.cache.events)
        stats = self.cache.manager.stats()
        assert stats.num_blocks == len(set().union(*told.values()))
        assert [tier.num_blocks for tier in stats.tiers[1:]] == [len(told[tier.tier]) for tier in stats.tiers[1:]]

    @rule()
    def restart(self) -> None:
        self.cache.close()
        self.cache = self.open_cache()
        self.readers, self.writers = [], []

    @invariant()
    def books_add_up(self) -> None:
        self.cache.manager.check_integrity()
        for tier in self.cache.manager.stats().tiers:
            assert 0 <= tier.evictable_bytes <= tier.used_bytes <= tier.capacity_bytes
            assert tier.num_errors == 0
        assert self.cache.manager.stats().num_checksum_failures == 0

    @invariant()
    def readers_keep_their_bytes(self) -> None:
        for _, lease in self.readers:
            for slot in lease.slots:
                assert self.cache.segments.slot(slot).tobytes() == content(slot.block_key).tobytes()

    def teardown(self) -> None:
        self.cache.now_s += 1000.0
        for usage in self.cache.manager.stats().sessions:
            self.cache.manager.end_session(usage.session)
        self.cache.flush()
        self.cache.drop_dram()
        assert self.cache.manager.num_locks == 0
        assert self.cache.manager.num_reserved_slots == 0
        assert self.cache.manager.stats().tiers[0].used_bytes == 0
        self.cache.close()
        self.place.cleanup()


class WriteBackMachine(ManagerMachine):
    """Blocks go down when they leave, from the disk to a third tier, and leave before memory is full."""

    def open_cache(self) -> Cache:
        back = TierOptions(write_policy=WritePolicy.WRITE_BACK)
        store = DiskStore.open(Path(self.place.name) / 'far', DISK_BYTES)
        far = BackingTier.open(tier=Tier.REMOTE, store=store, options=back)
        marks = Watermarks(high=0.8, low=0.5)
        return Cache(10, Path(self.place.name) / 'kv', DISK_BYTES, options=back, below=(far,), watermarks=marks)


TestManagerMachine = ManagerMachine.TestCase
TestManagerMachine.settings = settings(max_examples=40, stateful_step_count=40, deadline=None)
TestWriteBackMachine = WriteBackMachine.TestCase
TestWriteBackMachine.settings = settings(max_examples=40, stateful_step_count=40, deadline=None)
