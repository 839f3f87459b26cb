"""A store that may fail or hang, made into one that only misses, with its bandwidth measured.

Operations run one at a time in a thread. After a missed deadline or several failures in a row the store is degraded:
everything is a miss at once and nothing touches the device, until some time later a trial succeeds.
"""

from collections.abc import Callable, Iterator, Sequence
import contextlib
from dataclasses import dataclass, replace
import logging
import threading
import time

import numpy as np

from kv_agent_ros.kvcache.storage.base import BlockRecord, BlockStore, ByteArray, PutResult, StoreUsage, num_leading
from kv_agent_ros.kvcache.storage.deadline_thread import DeadlineThread

_log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True, slots=True)
class GuardLimits:
    """When a store counts as failing, and when it is tried again."""

    deadline_s: float = 5.0  # of one operation
    scan_deadline_s: float = 600.0  # of records()
    max_failures: int = 3  # in a row; one missed deadline is enough
    retry_s: float = 10.0


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class StoredRun:
    """Blocks as they were read, one after the other."""

    records: Sequence[BlockRecord]
    stored: ByteArray  # as long as all of them together


class _Rate:
    """Bytes and seconds per block in one direction; the last ten count most."""

    def __init__(self) -> None:
        self.total_bytes = 0
        self.latency_s = 0.0
        self._bytes = 0.0

    def add(self, sizes: Sequence[int], duration_s: float) -> None:
        """Blocks of these sizes, which took so long together."""
        for num_bytes in sizes:
            self._add_block(num_bytes, duration_s / len(sizes))

    def _add_block(self, num_bytes: int, duration_s: float) -> None:
        weight = 0.1 if self.total_bytes else 1.0
        self.total_bytes += num_bytes
        self._bytes += weight * (num_bytes - self._bytes)
        self.latency_s += weight * (duration_s - self.latency_s)

    @property
    def bytes_per_s(self) -> float:
        return self._bytes / self.latency_s if self.latency_s > 0 else 0.0


