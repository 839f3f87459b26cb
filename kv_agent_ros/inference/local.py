"""The embedded engine: a Llama model on torch CPU whose prefixes come from, and go to, the robots' KV cache.

Serves several robots at a time, the highest priority first. Here is the caller's side of it: what a request must be,
text as it comes, the books. Knows the cache only through PrefixCache and shared-memory segments.
"""

from collections import deque
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
import time

from kv_agent_ros.deadline import Deadline
from kv_agent_ros.errors import BadRequestError, CanceledError, DeadlineError, ModelUnavailableError, Outcome
from kv_agent_ros.inference.answer_pipe import AnswerPipe
from kv_agent_ros.inference.base import (
    EngineStats,
    Generation,
    GenerationRequest,
    TokenListener,
    Usage,
    ignore_tokens,
)
from kv_agent_ros.inference.endings import cut_short
from kv_agent_ros.inference.engine_books import EngineBooks
from kv_agent_ros.inference.local_engine import DEFAULT_BATCHING, Batching, LocalEngine
from kv_agent_ros.inference.local_model import LocalModel
from kv_agent_ros.inference.local_reuse import KVReuse, ReuseStats
from kv_agent_ros.inference.local_run import LocalRun
from kv_agent_ros.inference.sampling import PromptedSampler, Sampler, sampler_of
from kv_agent_ros.inference.text_stream import TextStream
from kv_agent_ros.kvcache.base import PrefixCache
from kv_agent_ros.kvcache.block import KVNamespace, TokenArray
from kv_agent_ros.kvcache.storage.segment import SegmentMap


@dataclass(frozen=True, kw_only=True, slots=True)
class Score:
    """How likely a continuation is after a prompt, by the model's own account."""

    continuation: str
    num_tokens: int
    log_probability: float  # summed over the tokens, in nats


class LocalBackend:
    """An InferenceBackend over a loaded model. `namespace` is `model.namespace(...)`: it sets how KV is stored."""

    def __init__(
        self,
        *,
        model: LocalModel,
        cache: PrefixCache,
        segments: SegmentMap,
        namespace: KVNamespace,
        batching: Batching = DEFAULT_BATCHING,
        engine: str = 'local',
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._model = model
        self._reuse = KVReuse(cache=cache, segments=segments, namespace=namespace)
        batching = replace(batching, block_tokens=namespace.block_tokens)
        self._engine = LocalEngine(llama=model.llama, batching=batching, clock=clock)
        self._books = EngineBooks(engine=engine, model=model.name)
        self._clock = clock

    def generate(
        self, request: GenerationRequest, deadline: Deadline, on_text: TokenListener = ignore_tokens
    ) -> Generation:
        """See InferenceBackend. `cached_tokens` are the tokens whose verified KV came out of the cache."""
        run = self._run(request, sampler_of(request.temperature, request.seed), deadline)
        stream = TextStream(self._model.tokenizer, on_text)
        self._engine.submit(run)
        try:
            self._deliver(run, stream)
            generation = replace(self._generation(run, stream), finish_reason=run.pipe.finish_reason)
        except (CanceledError, DeadlineError) as end:
            stream.finish()
            generation = cut_short(self._generation(run, stream), end)
        except ModelUnavailableError:
            self._books.enter_failure()
            raise
        return self._books.enter(generation, prefill_s=run.prefill_s, load_s=run.load_s)

    def score(self, request: GenerationRequest, continuations: Sequence[str], deadline: Deadline) -> tuple[Score, ...]:
        """How likely the model would answer the request with each continuation; they share one batch and its prefix.

        Only the request's session, messages and priority count. Raises BadRequestError for an empty continuation,
        CanceledError or DeadlineError when it ends too early.
        """
        answers = [self._model.tokenizer.encode(text, add_special_tokens=False).ids for text in continuations]
        samplers = [PromptedSampler(tokens) for tokens in answers]
        asked = [replace(request, max_new_tokens=len(tokens), json_schema='') for tokens in answers]
        runs = [self._run(ask, sampler, deadline) for ask, sampler in zip(asked, samplers, strict=True)]
        with ExitStack() as submitted:
            for run in runs:
                self._engine.submit(run)
                submitted.callback(run.pipe.abandon)
            for run in runs:
                deque(run.pipe.tokens(), maxlen=0)
        return tuple(
            Score(continuation=text, num_tokens=len(tokens), log_probability=sampler.log_probability)
            for text, tokens, sampler in zip(continuations, answers, samplers, strict=True)
        )

    def stats(self) -> EngineStats:
        """The books."""
        return self._books.stats

    @property
    def reuse_stats(self) -> ReuseStats:
        """The books of the traffic with the KV cache."""
        return self._reuse.stats

    def close(self) -> None:
        """Refuse further requests; those in progress end by themselves. Idempotent."""
        self._engine.close()

    def _run(self, request: GenerationRequest, sampler: Sampler, deadline: Deadline) -> LocalRun:
        asked_at_s = self._clock()
        return LocalRun(
            model=self._model,
            reuse=self._reuse,
            request=request,
            sampler=sampler,
            constraint=self._model.grammars.constraint(request.json_schema),
            prompt=self._prompt(request),
            pipe=AnswerPipe(deadline),
            asked_at_s=asked_at_s,
            clock=self._clock,
        )

    def _deliver(self, run: LocalRun, stream: TextStream) -> None:
        try:
            for tokens in run.pipe.tokens():
                stream.push(tokens)
            stream.finish()
        finally:
            run.pipe.abandon()  # a listener that fails must not leave its request behind

    def _prompt(self, request: GenerationRequest) -> TokenArray:
        if request.max_new_tokens < 1:
            raise BadRequestError(f'max_new_tokens: expected at least 1, got {request.max_new_tokens}')
        prompt = self._model.chat.prompt(request.messages)
        max_tokens, vocab_size = self._model.llama.config.max_tokens, self._model.llama.config.vocab_size
        if not 0 <= prompt.min() <= prompt.max() < vocab_size:
            raise BadRequestError(f'token_ids: expected ids below {vocab_size}, got {prompt.min()} … {prompt.max()}')
        if len(prompt) >= max_tokens:
            raise BadRequestError(
                f'prompt: expected fewer than {max_tokens} tokens, got {len(prompt)}; start a session from a summary'
            )
        return prompt

    def _generation(self, run: LocalRun, stream: TextStream) -> Generation:
        usage = Usage(
            prompt_tokens=run.num_prompt,
            cached_tokens=run.num_cached,
            computed_tokens=run.num_prompt - run.num_cached,
            generated_tokens=len(stream.token_ids),
            ttft_s=run.first_at_s - run.asked_at_s if stream.token_ids else 0.0,
            total_s=self._clock() - run.asked_at_s,
        )
        return Generation(
            outcome=Outcome.SUCCESS,
            text=stream.text,
            token_ids=tuple(stream.token_ids),
            usage=usage,
            engine=self._books.stats.engine,
            model=self._model.name,
        )
