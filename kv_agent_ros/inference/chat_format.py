"""Chat messages to token ids, message by message, so that a longer conversation only ever adds tokens at the end.

Text of a message never becomes a control token, whatever it says. An assistant message with token ids is used verbatim:
tokenising generated text again may split it differently and would end the reusable prefix there.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import numpy as np
from tokenizers import Tokenizer

from kv_agent_ros.errors import ModelUnavailableError
from kv_agent_ros.inference.base import Message, Role
from kv_agent_ros.kvcache.block import TokenArray

NUM_REMEMBERED_MESSAGES = 4096


@dataclass(frozen=True, kw_only=True, slots=True)
class ChatFormat:
    """A message is opening, role, role_end, after_role, content, closing, after_closing.

    opening, role_end and closing are control tokens, the others are text.
    """

    name: str
    start_of_prompt: tuple[str, ...]
    opening: str
    role_end: tuple[str, ...]
    after_role: str
    closing: str
    after_closing: str


CHATML = ChatFormat(
    name='chatml',
    start_of_prompt=(),
    opening='<|im_start|>',
    role_end=(),
    after_role='\n',
    closing='<|im_end|>',
    after_closing='\n',
)
LLAMA3 = ChatFormat(
    name='llama3',
    start_of_prompt=('<|begin_of_text|>',),
    opening='<|start_header_id|>',
    role_end=('<|end_header_id|>',),
    after_role='\n\n',
    closing='<|eot_id|>',
    after_closing='',
)
CHAT_FORMATS = (CHATML, LLAMA3)


def read_tokenizer(path: Path) -> Tokenizer:
    """The tokenizer of a tokenizer.json; raises ModelUnavailableError when it is none."""
    if not path.is_file():
        raise ModelUnavailableError(f'{path}: expected a fast tokenizer, got none; save one there')
    try:
        return Tokenizer.from_file(str(path))
    except Exception as error:  # tokenizers raises nothing narrower
        raise ModelUnavailableError(f'{path}: expected a fast tokenizer, got {error}; fetch it again') from error


def chat_format_of(tokenizer: Tokenizer) -> ChatFormat:
    """The format whose control tokens the tokenizer has; raises ModelUnavailableError when there is none."""
    for chat_format in CHAT_FORMATS:
        controls = (*chat_format.start_of_prompt, chat_format.opening, *chat_format.role_end, chat_format.closing)
        if all(tokenizer.token_to_id(control) is not None for control in controls):
            return chat_format
    names = ', '.join(chat_format.name for chat_format in CHAT_FORMATS)
    raise ModelUnavailableError(f'tokenizer: expected the control tokens of {names}, got neither; use a chat model')


class ChatTokenizer:
    """Renders conversations for one tokenizer. Thread-safe."""

    def __init__(self, tokenizer: Tokenizer, chat_format: ChatFormat) -> None:
        tokenizer.encode_special_tokens = True  # '<|im_end|>' inside a message is plain text
        self._tokenizer = tokenizer
        self._format = chat_format
        self.end_id = self._control(chat_format.closing)
        self._tail = (self.end_id, *self._encode(chat_format.after_closing))
        self._message_ids = lru_cache(maxsize=NUM_REMEMBERED_MESSAGES)(self._render)
        self._head = {role: self._render_head(role) for role in Role}

    def prompt(self, messages: Sequence[Message]) -> TokenArray:
        """The prompt that asks for the next assistant message."""
        ids = [self._control(control) for control in self._format.start_of_prompt]
        for message in messages:
            ids.extend(self._message_ids(message))
        ids.extend(self._head[Role.ASSISTANT])
        return np.array(ids, dtype=np.int32)

    def _render(self, message: Message) -> tuple[int, ...]:
        is_verbatim = message.role is Role.ASSISTANT and message.token_ids
        body = message.token_ids if is_verbatim else self._encode(message.content)
        if body and body[-1] == self.end_id:
            body = body[:-1]
        return (*self._head[message.role], *body, *self._tail)

    def _render_head(self, role: Role) -> tuple[int, ...]:
        """Role and line break are tokenised apart from the content, so that no merge crosses the border."""
        form = self._format
        if not form.role_end:
            return (self._control(form.opening), *self._encode(role.value + form.after_role))
        role_end = (self._control(control) for control in form.role_end)
        return (self._control(form.opening), *self._encode(role.value), *role_end, *self._encode(form.after_role))

    def _control(self, text: str) -> int:
        token = self._tokenizer.token_to_id(text)
        if token is None:
            raise ModelUnavailableError(f'tokenizer: expected the control token {text!r}, got none; use a chat model')
        return token

    def _encode(self, text: str) -> tuple[int, ...]:
        return tuple(self._tokenizer.encode(text, add_special_tokens=False).ids)
