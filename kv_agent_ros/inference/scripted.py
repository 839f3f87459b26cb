"""A public fake engine: answers come from a function, tokens and cached prefixes are counted as a real engine would.

Words, single other characters and runs of space are its tokens. No model, no weights.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
import re
import threading
import time

from kv_agent_ros.deadline import Deadline
from kv_agent_ros.errors import CanceledError, DeadlineError, ModelUnavailableError, Outcome
from kv_agent_ros.inference.base import (
    EngineStats,
    FinishReason,
    Generation,
    GenerationRequest,
    Message,
    Role,
    TokenListener,
    Usage,
    ignore_tokens,
)
from kv_agent_ros.inference.endings import cut_short
from kv_agent_ros.inference.engine_books import EngineBooks
from kv_agent_ros.inference.openai_wire import schema_of

Answer = Callable[[GenerationRequest], str]


def answers_in_order(answers: Sequence[str]) -> Answer:
    """Gives each answer once; a request beyond the last raises ModelUnavailableError."""
    left = iter(answers)
    lock = threading.Lock()

    def answer(request: GenerationRequest) -> str:
        with lock:
            for text in left:
                return text
        raise ModelUnavailableError(f'scripted engine: expected at most {len(answers)} requests, got one more')

    return answer


class ScriptedBackend:
    """An InferenceBackend without a model. Keeps every request in `requests`."""

    def __init__(
        self,
        answer: Answer,
        *,
        engine: str = 'scripted',
        model: str = 'scripted',
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._answer = answer
        self._books = EngineBooks(engine=engine, model=model)
        self._clock = clock
        self._lock = threading.Lock()
        self._is_closed = False
        self._seen: list[list[str]] = []  # token sequences whose keys and values an engine would hold
        self.requests: list[GenerationRequest] = []

    def generate(
        self, request: GenerationRequest, deadline: Deadline, on_text: TokenListener = ignore_tokens
    ) -> Generation:
        """See InferenceBackend. What a schema says is the script's business."""
        if self._is_closed:
            raise ModelUnavailableError('scripted engine: expected an open engine, got a closed one')
        if request.json_schema:
            schema_of(request.json_schema)
        turn = _Turn(self._clock)
        prompt = _words(_render(request.messages))
        with self._lock:
            self.requests.append(request)
            num_cached = min(len(prompt) - 1, max((_shared(prompt, seen) for seen in self._seen), default=0))
        answer = _words(self._answer(request))
        try:
            turn.speak(answer[: request.max_new_tokens], deadline, on_text)
            is_whole = len(answer) <= request.max_new_tokens
            generation = replace(
                self._generation(turn, len(prompt), num_cached),
                finish_reason=FinishReason.STOP if is_whole else FinishReason.LENGTH,
            )
        except (CanceledError, DeadlineError) as end:
            generation = cut_short(self._generation(turn, len(prompt), num_cached), end)
        with self._lock:
            self._seen.append(prompt + turn.said)
        return self._books.enter(generation, prefill_s=0.0, load_s=0.0)

    def _generation(self, turn: '_Turn', num_prompt: int, num_cached: int) -> Generation:
        stats = self._books.stats
        return Generation(
            outcome=Outcome.SUCCESS,
            text=''.join(turn.said),
            usage=Usage(
                prompt_tokens=num_prompt,
                cached_tokens=num_cached,
                computed_tokens=num_prompt - num_cached,
                generated_tokens=len(turn.said),
                ttft_s=turn.ttft_s,
                total_s=turn.elapsed_s,
            ),
            engine=stats.engine,
            model=stats.model,
        )

    def stats(self) -> EngineStats:
        """The books."""
        return self._books.stats

    def close(self) -> None:
        """Refuse further requests."""
        self._is_closed = True


class _Turn:
    """What has been said of one answer, and when."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._called_at_s = clock()
        self.said: list[str] = []
        self.ttft_s = 0.0

    @property
    def elapsed_s(self) -> float:
        return self._clock() - self._called_at_s

    def speak(self, words: Sequence[str], deadline: Deadline, on_text: TokenListener) -> None:
        for word in words:
            deadline.check()
            self.ttft_s = self.ttft_s or self.elapsed_s
            self.said.append(word)
            on_text(word)


def _render(messages: Sequence[Message]) -> str:
    turns = ''.join(f'<{message.role.value}>{message.content}</>' for message in messages)
    return f'{turns}<{Role.ASSISTANT.value}>'


def _words(text: str) -> list[str]:
    return re.findall(r'\w+|\s+|[^\w\s]', text)


def _shared(first: Sequence[str], second: Sequence[str]) -> int:
    """Length of the common prefix."""
    for index, (left, right) in enumerate(zip(first, second, strict=False)):
        if left != right:
            return index
    return min(len(first), len(second))
