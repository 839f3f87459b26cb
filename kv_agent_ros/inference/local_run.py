"""One request on the local model, as the engine's thread advances it: fetch what is cached, compute the rest, choose
tokens, publish.

Its answer goes through a pipe to the thread that asked. Whatever ends it, the tokens computed so far are published.
"""

from collections.abc import Callable

import numpy as np

from kv_agent_ros.inference.answer_pipe import AnswerPipe
from kv_agent_ros.inference.base import FinishReason, GenerationRequest
from kv_agent_ros.inference.local_llama import KVBuffer, Logits, Part
from kv_agent_ros.inference.local_model import LocalModel
from kv_agent_ros.inference.local_reuse import KVReuse
from kv_agent_ros.inference.sampling import Sampler
from kv_agent_ros.inference.structured import TokenConstraint
from kv_agent_ros.kvcache.block import TokenArray

CHUNK_TOKENS = 256  # about a second on one slow core: the longest that others wait for a prefill
AGEING_S = 2.0  # who waits this long goes before those of one priority more who just came


class LocalRun:
    """The state of one request. Only the engine's thread advances it; the numbers may be read at any time."""

    def __init__(
        self,
        *,
        model: LocalModel,
        reuse: KVReuse,
        request: GenerationRequest,
        prompt: TokenArray,
        sampler: Sampler,
        constraint: TokenConstraint,
        pipe: AnswerPipe,
        asked_at_s: float,
        clock: Callable[[], float],
    ) -> None:
        self._model = model
        self._reuse = reuse
        self._session = request.session
        self._num_budget = min(len(prompt) + request.max_new_tokens, model.llama.config.max_tokens)
        self._num_spoken = len(prompt)
        self._sampler = sampler
        self._constraint = constraint
        self._clock = clock
        self._buffer = KVBuffer(model.llama.config)  # empty, until a start
        self._is_begun = False
        self._fits = True
        self._is_stopped = False
        self.priority = request.priority
        self.pipe = pipe
        self.asked_at_s = asked_at_s
        self.first_at_s = 0.0  # when the first token was sent
        self.tokens = prompt
        self.num_prompt = len(prompt)
        self.num_cached = 0
        self.num_computed = 0  # tokens that the buffer holds
        self.num_published = 0  # of those, known to the cache
        self.is_prefilling = True
        self.is_finished = False
        self.finish_reason = FinishReason.LENGTH
        self.load_s = 0.0
        self.prefill_s = 0.0

    def rank(self, now_s: float) -> float:
        """Its priority, which grows while it waits, so that nobody starves."""
        return self.priority + (now_s - self.asked_at_s) / AGEING_S

    def start(self, buffer: KVBuffer) -> None:
        """Take `buffer` and fill it with what the cache has; raises CanceledError or DeadlineError."""
        self.pipe.check()
        started_s = self._clock()
        buffer.ensure(self._num_budget, 0)
        self._buffer = buffer
        self.num_computed = self.num_published = self._reuse.fetch(self._session, self.tokens, buffer)
        if not self._is_begun:
            self._is_begun = True
            self.num_cached = self.num_computed
            self._append(self._constraint.forced())
        self.load_s += self._clock() - started_s

    def publish(self) -> None:
        """Let the cache have what is computed so far."""
        self._reuse.store(self._session, self.tokens[: self.num_computed], self._buffer)
        self.num_published = self.num_computed

    def release(self) -> KVBuffer:
        """Publish and give the buffer back; a later start goes on from what the cache still has then."""
        buffer, self._buffer = self._buffer, KVBuffer(self._model.llama.config)
        try:
            self._reuse.store(self._session, self.tokens[: self.num_computed], buffer)
        finally:
            self.num_computed = self.num_published = 0
            self.is_prefilling = True
        return buffer

    @property
    def num_pending(self) -> int:
        """Tokens that are known but not computed."""
        return len(self.tokens) - self.num_computed

    def next_part(self, max_tokens: int) -> Part:
        """What the network is to compute next."""
        chunk = self.tokens[self.num_computed : self.num_computed + max_tokens]
        return Part(tokens=chunk, buffer=self._buffer, start=self.num_computed)

    def advance(self, num_tokens: int, logits: Logits, took_s: float) -> None:
        """Note `num_tokens` as computed; when those were all, choose the next token by their logits, or finish.

        Forced tokens join the prefill and every later step, so a run of them costs one pass of the network.
        """
        self.num_computed += num_tokens
        if self.is_prefilling:
            self.prefill_s += took_s
        if self.num_computed < len(self.tokens):
            return
        self.is_prefilling = False
        if self._goes_on:
            self._choose(logits)
        self._speak()
        if not self._goes_on:
            self.is_finished = True
            self.finish_reason = FinishReason.STOP if self._is_whole else FinishReason.LENGTH

    def _choose(self, logits: Logits) -> None:
        token = self._sampler.pick(self._constraint.restrict(logits))
        if token in self._model.stop_ids:
            self._is_stopped = True
        else:
            self._constraint.accept(token)
            self._append([token, *self._constraint.forced()])

    @property
    def _is_whole(self) -> bool:
        return self._is_stopped or (self._fits and self._constraint.is_complete)

    @property
    def _goes_on(self) -> bool:
        return self._fits and len(self.tokens) < self._num_budget and not self._is_whole

    def _append(self, tokens: list[int]) -> None:
        """Add as many tokens as the budget allows."""
        kept = tokens[: self._num_budget - len(self.tokens)]
        self.tokens = np.concatenate((self.tokens, np.array(kept, dtype=np.int32)))
        self._fits = len(kept) == len(tokens)

    def _speak(self) -> None:
        """Send what was appended since the last time."""
        if self._num_spoken < len(self.tokens):
            self.first_at_s = self.first_at_s or self._clock()
            self.pipe.put(self.tokens[self._num_spoken :].tolist())
            self._num_spoken = len(self.tokens)