class GuardedStore:
    """A BlockStore around another one. Thread-safe; waits for the device no longer than the limits say."""

    def __init__(
        self, store: BlockStore, limits: GuardLimits = GuardLimits(), clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._store = store
        self._limits = limits
        self._clock = clock
        self._turn = threading.Lock()  # held by the caller whose operation is running
        self._thread = DeadlineThread('kv-store')
        self._buffer = np.empty(0, dtype=np.uint8)  # an abandoned read must not write to its caller's memory
        self._lock = threading.Lock()  # guards the rest; never held in an operation
        self._owed: set[bytes] = set()  # deletes that could not be done yet
        self._reads, self._writes = _Rate(), _Rate()
        self._num_failures = 0  # in a row
        self._num_timeouts = 0
        self._num_refused = 0  # listings, so that nobody takes none for an empty store
        self._is_tripped = self._is_closed = False
        self._retry_at_s = 0.0

    def put(self, record: BlockRecord, value: ByteArray) -> PutResult:
        results: list[PutResult] = []

        def act() -> Sequence[int]:
            if self._is_owed(record.key):  # there still is what should be gone
                results.append(PutResult.FAILED)
                return ()
            was_there = self._store.size_bytes(record.key) > 0
            results.append(self._store.put(record, value))
            return (len(value),) if results[0] is PutResult.STORED and not was_there else ()

        with self._my_turn() as is_mine:
            if is_mine and self._ask(act, self._writes, undo=lambda: self._owe(record.key)):
                return results[0]
            return PutResult.FAILED

    def get(self, key: bytes, out: ByteArray) -> BlockRecord | None:
        found: list[BlockRecord] = []

        def act() -> Sequence[int]:
            record = None if self._is_owed(key) else self._store.get(key, self._buffer[: len(out)])
            if record is None:
                return ()
            found.append(record)
            return (record.length_bytes,)

        with self._my_turn() as is_mine:
            if not is_mine:
                return None
            if len(self._buffer) < len(out):
                self._buffer = np.empty(len(out), dtype=np.uint8)
            if not self._ask(act, self._reads) or not found:
                return None
            np.copyto(out[: found[0].length_bytes], self._buffer[: found[0].length_bytes])
            return found[0]

    def get_run(self, keys: Sequence[bytes], room_bytes: int) -> StoredRun:
        """As many of these blocks as are there and fit into so many bytes, in their order, for one wait in all.

        A slow device ends the run early with what came; whoever wants more asks again.
        """
        found: list[BlockRecord] = []
        room = np.empty(room_bytes, dtype=np.uint8)  # an abandoned read goes on writing to it

        def act() -> Sequence[int]:
            start, ends_s = 0, self._clock() + self._limits.deadline_s / 2
            for key in keys[: num_leading(keys, lambda key: not self._is_owed(key))]:
                if self._clock() >= ends_s:
                    break
                record = self._store.get(key, room[start:])
                if record is None:
                    break
                found.append(record)
                start += record.length_bytes
            return [each.length_bytes for each in found]

        with self._my_turn() as is_mine:
            records = tuple(found) if is_mine and self._ask(act, self._reads) else ()
        return StoredRun(records=records, stored=room[: sum(each.length_bytes for each in records)])

    def delete(self, key: bytes) -> None:
        """Free the block, or have it freed by the first operation after the device is back."""
        self._owe(key)
        with self._my_turn() as is_mine:
            if is_mine:
                self._ask(lambda: (), self._writes)

    def size_bytes(self, key: bytes) -> int:
        return self._store.size_bytes(key)

    def find(self, keys: Sequence[bytes]) -> int:
        found: list[int] = []

        def act() -> Sequence[int]:
            found.append(self._store.find(keys[: num_leading(keys, lambda key: not self._is_owed(key))]))
            return ()

        with self._my_turn() as is_mine:
            return found[0] if is_mine and self._ask(act, self._reads) else 0

    def records(self) -> Iterator[BlockRecord]:
        found: list[BlockRecord] = []

        def act() -> Sequence[int]:
            found.extend(self._store.records())
            return ()

        with self._my_turn() as is_mine:
            is_complete = is_mine and self._ask(act, self._reads, deadline_s=self._limits.scan_deadline_s)
            if not is_mine:
                with self._lock:
                    self._num_refused += 1
        yield from found if is_complete else ()

    def usage(self) -> StoreUsage:
        """The store's books with what was measured; degraded until the time of the next trial."""
        usage = self._store.usage()
        with self._lock:
            return replace(
                usage,
                num_errors=usage.num_errors + self._num_timeouts + self._num_refused,
                read_bytes=self._reads.total_bytes,
                written_bytes=self._writes.total_bytes,
                read_bytes_per_s=self._reads.bytes_per_s,
                write_bytes_per_s=self._writes.bytes_per_s,
                read_latency_s=self._reads.latency_s,
                write_latency_s=self._writes.latency_s,
                is_degraded=not self._is_askable(),
            )

    def close(self) -> None:
        """Close the store, which then misses; one that hangs is left to the end of the process."""

        def act() -> Sequence[int]:
            self._store.close()
            return ()

        with self._my_turn() as is_mine:
            if is_mine:
                self._ask(act, self._writes)
            with self._lock:
                was_closed, self._is_closed = self._is_closed, True
        if not was_closed:
            self._thread.stop()

    def _is_askable(self) -> bool:
        is_trial_due = not self._thread.is_hanging and self._clock() >= self._retry_at_s
        return not self._is_closed and (not self._is_tripped or is_trial_due)

    @contextlib.contextmanager
    def _my_turn(self) -> Iterator[bool]:
        """Whether this caller may use the device now."""
        with self._lock:
            is_askable = self._is_askable()
        has_turn = is_askable and self._turn.acquire(timeout=self._limits.deadline_s)
        try:
            with self._lock:
                is_askable = self._is_askable()  # the one before may have tripped it
            yield has_turn and is_askable
        finally:
            if has_turn:
                self._turn.release()

    def _ask(
        self,
        act: Callable[[], Sequence[int]],
        rate: _Rate,
        *,
        deadline_s: float = 0.0,
        undo: Callable[[], None] = lambda: None,
    ) -> bool:
        """Run an operation that returns the sizes of the blocks that it moved; whether it ended in time."""
        moved: Sequence[int] = ()
        duration_s = 0.0

        def timed() -> None:
            nonlocal moved, duration_s
            self._pay()
            start_s = time.perf_counter()
            moved = act()
            duration_s = time.perf_counter() - start_s

        num_errors = self._store.usage().num_errors
        is_done = self._thread.run(timed, deadline_s or self._limits.deadline_s, undo)
        has_failed = self._store.usage().num_errors > num_errors
        with self._lock:
            if is_done:
                rate.add(moved, duration_s)
            if not is_done:
                self._num_timeouts += 1
                self._trip('no answer in time')
            elif has_failed:
                self._num_failures += 1
                if self._is_tripped or self._num_failures >= self._limits.max_failures:
                    self._trip(f'{self._num_failures} failures in a row')
            elif moved:
                self._heal()
        return is_done

    def _pay(self) -> None:
        """Do the deletes that are owed; those that fail stay owed."""
        with self._lock:
            owed, self._owed = self._owed, set()
        for key in owed:
            self._store.delete(key)
            if self._store.size_bytes(key):
                self._owe(key)

    def _owe(self, key: bytes) -> None:
        with self._lock:
            self._owed.add(key)

    def _is_owed(self, key: bytes) -> bool:
        with self._lock:
            return key in self._owed

    def _trip(self, reason: str) -> None:
        self._retry_at_s = self._clock() + self._limits.retry_s
        if not self._is_tripped:
            _log.warning('store degraded: %s; everything in it is a miss until it works again', reason)
        self._is_tripped = True

    def _heal(self) -> None:
        self._num_failures = 0
        if self._is_tripped:
            _log.warning('store works again')
        self._is_tripped = False
