"""The thread that writes behind: bounded, supervised, drained at the end."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
import threading

import numpy as np
import pytest

from kv_agent_ros.kvcache.block import BlockLayout, EventKind, Tier
from kv_agent_ros.kvcache.eviction import LruPolicy
from kv_agent_ros.kvcache.path import TokenPath
from kv_agent_ros.kvcache.radix_tree import RadixPrefixCache
from kv_agent_ros.kvcache.storage.base import BlockRecord, ByteArray, PutResult, StoreUsage, checksum
from kv_agent_ros.kvcache.storage.host import HostStore, SharedArena
from kv_agent_ros.kvcache.storage.tiered import BackingTier, TierOptions
from kv_agent_ros.kvcache.storage.transfer import Transfer, TransferResult

VALUE = np.zeros(64, dtype=np.uint8)
LAYOUT = BlockLayout(shape=(2, 1, 1, 4, 8), dtype='uint8')


class GatedStore:
    """A BlockStore in memory whose puts and deletes wait for the test, or fail when the test says so."""

    def __init__(self, num_blocks: int) -> None:
        self.inner = HostStore(SharedArena.create(num_blocks * 64))
        self.gate = threading.Event()
        self.entered = threading.Event()
        self.next_results: list[PutResult] = []

    def put(self, record: BlockRecord, value: ByteArray) -> PutResult:
        self.entered.set()
        assert self.gate.wait(30.0)
        return self.next_results.pop(0) if self.next_results else self.inner.put(record, value)

    def get(self, key: bytes, out: ByteArray) -> BlockRecord | None:
        return self.inner.get(key, out)

    def delete(self, key: bytes) -> None:
        self.entered.set()
        assert self.gate.wait(30.0)
        self.inner.delete(key)

    def size_bytes(self, key: bytes) -> int:
        return self.inner.size_bytes(key)

    def find(self, keys: Sequence[bytes]) -> int:
        return self.inner.find(keys)

    def records(self) -> Iterator[BlockRecord]:
        return self.inner.records()

    def usage(self) -> StoreUsage:
        return self.inner.usage()

    def close(self) -> None:
        self.inner.close()


class Giver:
    """The tier above: gives transfers and keeps what came of them."""

    def __init__(self) -> None:
        self.results: list[TransferResult] = []
        self.tree = RadixPrefixCache(LruPolicy())

    def transfer(self, *blocks: int) -> Transfer:
        path = TokenPath(root=bytes(32), tokens=np.array(blocks, '<i4').tobytes(), layout=LAYOUT)
        return Transfer(path=path, keys=path.keys(), read=self.read, done=self.done, lock=self.tree.lock(path))

    def read(self, key: bytes) -> tuple[BlockRecord, ByteArray]:
        record = BlockRecord(
            key=key, parent_key=bytes(32), root=bytes(32), tokens=b'', length_bytes=64, checksum=checksum(VALUE)
        )
        return record, VALUE

    def done(self, transfer: Transfer, result: TransferResult) -> None:
        self.results.append(result)


def read_with_a_defect(key: bytes) -> tuple[BlockRecord, ByteArray]:
    raise ZeroDivisionError('a bug in the tier above')


@pytest.fixture
def store() -> GatedStore:
    return GatedStore(num_blocks=8)


@pytest.fixture
def make(store: GatedStore) -> Iterator[Callable[[int], BackingTier]]:
    tiers: list[BackingTier] = []

    def open_tier(max_queued_transfers: int) -> BackingTier:
        tiers.append(
            BackingTier(tier=Tier.SSD, store=store, options=TierOptions(max_queued_transfers=max_queued_transfers))
        )
        return tiers[-1]

    yield open_tier
    store.gate.set()
    for tier in tiers:
        tier.close(10.0)


def test_full_queue_refuses_and_counts_instead_of_blocking(
    make: Callable[[int], BackingTier], store: GatedStore
) -> None:
    tier, giver = make(2), Giver()
    assert tier.submit(giver.transfer(1))
    assert store.entered.wait(10.0)
    assert [tier.submit(giver.transfer(n)) for n in (2, 3, 4)] == [True, True, False]
    assert not tier.flush(0.0)
    store.gate.set()
    assert tier.flush(10.0)
    assert (len(giver.results), tier.usage().num_errors, tier.usage().num_blocks) == (3, 1, 3)


def test_failed_write_leaves_no_block_without_its_head(make: Callable[[int], BackingTier], store: GatedStore) -> None:
    tier, giver = make(8), Giver()
    store.gate.set()
    store.next_results = [PutResult.FAILED]
    tier.submit(giver.transfer(1, 2, 3))
    assert tier.flush(10.0)
    assert (giver.results[0].num_present, giver.results[0].last) == (0, PutResult.FAILED)
    tier.submit(giver.transfer(1, 2, 3))
    assert tier.flush(10.0)
    assert giver.results[1].num_present == 3
    tier.check_integrity()


def test_worker_that_dies_is_replaced_and_counted(
    make: Callable[[int], BackingTier], store: GatedStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    deaths = threading.Event()
    monkeypatch.setattr(threading, 'excepthook', lambda details: deaths.set())
    tier, giver = make(8), Giver()
    store.gate.set()
    tier.submit(replace(giver.transfer(1), read=read_with_a_defect))
    assert deaths.wait(10.0)
    assert tier.submit(giver.transfer(1, 2))
    assert tier.flush(10.0)
    assert [result.num_present for result in giver.results] == [0, 2]
    assert tier.usage().num_errors == 1


def test_full_store_makes_room_by_evicting_tails(make: Callable[[int], BackingTier], store: GatedStore) -> None:
    tier, giver = make(8), Giver()
    store.gate.set()
    for blocks in ((1, 2, 3, 4), (5, 6, 7, 8), (9, 10)):
        tier.submit(giver.transfer(*blocks))
    assert tier.flush(10.0)
    removed = [key for change in tier.take_changes() if change.kind is EventKind.REMOVED for key in change.keys]
    assert removed == [giver.transfer(1, 2, 3, 4).keys[3], giver.transfer(1, 2, 3).keys[2]]
    assert len(tier.lock(giver.transfer(1, 2, 3, 4).path).keys) == 2


def test_path_longer_than_the_store_is_kept_as_far_as_it_fits(
    make: Callable[[int], BackingTier], store: GatedStore
) -> None:
    tier, giver = make(8), Giver()
    store.gate.set()
    tier.submit(giver.transfer(*range(12)))
    assert tier.flush(10.0)
    assert (giver.results[0].num_present, giver.results[0].last) == (8, PutResult.FULL)


def test_clear_drops_what_waits_and_what_is_being_written(
    make: Callable[[int], BackingTier], store: GatedStore
) -> None:
    tier, giver = make(8), Giver()
    tier.submit(giver.transfer(1, 2))
    assert store.entered.wait(10.0)
    tier.submit(giver.transfer(3))
    assert len(tier.clear()) == 1
    store.gate.set()
    assert tier.flush(10.0)
    assert (tier.usage().num_blocks, tier.usage().used_bytes) == (0, 0)


def test_block_that_is_written_again_while_it_is_being_deleted_is_there_afterwards(
    make: Callable[[int], BackingTier], store: GatedStore
) -> None:
    tier, giver = make(8), Giver()
    store.gate.set()
    transfer = giver.transfer(1)
    tier.submit(transfer)
    assert tier.flush(10.0)
    store.gate.clear()
    store.entered.clear()
    forgetter = threading.Thread(target=forget, args=(tier, transfer.path))
    forgetter.start()
    assert store.entered.wait(10.0)
    tier.submit(giver.transfer(1))
    tier.flush(0.2)
    store.gate.set()
    forgetter.join(10.0)
    assert tier.flush(10.0)
    assert (tier.match(transfer.path), tier.has(transfer.keys[0])) == (1, True)


def test_what_was_there_before_a_clear_is_not_taken_for_what_is_written_after_it(
    make: Callable[[int], BackingTier], store: GatedStore
) -> None:
    tier, giver, later = make(8), Giver(), VALUE + 1
    store.gate.set()
    transfer = giver.transfer(1)
    tier.submit(transfer)
    assert tier.flush(10.0)
    reader = tier.lock(transfer.path)
    tier.clear()
    assert tier.sweep(10.0)
    store.gate.clear()
    store.entered.clear()
    record = replace(giver.read(transfer.keys[0])[0], checksum=checksum(later))
    tier.submit(replace(giver.transfer(1), read=lambda key: (replace(record, key=key), later)))
    assert store.entered.wait(10.0)
    tier.unlock(reader)
    store.gate.set()
    assert tier.flush(10.0)
    out = np.empty_like(VALUE)
    assert tier.match(transfer.path) == 1
    assert tier.load(transfer.keys[0], LAYOUT, out) is not None
    assert np.array_equal(out, later)


def forget(tier: BackingTier, path: TokenPath) -> None:
    tier.cut(path, 0)
    tier.sweep(10.0)


def test_close_writes_what_is_queued(store: GatedStore) -> None:
    tier, giver = BackingTier(tier=Tier.SSD, store=store), Giver()
    store.gate.set()
    for number in range(5):
        tier.submit(giver.transfer(number))
    assert tier.close(10.0)
    assert len(giver.results) == 5
    assert not tier.submit(giver.transfer(9))


def test_unused_tier_closes_without_ever_having_had_a_thread(store: GatedStore) -> None:
    num_threads = threading.active_count()
    tier = BackingTier(tier=Tier.SSD, store=store)
    assert threading.active_count() == num_threads
    assert tier.close(1.0)
