"""The embedded engine: a Llama model on torch CPU whose prefixes come from, and go to, the robot's KV cache.

One request at a time, the highest priority first. Knows the cache only through PrefixCache and shared-memory segments.
"""

from collections.abc import Callable
from dataclasses import replace
import time

from kv_agent_ros.deadline import Deadline
from kv_agent_ros.errors import BadRequestError, CanceledError, DeadlineError, ModelUnavailableError, Outcome
from kv_agent_ros.inference.base import (
    EngineStats,
    Generation,
    GenerationRequest,
    TokenListener,
    ignore_tokens,
)
from kv_agent_ros.inference.endings import cut_short
from kv_agent_ros.inference.engine_books import EngineBooks
from kv_agent_ros.inference.local_llama import KVBuffer
from kv_agent_ros.inference.local_model import LocalModel
from kv_agent_ros.inference.local_reuse import KVReuse, ReuseStats
from kv_agent_ros.inference.local_run import LocalRun
from kv_agent_ros.inference.sampling import sampler_of
from kv_agent_ros.inference.text_stream import TextStream
from kv_agent_ros.inference.turn_queue import TurnQueue
from kv_agent_ros.kvcache.base import PrefixCache
from kv_agent_ros.kvcache.block import KVNamespace, TokenArray
from kv_agent_ros.kvcache.storage.segment import SegmentMap


class LocalBackend:
    """An InferenceBackend over a loaded model. `namespace` is `model.namespace(...)`: it sets how KV is stored."""

    def __init__(
        self,
        *,
        model: LocalModel,
        cache: PrefixCache,
        segments: SegmentMap,
        namespace: KVNamespace,
        engine: str = 'local',
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._model = model
        self._reuse = KVReuse(cache=cache, segments=segments, namespace=namespace)
        self._buffer = KVBuffer(model.llama.config)
        self._turns = TurnQueue()
        self._books = EngineBooks(engine=engine, model=model.name)
        self._clock = clock
        self._is_closed = False

    def generate(
        self, request: GenerationRequest, deadline: Deadline, on_text: TokenListener = ignore_tokens
    ) -> Generation:
        """See InferenceBackend. `cached_tokens` are the tokens whose verified KV came out of the cache."""
        if self._is_closed:
            raise ModelUnavailableError(f'engine {self._books.stats.engine}: expected an open engine, got a closed one')
        called_at_s = self._clock()
        sampler = sampler_of(request.temperature, request.seed)
        constraint = self._model.grammars.constraint(request.json_schema)
        run = LocalRun(
            model=self._model,
            reuse=self._reuse,
            buffer=self._buffer,
            request=request,
            prompt=self._prompt(request),
            stream=TextStream(self._model.tokenizer, on_text),
            deadline=deadline,
            clock=self._clock,
            called_at_s=called_at_s,
        )
        try:
            with self._turns.turn(request.priority, deadline):
                finish_reason = run.execute(sampler, constraint)
            generation = replace(self._generation(run), finish_reason=finish_reason)
        except (CanceledError, DeadlineError) as end:
            generation = cut_short(self._generation(run), end)
        return self._books.enter(generation, prefill_s=run.prefill_s, load_s=run.load_s)

    def stats(self) -> EngineStats:
        """The books."""
        return self._books.stats

    @property
    def reuse_stats(self) -> ReuseStats:
        """The books of the traffic with the KV cache."""
        return self._reuse.stats

    def close(self) -> None:
        """Refuse further requests; one in progress ends by itself. Idempotent."""
        self._is_closed = True

    def _prompt(self, request: GenerationRequest) -> TokenArray:
        if request.max_new_tokens < 1:
            raise BadRequestError(f'max_new_tokens: expected at least 1, got {request.max_new_tokens}')
        prompt = self._model.chat.prompt(request.messages)
        max_tokens = self._model.llama.config.max_tokens
        if len(prompt) >= max_tokens:
            raise BadRequestError(
                f'prompt: expected fewer than {max_tokens} tokens, got {len(prompt)}; start a session from a summary'
            )
        return prompt

    def _generation(self, run: LocalRun) -> Generation:
        return Generation(
            outcome=Outcome.SUCCESS,
            text=run.stream.text,
            token_ids=tuple(run.stream.token_ids),
            usage=run.usage,
            engine=self._books.stats.engine,
            model=self._model.name,
        )
