"""What one of two engines has shown so far: how fast it is, and which sessions' prompts it has seen last.

Counts in characters, since the two have tokenizers of their own. What was never measured is believed to take no time.
"""

from collections import OrderedDict
from collections.abc import Sequence
import threading

from kv_agent_ros.errors import Outcome
from kv_agent_ros.inference.base import Generation, GenerationRequest, Message
from kv_agent_ros.kvcache.block import SessionKey

MEMORY = 0.8  # share of the older measurements that the next one leaves
MAX_SESSIONS = 256


class SideBooks:
    """Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._prefill = _Rate()  # seconds for each character that was computed
        self._decode = _Rate()  # seconds for each token that was generated
        self._answer = _Rate()  # tokens for each answer
        self._prompts: OrderedDict[SessionKey, tuple[Message, ...]] = OrderedDict()

    def expected_s(self, request: GenerationRequest) -> float:
        """How long the whole answer is likely to take there."""
        num_chars = prompt_chars(request.messages) - self.warm_chars(request)
        with self._lock:
            num_tokens = min(self._answer.value or request.max_new_tokens, request.max_new_tokens)
            return self._prefill.value * num_chars + self._decode.value * num_tokens

    def warm_chars(self, request: GenerationRequest) -> int:
        """Characters from the first on that this session's last prompt there shares with the request."""
        with self._lock:
            seen = self._prompts.get(request.session, ())
        num_shared = next(
            (number for number, pair in enumerate(zip(seen, request.messages, strict=False)) if pair[0] != pair[1]),
            min(len(seen), len(request.messages)),
        )
        return prompt_chars(request.messages[:num_shared])

    def enter(self, request: GenerationRequest, generation: Generation) -> None:
        """Learn from an answer."""
        usage = generation.usage
        with self._lock:
            self._prompts[request.session] = request.messages
            self._prompts.move_to_end(request.session)
            while len(self._prompts) > MAX_SESSIONS:
                self._prompts.popitem(last=False)
            if generation.outcome is not Outcome.SUCCESS:
                return
            computed_share = usage.computed_tokens / max(1, usage.prompt_tokens)
            self._prefill.add(usage.ttft_s, max(1.0, computed_share * prompt_chars(request.messages)))
            self._decode.add(usage.total_s - usage.ttft_s, max(1, usage.generated_tokens))
            self._answer.add(usage.generated_tokens, 1)

    def forget(self) -> None:
        """The engine was lost, and what it had cached may be lost with it."""
        with self._lock:
            self._prompts.clear()


class _Rate:
    """A ratio of two sums that forget."""

    def __init__(self) -> None:
        self._top = 0.0
        self._bottom = 0.0

    @property
    def value(self) -> float:
        return self._top / self._bottom if self._bottom else 0.0

    def add(self, top: float, bottom: float) -> None:
        self._top = MEMORY * self._top + top
        self._bottom = MEMORY * self._bottom + bottom


def prompt_chars(messages: Sequence[Message]) -> int:
    """Characters of a prompt."""
    return sum(len(message.content) for message in messages)
