"""Real attention for benchmarks: the bundled model over this repository's own texts and over a planning session."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from kv_agent_ros.agent.language import read_instruction
from kv_agent_ros.agent.prompt import head, plan_text, plan_turn
from kv_agent_ros.agent.rule_planner import draft_plan
from kv_agent_ros.inference.base import Message, Role
from kv_agent_ros.inference.local_llama import KVBuffer
from kv_agent_ros.inference.local_model import LocalModel
from kv_agent_ros.inference.local_run import CHUNK_TOKENS
from kv_agent_ros.kvcache.block import TokenArray
from kv_agent_ros.kvcache.importance import FloatArray
from kv_agent_ros.robot.skills import HOUSEHOLD_SKILLS
from kv_agent_ros.world.fake import example_world

ROOT = Path(__file__).resolve().parent.parent
DOCUMENTS = ('README.md', 'docs/architecture.md', 'docs/nodes.md', 'docs/deploy_on_a_robot.md')
TASKS = (
    'Check whether the cup in the kitchen is full, pour half of it out if it is, then return to the dock.',
    'Bring the bowl from the kitchen counter to the table.',
    'Go to the living room and look for the cup.',
    'Return to the dock.',
    'Find the bowl, inspect it and bring it to the kitchen counter.',
    'Check whether the bowl on the table is full.',
    'Bring the cup to the table, then return to the dock.',
    'Go to the kitchen.',
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Text:
    """A context and what comes after it."""

    name: str
    context: TokenArray
    future: TokenArray  # of a document: its next words; of a session: what the model answers, greedily


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Recording:
    """Everything that attention was computed from, context and future together."""

    queries: FloatArray  # (num_layers, num_heads, num_tokens, head_dim), rotated
    keys: FloatArray  # (num_layers, num_kv_heads, num_tokens, head_dim), rotated
    values: FloatArray  # (num_layers, num_kv_heads, num_tokens, head_dim)
    num_context: int


def texts(model: LocalModel, num_context: int, num_future: int, num_texts: int) -> Iterator[Text]:
    """Documents and planning sessions in turn, each `num_context` tokens long."""
    makers = [lambda path=path: document(model, path, num_context, num_future) for path in DOCUMENTS]
    makers += [lambda first=first: planning_session(model, first, num_context, num_future) for first in (0, 3)]
    order = (0, 4, 1, 5, 2, 3)
    for index in order[:num_texts]:
        yield makers[index]()


def document(model: LocalModel, path: str, num_context: int, num_future: int) -> Text:
    """The head of a file of this repository, and its next tokens."""
    text = (ROOT / path).read_text(encoding='utf-8')
    tokens = np.array(model.tokenizer.encode(text, add_special_tokens=False).ids[: num_context + num_future], np.int32)
    if len(tokens) < num_context + num_future:
        raise SystemExit(f'{path}: expected {num_context + num_future} tokens, got {len(tokens)}; choose --context')
    return Text(name=path, context=tokens[:num_context], future=tokens[num_context:])


def planning_session(model: LocalModel, first_task: int, num_context: int, num_future: int) -> Text:
    """Turns of tasks and plans that end with the question for a plan, and the model's own answer.

    As many old turns as make the session at least `num_context` tokens long.
    """
    world = example_world('robot1', 1.0)
    messages = [head(HOUSEHOLD_SKILLS, world.map)]
    for number in range(first_task, first_task + 100):
        task = TASKS[number % len(TASKS)]
        reading = read_instruction(task, world)
        messages.append(plan_turn(task, reading.intents, (), HOUSEHOLD_SKILLS, world, 'robot1'))
        context = model.chat.prompt(messages)
        if len(context) >= num_context:
            break
        plan = draft_plan(reading, world, '').plan
        answer = '{"plan":[]}' if plan is None else plan_text(plan)
        messages.append(Message(role=Role.ASSISTANT, content=answer))
    future = generate(model, context, num_future)
    return Text(name=f'planning from {first_task}', context=context, future=future)


def generate(model: LocalModel, context: TokenArray, num_tokens: int) -> TokenArray:
    """The model's greedy answer, without a look at its end."""
    buffer = KVBuffer(model.llama.config)
    logits = prefill(model, context, buffer)
    answer: list[int] = []
    while len(answer) < num_tokens:
        answer.append(int(logits.argmax()))
        logits = model.llama.forward(np.array(answer[-1:], np.int32), buffer, len(context) + len(answer) - 1)
    return np.array(answer, np.int32)


def prefill(model: LocalModel, tokens: TokenArray, buffer: KVBuffer) -> FloatArray:
    """Fill an empty buffer in the engine's chunks; the logits of the last token."""
    logits = np.empty(0, dtype=np.float32)
    for start in range(0, len(tokens), CHUNK_TOKENS):
        logits = model.llama.forward(tokens[start : start + CHUNK_TOKENS], buffer, start)
    return logits


def record(model: LocalModel, text: Text) -> Recording:
    """Run the model over context and future and keep its queries, keys and values."""
    tokens = np.concatenate((text.context, text.future))
    config = model.llama.config
    queries = np.empty((config.num_layers, config.num_heads, len(tokens), config.head_dim), dtype=np.float32)
    buffer = KVBuffer(config)
    for start in range(0, len(tokens), CHUNK_TOKENS):
        rows = slice(start, start + CHUNK_TOKENS)

        def keep(layer: int, asked: torch.Tensor, rows: slice = rows) -> None:
            queries[layer, :, rows] = asked.numpy()

        model.llama.forward(tokens[rows], buffer, start, keep)
    keys, values = buffer.values[:, :, :, : len(tokens)].numpy().copy()
    return Recording(queries=queries, keys=keys, values=values, num_context=len(text.context))
