"""Two engines as one: a small one on the robot, a larger one behind a network that may go away in mid-answer.

A lost answer in free text is continued by the other engine behind what was said so far; under a schema nothing is said
before the answer is whole, since no model can go on with half a JSON document, so there the other one starts anew.
The caller's text never repeats and never changes. What the policy calls private is never sent. Token ids stay on the
robot: the two may have tokenizers of their own.
"""

from collections.abc import Callable
from dataclasses import replace
import threading
import time

from kv_agent_ros.deadline import Deadline
from kv_agent_ros.errors import CanceledError, ModelUnavailableError, Outcome
from kv_agent_ros.inference.base import (
    EngineStats,
    Generation,
    GenerationRequest,
    InferenceBackend,
    Message,
    Role,
    TokenListener,
    Usage,
    ignore_tokens,
)
from kv_agent_ros.inference.edge_cloud_route import Difficulty, EdgeCloudRoute, Side
from kv_agent_ros.inference.endings import cut_short
from kv_agent_ros.inference.engine_books import added
from kv_agent_ros.inference.link_health import LinkHealth
from kv_agent_ros.inference.privacy import IsPrivate
from kv_agent_ros.inference.side_books import SideBooks

ENGINE = 'edge_cloud'
GO_ON = 'Go on exactly where you stopped. Repeat nothing.'
OVER_S = 1e9
WHOLE_DIFFICULTY = Difficulty()


