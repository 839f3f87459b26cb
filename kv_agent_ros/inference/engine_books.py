"""Adds up what an engine has done; the one owner of its EngineStats."""

from dataclasses import replace
import threading

from kv_agent_ros.errors import Outcome
from kv_agent_ros.inference.base import EngineStats, Generation


class EngineBooks:
    """Thread-safe."""

    def __init__(self, *, engine: str, model: str) -> None:
        self._lock = threading.Lock()
        self._stats = EngineStats(engine=engine, model=model)

    @property
    def stats(self) -> EngineStats:
        """The books now."""
        with self._lock:
            return self._stats

    def enter(self, generation: Generation, *, prefill_s: float, load_s: float) -> Generation:
        """Book an answer with the time its prefill and its cached blocks took; returns it."""
        usage = generation.usage
        with self._lock:
            books = self._stats
            self._stats = replace(
                books,
                num_requests=books.num_requests + 1,
                num_failures=books.num_failures + (generation.outcome is not Outcome.SUCCESS),
                prompt_tokens=books.prompt_tokens + usage.prompt_tokens,
                cached_tokens=books.cached_tokens + usage.cached_tokens,
                generated_tokens=books.generated_tokens + usage.generated_tokens,
                prefill_s=books.prefill_s + prefill_s,
                prefilled_tokens=books.prefilled_tokens + usage.computed_tokens,
                load_s=books.load_s + load_s,
                last_ttft_s=usage.ttft_s,
            )
        return generation

    def enter_failure(self) -> None:
        """Book a request that ended in an exception."""
        with self._lock:
            books = self._stats
            self._stats = replace(books, num_requests=books.num_requests + 1, num_failures=books.num_failures + 1)


def added(first: EngineStats, last: EngineStats) -> EngineStats:
    """The books of two engines as one; what cannot be added is that of `last`."""
    return replace(
        last,
        num_requests=first.num_requests + last.num_requests,
        num_failures=first.num_failures + last.num_failures,
        prompt_tokens=first.prompt_tokens + last.prompt_tokens,
        cached_tokens=first.cached_tokens + last.cached_tokens,
        generated_tokens=first.generated_tokens + last.generated_tokens,
        prefill_s=first.prefill_s + last.prefill_s,
        prefilled_tokens=first.prefilled_tokens + last.prefilled_tokens,
        load_s=first.load_s + last.load_s,
    )
