"""How an answer gets from the engine's thread to the thread that asked for it, and how that one lets go of it."""

from collections.abc import Iterator
from queue import Empty, SimpleQueue
import threading

from kv_agent_ros.deadline import Deadline
from kv_agent_ros.errors import CanceledError, ModelUnavailableError
from kv_agent_ros.inference.base import FinishReason

HUNG_S = 60.0  # no step of an engine takes so long


class AnswerPipe:
    """Tokens from the engine's thread to the one that asked, and how the answer ended."""

    def __init__(self, deadline: Deadline) -> None:
        self._deadline = deadline
        self._pieces: SimpleQueue[list[int] | FinishReason | Exception] = SimpleQueue()
        self._abandoned = threading.Event()
        self._is_ended = False
        self.finish_reason = FinishReason.ERROR  # until the end

    def put(self, tokens: list[int]) -> None:
        """The next tokens of the answer."""
        self._pieces.put(tokens)

    def end(self, how: FinishReason | Exception) -> None:
        """No more tokens."""
        self._pieces.put(how)

    def check(self) -> None:
        """Raise CanceledError or DeadlineError when the work must end."""
        if self._abandoned.is_set():
            raise CanceledError('nobody listens any more')
        self._deadline.check()

    def abandon(self) -> None:
        """Ask the engine to let go, and wait until it has."""
        self._abandoned.set()
        while not self._is_ended:
            self._next()

    def tokens(self) -> Iterator[list[int]]:
        """The answer as it comes, nothing after a cancel; raises what ended it, if not a `finish_reason`."""
        while isinstance(piece := self._next(), list):
            if not self._deadline.is_canceled:
                yield piece
        if isinstance(piece, Exception):
            raise piece
        self.finish_reason = piece

    def _next(self) -> list[int] | FinishReason | Exception:
        while True:
            try:
                piece = self._pieces.get(timeout=HUNG_S)
            except Empty:
                if self._deadline.is_over or self._abandoned.is_set():
                    raise ModelUnavailableError(
                        f'engine: expected it to let go of a request within {HUNG_S:.0f} s, got nothing; start it anew'
                    ) from None
            else:
                self._is_ended = not isinstance(piece, list)
                return piece
