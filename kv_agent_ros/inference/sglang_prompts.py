"""Whether this machine can make the token ids of a prompt just as an SGLang server does, and then sends those.

Ids keep what a model has generated as it was: text that is tokenised again may split differently, and the reusable
prefix would end there. They also keep control tokens that stand in a message's text from having any effect.
"""

from collections.abc import Callable
from pathlib import Path

import httpx

from kv_agent_ros.deadline import Deadline
from kv_agent_ros.errors import ModelUnavailableError
from kv_agent_ros.inference.base import GenerationRequest, Message, Role
from kv_agent_ros.inference.chat_format import ChatTokenizer, chat_format_of, read_tokenizer
from kv_agent_ros.inference.http_deadline import run_within
from kv_agent_ros.inference.openai_http import HttpSettings
from kv_agent_ros.inference.openai_wire import JsonObject, parse_object
from kv_agent_ros.inference.sglang_server import SglangServer, post_sglang

PromptFields = Callable[[GenerationRequest], JsonObject]

SAMPLE = (
    Message(role=Role.SYSTEM, content='Plan for a robot.\nAnswer in JSON.'),
    Message(role=Role.USER, content='Go to the kitchen, 去厨房。 '),
    Message(role=Role.ASSISTANT, content='{"steps": [1, 23]}'),
    Message(role=Role.USER, content=' And back?'),
)


def prompt_as_text(request: GenerationRequest) -> JsonObject:
    """A PromptFields that adds nothing: the server renders and tokenises the messages."""
    return {}


def prompt_fields(settings: HttpSettings, server: SglangServer, deadline: Deadline) -> PromptFields:
    """Ids where the server's tokenizer lies on this machine and ours renders a sample as the server does; else text.

    Raises CanceledError or DeadlineError.
    """
    path = Path(server.tokenizer_path) / 'tokenizer.json'
    if not server.tokenizer_path or not path.is_file():
        return prompt_as_text
    try:
        tokenizer = read_tokenizer(path)
        chat = ChatTokenizer(tokenizer, chat_format_of(tokenizer))
        theirs = run_within(deadline, _rendered(settings))
    except (ModelUnavailableError, httpx.HTTPError):
        return prompt_as_text
    if theirs != chat.prompt(SAMPLE).tolist():
        return prompt_as_text

    def fields(request: GenerationRequest) -> JsonObject:
        return {'input_ids': chat.prompt(request.messages).tolist()}

    return fields


async def _rendered(settings: HttpSettings) -> object:
    messages = [{'role': message.role.value, 'content': message.content} for message in SAMPLE]
    response = await post_sglang(settings, '/v1/tokenize', {'messages': messages})
    return parse_object(response.text).get('tokens')
