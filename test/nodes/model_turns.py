"""How many tokens of a prompt robots of one home share, counted with the model's own tokenizer."""

from pathlib import Path

import numpy as np
from tokenizers import Tokenizer

from kv_agent_ros.agent.prompt import head
from kv_agent_ros.build.home import load_world
from kv_agent_ros.config import InferenceConfig, expand
from kv_agent_ros.inference.base import Message, Role
from kv_agent_ros.inference.chat_format import ChatTokenizer, chat_format_of
from kv_agent_ros.robot.skills import HOUSEHOLD_SKILLS


def shared_tokens(robot: str, other: str) -> int:
    """Tokens from the start until the first turns of two robots part: the head, and the turn as far as the name."""
    tokenizer = Tokenizer.from_file(str(_tokenizer_file()))
    chat = ChatTokenizer(tokenizer, chat_format_of(tokenizer))
    system = head(HOUSEHOLD_SKILLS, load_world('home'))
    one, two = (
        chat.prompt([system, Message(role=Role.USER, content=f'robot: {name}\ntask')]) for name in (robot, other)
    )
    length = min(len(one), len(two))
    return int(np.argmin(np.append(one[:length] == two[:length], False)))


def _tokenizer_file() -> Path:
    """That of the bundled model, which the engine has converted when it serves."""
    models = expand(InferenceConfig().cache_dir) / 'models'
    return max(models.glob('*/tokenizer.json'), key=lambda path: path.stat().st_mtime)
