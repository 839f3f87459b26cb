"""Turns tokens into pieces of text as they come; a character that is split over tokens waits for its last one."""

from collections.abc import Sequence

from tokenizers import Tokenizer
from tokenizers.decoders import DecodeStream

from kv_agent_ros.inference.base import TokenListener


class TextStream:
    """One answer's tokens and text; the listener's pieces always add up to `text`."""

    def __init__(self, tokenizer: Tokenizer, listener: TokenListener) -> None:
        self._tokenizer = tokenizer
        self._listener = listener
        self._decoder = DecodeStream(skip_special_tokens=True)
        self.token_ids: list[int] = []
        self.text = ''

    def push(self, tokens: Sequence[int]) -> None:
        """Append tokens and tell the listener what became readable."""
        self.token_ids.extend(tokens)
        self._emit(''.join(self._decoder.step(self._tokenizer, token) or '' for token in tokens))

    def finish(self) -> None:
        """Tell the listener what is left, a broken last character as U+FFFD."""
        whole = self._tokenizer.decode(self.token_ids, skip_special_tokens=True)
        self._emit(whole[len(self.text) :])

    def _emit(self, piece: str) -> None:
        if piece:
            self.text += piece
            self._listener(piece)