class EdgeCloudBackend:
    """An InferenceBackend over two. `patience_s`: how long the cloud may be silent while the edge could answer."""

    def __init__(
        self,
        *,
        edge: InferenceBackend,
        cloud: InferenceBackend,
        is_private: IsPrivate,
        difficulty: Difficulty = WHOLE_DIFFICULTY,
        patience_s: float = 5.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._engines = {Side.EDGE: edge, Side.CLOUD: cloud}
        self._books = {side: SideBooks() for side in Side}
        self._health = LinkHealth(clock=clock)
        self._route = EdgeCloudRoute(
            is_private=is_private, difficulty=difficulty, health=self._health, books=self._books
        )
        self._patience_s = patience_s
        self._clock = clock
        self._lock = threading.Lock()
        self._last_ttft_s = 0.0

    def generate(
        self, request: GenerationRequest, deadline: Deadline, on_text: TokenListener = ignore_tokens
    ) -> Generation:
        """See InferenceBackend. The answer's `engine` and `model` are those of the side that ended it."""
        answer = _Answer(request, on_text, self._clock)
        losses: list[str] = []
        order = self._route.order(request, deadline.remaining_s)
        for side in order:
            try:
                generation = self._ask(side, answer, deadline, can_be_replaced=side is not order[-1])
            except ModelUnavailableError as error:
                losses.append(f'{side.value}: {error}')
                if side is order[-1]:
                    raise ModelUnavailableError('; '.join(losses)) from error
                answer.lose()
                continue
            generation = answer.finished(generation, losses)
            with self._lock:
                self._last_ttft_s = generation.usage.ttft_s
            return generation
        raise AssertionError('unreachable')

    def stats(self) -> EngineStats:
        """The books of both; a request that both were asked counts twice."""
        edge, cloud = (self._engines[side].stats() for side in (Side.EDGE, Side.CLOUD))
        with self._lock:
            last_ttft_s = self._last_ttft_s
        return replace(added(edge, cloud), engine=ENGINE, model=f'{edge.model}+{cloud.model}', last_ttft_s=last_ttft_s)

    def close(self) -> None:
        """Close both. Idempotent."""
        for engine in self._engines.values():
            engine.close()

    def _ask(self, side: Side, answer: '_Answer', deadline: Deadline, *, can_be_replaced: bool) -> Generation:
        """One side's answer; raises ModelUnavailableError when it is lost."""
        if side is Side.EDGE:
            generation = self._engines[side].generate(answer.request(), deadline, answer.listen)
            self._books[side].enter(answer.asked, generation)
            return generation
        if not self._health.begin():
            raise ModelUnavailableError(f'expected it to be back, got {self._health.num_failures} failures in a row')
        verdict = self._health.gave_up
        try:
            generation = replace(self._ask_cloud(answer, deadline, can_be_replaced), token_ids=())
            self._books[side].enter(answer.asked, generation)
            if generation.outcome is Outcome.SUCCESS:
                verdict = self._health.succeeded
            return generation
        except ModelUnavailableError:
            self._books[side].forget()
            verdict = self._health.failed
            raise
        finally:
            verdict()

    def _ask_cloud(self, answer: '_Answer', deadline: Deadline, can_be_replaced: bool) -> Generation:
        cloud = self._engines[Side.CLOUD]
        request = without_ids(answer.request())
        if not can_be_replaced or deadline.is_over:
            return cloud.generate(request, deadline, answer.listen)
        patience_s = min(self._patience_s, deadline.remaining_s / 2 or self._patience_s)
        silence = _Silence(deadline, patience_s, self._clock)

        def listen(piece: str) -> None:
            silence.is_broken()
            answer.listen(piece)

        generation = cloud.generate(request, silence.limit, listen)
        if generation.outcome is not Outcome.TIMEOUT:
            return generation
        if deadline.is_canceled:
            return cut_short(generation, CanceledError('canceled on request'))
        if deadline.is_over:
            return generation
        raise ModelUnavailableError(f'expected text within {patience_s:.2f} s, got none')


def without_ids(request: GenerationRequest) -> GenerationRequest:
    """The request for an engine whose tokenizer may be another one than that which made the ids."""
    return replace(request, messages=tuple(replace(message, token_ids=()) for message in request.messages))


class _Silence:
    """A clock of the seconds since the cloud last said something, which jumps ahead when the caller's time is over."""

    def __init__(self, deadline: Deadline, patience_s: float, clock: Callable[[], float]) -> None:
        self._deadline = deadline
        self._clock = clock
        self._since_s = clock()
        self._is_limiting = False
        self.limit = Deadline(patience_s, self._silent_s)
        self._is_limiting = True

    def is_broken(self) -> None:
        """Something was said; too late changes nothing."""
        if not self.limit.is_over:
            self._since_s = self._clock()

    def _silent_s(self) -> float:
        if not self._is_limiting:
            return 0.0
        return OVER_S if self._deadline.is_over else self._clock() - self._since_s


class _Answer:
    """One answer over its attempts: what the caller was told, and how the next side is asked to go on."""

    def __init__(self, asked: GenerationRequest, on_text: TokenListener, clock: Callable[[], float]) -> None:
        self.asked = asked
        self._on_text = on_text
        self._clock = clock
        self._called_at_s = clock()
        self._attempt_at_s = self._called_at_s
        self._ttft_s = 0.0
        self._is_held = bool(asked.json_schema)  # nothing is told before the end
        self._told: list[str] = []
        self._before: list[str] = []  # what was told by sides that were lost

    def request(self) -> GenerationRequest:
        """The caller's, or one that goes on behind what was told."""
        if not self._before:
            return self.asked
        said = Message(role=Role.ASSISTANT, content=''.join(self._before))
        go_on = Message(role=Role.USER, content=GO_ON)
        num_left = max(1, self.asked.max_new_tokens - len(self._before))  # a piece is a token or more
        return replace(self.asked, messages=(*self.asked.messages, said, go_on), max_new_tokens=num_left)

    def listen(self, piece: str) -> None:
        """A piece of the side that is asked now."""
        if self._is_held:
            return
        self._ttft_s = self._ttft_s or self._clock() - self._called_at_s
        self._told.append(piece)
        self._on_text(piece)

    def lose(self) -> None:
        """The side that was asked is lost, what it told stays."""
        self._before = list(self._told)
        self._attempt_at_s = self._clock()

    def finished(self, generation: Generation, losses: list[str]) -> Generation:
        """The last side's answer as the caller's: whole text, times from the call."""
        if self._is_held and generation.text:
            self._on_text(generation.text)
        if not losses:
            return generation
        remark = f'{"; ".join(losses)}; {generation.engine} went on'
        return replace(
            generation,
            text=''.join(self._before) + generation.text,
            token_ids=() if self._before else generation.token_ids,
            usage=self._usage(generation.usage),
            message='; '.join(part for part in (generation.message, remark) if part),
        )

    def _usage(self, usage: Usage) -> Usage:
        before_s = self._attempt_at_s - self._called_at_s
        return replace(
            usage,
            generated_tokens=usage.generated_tokens + len(self._before),
            ttft_s=self._ttft_s or before_s + usage.ttft_s,
            total_s=self._clock() - self._called_at_s,
        )
