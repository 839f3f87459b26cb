"""The loop that owns the local model: requests join and leave between steps.

A step is one pass of the network over the next token of every answer that is under way and at most one chunk of
prompts, so a long prompt holds nobody up for longer than a chunk. Continuous batching: Yu et al. 2022 (Orca); chunked
prefill: Agrawal et al. 2023 (Sarathi). A request whose prefix another one is computing now waits for it.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
import logging
import math
import threading
import time

import numpy as np

from kv_agent_ros.errors import ModelUnavailableError
from kv_agent_ros.inference.base import FinishReason
from kv_agent_ros.inference.local_llama import KVBuffer, Llama
from kv_agent_ros.inference.local_run import CHUNK_TOKENS, LocalRun
from kv_agent_ros.kvcache.block import TokenArray

IDLE_S = 1.0  # the thread ends when there was nothing to do for so long; the next request starts another
NETWORK_FAULTS = (RuntimeError, IndexError, MemoryError)  # torch's
KEPT_BUFFER_TOKENS = 4096  # of larger buffers only one outlives its request

_log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True, slots=True)
class Batching:
    """How many requests the engine advances together."""

    max_batch: int = 8
    chunk_tokens: int = CHUNK_TOKENS  # of a prompt, a step
    block_tokens: int = 16  # prefixes are shared in multiples of it


DEFAULT_BATCHING = Batching()


class LocalEngine:
    """Serves LocalRuns on a thread of its own, which is there while there is work. `submit` is thread-safe."""

    def __init__(self, *, llama: Llama, batching: Batching, clock: Callable[[], float] = time.monotonic) -> None:
        self._llama = llama
        self._batching = batching
        self._clock = clock
        self._condition = threading.Condition()
        self._submitted: list[LocalRun] = []
        self._has_thread = False
        self._is_closed = False
        # Below: the thread's own.
        self._waiting: list[LocalRun] = []  # by arrival
        self._active: list[LocalRun] = []  # with a buffer each
        self._buffers: list[KVBuffer] = []

    def submit(self, run: LocalRun) -> None:
        """Have the run served; it ends through its pipe. Raises ModelUnavailableError when the engine is closed."""
        with self._condition:
            if self._is_closed:
                raise ModelUnavailableError('engine: expected an open one, got a closed one')
            self._submitted.append(run)
            self._condition.notify_all()
            if not self._has_thread:
                self._has_thread = True
                threading.Thread(target=self._serve, name='local_engine').start()

    def close(self) -> None:
        """Take no further requests; those under way go on to their end. Idempotent."""
        with self._condition:
            self._is_closed = True
            self._condition.notify_all()

    def _serve(self) -> None:
        try:
            while self._collect():
                self._step()
        except BaseException as error:
            _log.error('engine: stopped by %r; the next request starts it anew', error)
            self._give_up(error)
            raise

    def _collect(self) -> bool:
        """Take what was submitted; False when the thread shall end."""
        with self._condition:
            if not self._waiting and not self._active:
                self._condition.wait_for(lambda: self._submitted or self._is_closed, IDLE_S)
            self._waiting += self._submitted
            self._submitted = []
            self._has_thread = bool(self._waiting or self._active)
            return self._has_thread

    def _give_up(self, error: BaseException) -> None:
        with self._condition:
            unserved = [*self._submitted, *self._waiting, *self._active]
            self._submitted, self._waiting, self._active = [], [], []
            self._has_thread = False
        for run in unserved:
            run.pipe.end(ModelUnavailableError(f'engine: expected to go on, got {error!r}; ask again'))

    def _step(self) -> None:
        for run in [*self._waiting, *self._active]:
            self._guarded(run, run.pipe.check)
        prompts = self._share_out(self._clock())
        shares = {run: prompts.get(run, 0 if run.is_prefilling else run.num_pending) for run in self._active}
        self._compute({run: num_tokens for run, num_tokens in shares.items() if num_tokens})

    def _share_out(self, now_s: float) -> dict[LocalRun, int]:
        """Whose prompts go on in this step, by how many tokens: one chunk in all, for the first and its equals."""
        shares: dict[LocalRun, int] = {}
        passed: set[LocalRun] = set()
        num_left = self._batching.chunk_tokens
        while num_left > 0:
            candidates = [run for run in self._candidates(now_s) if run not in passed]
            if not candidates:
                break
            chosen = max(candidates, key=lambda run: run.rank(now_s))
            passed.add(chosen)
            if any(run.priority > chosen.priority for run in shares):
                continue  # it would make a more urgent one wait for its tokens
            served = self._served_first(chosen, now_s)
            if served in self._active and served.is_prefilling and served not in shares:
                passed.add(served)
                shares[served] = min(num_left, served.num_pending)
                num_left -= shares[served]
        return shares

    def _candidates(self, now_s: float) -> list[LocalRun]:
        """Prompts that could go on now; none that would slow down more urgent answers."""
        could = [run for run in self._active if run.is_prefilling]
        could += [run for run in self._waiting if self._can_enter(run, now_s)]
        floor = max((run.priority for run in self._active if not run.is_prefilling), default=-math.inf)
        return [run for run in could if run.rank(now_s) >= floor]

    def _served_first(self, run: LocalRun, now_s: float) -> LocalRun:
        """The run itself, started if need be, or the one that it waits for."""
        if run in self._active:
            return run
        leader = self._leader(run)
        if leader is run:
            self._enter(run, now_s)
        return leader

    def _leader(self, run: LocalRun) -> LocalRun:
        """Who must compute first, so that `run` need not compute the same; itself when there is nobody."""
        for other in [*self._active]:
            num_shared = _shared_tokens(run.tokens, other.tokens, self._batching.block_tokens)
            if num_shared > other.num_computed:
                return other
            if num_shared > other.num_published:
                self._guarded(other, other.publish)
        return run

    def _can_enter(self, run: LocalRun, now_s: float) -> bool:
        is_full = len(self._active) >= self._batching.max_batch
        return not is_full or self._weakest(now_s).rank(now_s) < run.priority

    def _weakest(self, now_s: float) -> LocalRun:
        return min(self._active, key=lambda run: run.rank(now_s))

    def _enter(self, run: LocalRun, now_s: float) -> None:
        """Make the run active; when there is no room, the weakest waits again, with its KV in the cache."""
        if len(self._active) >= self._batching.max_batch:
            weakest = self._weakest(now_s)
            self._active.remove(weakest)
            self._waiting.append(weakest)
            self._guarded(weakest, lambda: self._keep(weakest.release()))
        self._waiting.remove(run)
        self._active.append(run)
        buffer = self._buffers.pop() if self._buffers else KVBuffer(self._llama.config)
        self._guarded(run, lambda: run.start(buffer))

    def _compute(self, shares: dict[LocalRun, int]) -> None:
        if not shares:
            return
        started_s = self._clock()
        parts = [run.next_part(num_tokens) for run, num_tokens in shares.items()]
        try:
            answers = self._llama.forward_batch(parts)
        except NETWORK_FAULTS as error:  # whose it is shows when each goes alone
            self._compute_apart(shares, error)
            return
        took_s = self._clock() - started_s
        for run, part, logits in zip(shares, parts, answers, strict=True):
            self._guarded(run, partial(run.advance, len(part.tokens), logits, took_s))
            if run.is_finished:
                self._end(run, run.finish_reason)

    def _compute_apart(self, shares: dict[LocalRun, int], error: Exception) -> None:
        for run, num_tokens in shares.items():
            if len(shares) > 1:
                self._compute({run: num_tokens})
            else:
                self._end(run, ModelUnavailableError(f'network: expected logits, got {error!r}; ask again'))

    def _guarded(self, run: LocalRun, act: Callable[[], None]) -> None:
        try:
            act()
        except Exception as error:  # goes to the caller whose request it is, and ends no other
            self._end(run, error)

    def _end(self, run: LocalRun, how: FinishReason | Exception) -> None:
        try:
            if run in self._waiting:
                self._waiting.remove(run)
            else:
                self._active.remove(run)
                self._keep(run.release())
        finally:
            run.pipe.end(how)

    def _keep(self, buffer: KVBuffer) -> None:
        if not self._buffers or buffer.capacity <= KEPT_BUFFER_TOKENS:
            self._buffers.append(buffer)


def _shared_tokens(tokens: TokenArray, others: TokenArray, block_tokens: int) -> int:
    """How many tokens in whole blocks both begin with, but not all of `tokens`: one is left to compute."""
    length = min(len(tokens) - 1, len(others))
    differing = np.flatnonzero(tokens[:length] != others[:length])
    num_equal = int(differing[0]) if len(differing) else length
    return num_equal // block_tokens * block_tokens
