"""One request on the local model: fetch what is cached, prefill the rest, decode, publish.

Runs while its request holds the engine's turn. Whatever ends it, the tokens computed so far are published.
"""

from collections.abc import Callable

import numpy as np

from kv_agent_ros.deadline import Deadline
from kv_agent_ros.inference.base import FinishReason, GenerationRequest, Usage
from kv_agent_ros.inference.local_llama import KVBuffer, Logits
from kv_agent_ros.inference.local_model import LocalModel
from kv_agent_ros.inference.local_reuse import KVReuse
from kv_agent_ros.inference.sampling import Sampler
from kv_agent_ros.inference.structured import TokenConstraint
from kv_agent_ros.inference.text_stream import TextStream
from kv_agent_ros.kvcache.block import TokenArray

CHUNK_TOKENS = 256  # about a second on one slow core: the longest a cancelled prefill goes on


class LocalRun:
    """The state of one request; `usage` and `stream` are true at any moment, also after an exception."""

    def __init__(
        self,
        *,
        model: LocalModel,
        reuse: KVReuse,
        buffer: KVBuffer,
        request: GenerationRequest,
        prompt: TokenArray,
        stream: TextStream,
        deadline: Deadline,
        clock: Callable[[], float],
        called_at_s: float,
    ) -> None:
        self._model = model
        self._reuse = reuse
        self._buffer = buffer
        self._session = request.session
        self._max_tokens = min(request.max_new_tokens, model.llama.config.max_tokens - len(prompt))
        self._tokens = prompt
        self._num_prompt = len(prompt)
        self._num_computed = 0  # tokens that the buffer holds
        self._num_cached = 0
        self._logits: Logits = np.empty(0, dtype=np.float32)
        self._deadline = deadline
        self._clock = clock
        self._called_at_s = called_at_s
        self._ttft_s = 0.0
        self.stream = stream
        self.load_s = 0.0
        self.prefill_s = 0.0

    @property
    def usage(self) -> Usage:
        """The cost so far."""
        return Usage(
            prompt_tokens=self._num_prompt,
            cached_tokens=self._num_cached,
            computed_tokens=self._num_prompt - self._num_cached,
            generated_tokens=len(self.stream.token_ids),
            ttft_s=self._ttft_s,
            total_s=self._clock() - self._called_at_s,
        )

    def execute(self, sampler: Sampler, constraint: TokenConstraint) -> FinishReason:
        """Answer; raises CanceledError or DeadlineError between tokens and between prefill chunks."""
        try:
            self._fetch()
            return self._decode(sampler, constraint)
        finally:
            self.stream.finish()
            self._reuse.store(self._session, self._tokens[: self._num_computed], self._buffer)

    def _fetch(self) -> None:
        self._deadline.check()
        self._buffer.ensure(self._num_prompt + self._max_tokens, 0)
        started_s = self._clock()
        self._num_cached = self._reuse.fetch(self._session, self._tokens, self._buffer)
        self._num_computed = self._num_cached
        self.load_s = self._clock() - started_s

    def _decode(self, sampler: Sampler, constraint: TokenConstraint) -> FinishReason:
        """Forced tokens join the prefill and every later step, so a run of them costs one pass of the network."""
        fits = self._append(constraint.forced())
        started_s = self._clock()
        self._compute()
        self.prefill_s = self._clock() - started_s
        self._speak()
        while fits and self._num_left > 0 and not constraint.is_complete:
            self._compute()
            token = sampler.pick(constraint.restrict(self._logits))
            if token in self._model.stop_ids:
                return FinishReason.STOP
            constraint.accept(token)
            fits = self._append([token, *constraint.forced()])
            self._speak()
        return FinishReason.STOP if fits and constraint.is_complete else FinishReason.LENGTH

    @property
    def _num_left(self) -> int:
        return self._num_prompt + self._max_tokens - len(self._tokens)

    def _append(self, tokens: list[int]) -> bool:
        """Add as many tokens as the budget allows; False when some were left out."""
        kept = tokens[: self._num_left]
        self._tokens = np.concatenate((self._tokens, np.array(kept, dtype=np.int32)))
        return len(kept) == len(tokens)

    def _speak(self) -> None:
        """Stream what was appended since the last time."""
        tokens = self._tokens[self._num_prompt + len(self.stream.token_ids) :].tolist()
        if tokens and not self.stream.token_ids:
            self._ttft_s = self._clock() - self._called_at_s
        self.stream.push(tokens)

    def _compute(self) -> None:
        """Run the network over all tokens that the buffer does not hold yet; keeps the logits of the last one."""
        while self._num_computed < len(self._tokens):
            self._deadline.check()
            chunk = self._tokens[self._num_computed : self._num_computed + CHUNK_TOKENS]
            self._logits = self._model.llama.forward(chunk, self._buffer, self._num_computed)
            self._num_computed += len(chunk)
