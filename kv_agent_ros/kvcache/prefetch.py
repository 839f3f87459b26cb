"""Brings what a next turn needs to memory ahead of it, in a thread of its own."""

from dataclasses import dataclass, field
import math
import threading

from kv_agent_ros.errors import BadRequestError
from kv_agent_ros.kvcache.base import Prefetched, PrefetchPolicy
from kv_agent_ros.kvcache.block import SessionKey
from kv_agent_ros.kvcache.books import CacheBooks
from kv_agent_ros.kvcache.path import TokenPath
from kv_agent_ros.kvcache.promotion import HeldPrefix, Promoter
from kv_agent_ros.kvcache.worker import Worker

_MAX_QUEUED = 64
_BLOCKS_A_STEP = 32  # between two looks at whether the caller has given up


@dataclass(kw_only=True, slots=True, eq=False)
class _Job:
    path: TokenPath
    session: SessionKey
    generation: int
    end: threading.Event = field(default_factory=threading.Event)
    is_given_up: bool = False


class Prefetcher:
    """One queue for all sessions; what does not fit into it is not prefetched."""

    def __init__(self, *, books: CacheBooks, promoter: Promoter) -> None:
        self._books = books
        self._promoter = promoter
        self._worker = Worker(name='kv-prefetch', work=self._work, max_queued=_MAX_QUEUED)
        self.num_blocks = 0  # brought up so far; guarded by the books

    def prefetch(self, path: TokenPath, session: SessionKey, policy: PrefetchPolicy, timeout_s: float) -> Prefetched:
        """Start to bring the path up and wait as the policy says. Raises BadRequestError for an impossible time."""
        if not 0.0 <= timeout_s < math.inf:
            raise BadRequestError(f'timeout_s: expected seconds >= 0, got {timeout_s!r}')
        with self._books.owned():
            job = _Job(path=path, session=session, generation=self._books.sessions.join(session))
            num_held = self._books.dram.match(path)
        if self._promoter.may_bring(path, num_held) and self._worker.submit(job):
            if policy is not PrefetchPolicy.BEST_EFFORT:
                job.end.wait(timeout_s)
            job.is_given_up = policy is PrefetchPolicy.TIMEOUT and not job.end.is_set()
        else:
            job.end.set()
        with self._books.owned():
            return Prefetched(num_blocks=self._books.dram.match(path), is_complete=job.end.is_set() or job.is_given_up)

    @property
    def num_errors(self) -> int:
        """Threads that a defect ended."""
        return self._worker.num_deaths

    def flush(self, timeout_s: float) -> bool:
        """Wait until nothing is on its way; False when that takes longer."""
        return self._worker.flush(timeout_s)

    def clear(self) -> None:
        """Forget what waits."""
        for job in self._worker.drop():
            job.end.set()

    def close(self, timeout_s: float) -> bool:
        """End the thread after what it does now; idempotent."""
        self.clear()
        return self._worker.close(timeout_s)

    def _work(self, job: _Job) -> None:
        try:
            num_blocks = _BLOCKS_A_STEP
            while not job.is_given_up and self._step(job, job.path.head(num_blocks)):
                num_blocks += _BLOCKS_A_STEP
        finally:
            job.end.set()

    def _step(self, job: _Job, path: TokenPath) -> bool:
        """Bring a head of the job's path up; whether to go on with a longer one."""
        with self._books.owned():
            held = HeldPrefix(path=path, epoch=self._books.epoch, lock=self._books.dram.hold(path), sources=[])
        num_held = held.lock.num_blocks
        try:
            self._promoter.promote(held)
        finally:
            with self._books.owned():
                self.num_blocks += held.lock.num_blocks - num_held
                self._books.sessions.refer(job.session, job.generation, job.path, held.lock.keys)
                self._books.dram.unlock(held.lock)
        return held.lock.num_blocks == path.num_blocks < job.path.num_blocks
