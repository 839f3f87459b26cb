"""Robots that talk to an engine for some turns, after one long head that all share: the load of benchmarks/throughput.

Every answer has the same number of tokens on all engines, so that tokens per second compare.
"""

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
import sys
import time
from typing import Protocol

import numpy as np
import torch
from transformers import DynamicCache, LlamaForCausalLM

from kv_agent_ros.deadline import Deadline
from kv_agent_ros.inference.base import GenerationRequest, InferenceBackend, Message, Role
from kv_agent_ros.inference.local_model import LocalModel
from kv_agent_ros.kvcache.block import SessionKey, TokenArray

TIMEOUT_S = 900.0
PLACES = ('kitchen', 'bedroom', 'hallway', 'office', 'balcony', 'garage', 'pantry')


@dataclass(frozen=True, kw_only=True, slots=True)
class Load:
    """Who says how much."""

    num_robots: int
    num_turns: int
    new_tokens: int  # of an answer
    head_sentences: int
    kind: str = 'Rule'  # other kinds share no head

    @property
    def head(self) -> Message:
        """What all robots' prompts begin with; a sentence has about 13 tokens."""
        rules = [
            f'{self.kind} {n}: things of the {PLACES[n % 7]} go to shelf {n * 37 % 101}.'
            for n in range(self.head_sentences)
        ]
        return Message(role=Role.SYSTEM, content=' '.join(rules))

    def question(self, robot: int, turn: int) -> Message:
        """What a robot is told in a turn; never twice the same."""
        return Message(
            role=Role.USER, content=f'Robot {robot}, turn {turn}: what is in the {PLACES[(robot + turn) % 7]}?'
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class Answer:
    """One turn's cost."""

    prompt: tuple[int, ...]
    cached_tokens: int
    token_ids: tuple[int, ...]
    text: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Played:
    """All turns of all robots on one engine."""

    wall_s: float
    cpu_s: float  # of this process
    answers: tuple[Answer, ...]

    @property
    def tokens_per_s(self) -> float:
        return sum(len(answer.token_ids) for answer in self.answers) / self.wall_s

    @property
    def tokens_per_cpu_s(self) -> float:
        return sum(len(answer.token_ids) for answer in self.answers) / self.cpu_s

    @property
    def hit_rate(self) -> float:
        return sum(answer.cached_tokens for answer in self.answers) / sum(len(answer.prompt) for answer in self.answers)


class Engine(Protocol):
    """Whatever answers."""

    def answer(self, robot: int, messages: Sequence[Message], new_tokens: int) -> Answer:
        """The answer of a robot's turn, greedy."""
        ...


class BackendEngine:
    """One of our backends."""

    def __init__(self, backend: InferenceBackend, model: LocalModel) -> None:
        self._backend = backend
        self._model = model

    def answer(self, robot: int, messages: Sequence[Message], new_tokens: int) -> Answer:
        session = SessionKey(robot_id=f'robot{robot}', session_id='throughput')
        request = GenerationRequest(session=session, messages=tuple(messages), max_new_tokens=new_tokens)
        generation = self._backend.generate(request, Deadline(TIMEOUT_S))
        return Answer(
            prompt=tuple(self._model.chat.prompt(tuple(messages)).tolist()),
            cached_tokens=generation.usage.cached_tokens,
            token_ids=generation.token_ids,
            text=generation.text,
        )


def load_network(directory: Path) -> LlamaForCausalLM:
    """transformers' own network with the same weights."""
    network = LlamaForCausalLM.from_pretrained(directory, dtype=torch.float32)
    network.generation_config.max_length = None
    return network


class TransformersEngine:
    """transformers' generate, which keeps each robot's DynamicCache from turn to turn."""

    def __init__(self, network: LlamaForCausalLM, model: LocalModel) -> None:
        self._network = network
        self._model = model
        self._held: dict[int, tuple[DynamicCache, TokenArray]] = {}

    @torch.inference_mode()
    def answer(self, robot: int, messages: Sequence[Message], new_tokens: int) -> Answer:
        prompt = self._model.chat.prompt(tuple(messages))
        cache, tokens = self._held.pop(robot, (DynamicCache(), np.empty(0, np.int32)))
        num_cached = num_equal(tokens, prompt[:-1])
        if num_cached < len(tokens):
            cache.crop(num_cached - len(tokens))  # so many are taken away
        ids = torch.from_numpy(prompt.astype(np.int64))[None]
        said = self._network.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            cache=cache,
            max_new_tokens=new_tokens,
            do_sample=False,
            eos_token_id=sorted(self._model.stop_ids),
            pad_token_id=0,
        )[0].numpy()
        self._held[robot] = (cache, said[: cache.get_seq_length()].astype(np.int32))
        answer = [token for token in said[len(prompt) :].tolist() if token not in self._model.stop_ids]
        text = self._model.tokenizer.decode(answer, skip_special_tokens=True)
        return Answer(prompt=tuple(prompt.tolist()), cached_tokens=num_cached, token_ids=tuple(answer), text=text)


def play_together(engine: Engine, load: Load) -> Played:
    """Each robot on a thread of its own."""
    return _timed(lambda pool: list(pool.map(lambda robot: _talk(engine, load, robot), range(load.num_robots))), load)


def play_in_turn(engine: Engine, load: Load) -> Played:
    """One request at a time, turn by turn as the robots' requests come."""

    def rounds(pool: ThreadPoolExecutor) -> list[list[Answer]]:
        talks = [_Talk(load, robot) for robot in range(load.num_robots)]
        for _ in range(load.num_turns):
            for talk in talks:
                talk.go_on(engine)
        return [talk.answers for talk in talks]

    return _timed(rounds, load)


class _Talk:
    """A robot's conversation so far."""

    def __init__(self, load: Load, robot: int) -> None:
        self._load = load
        self._robot = robot
        self._messages = [load.head]
        self.answers: list[Answer] = []

    def go_on(self, engine: Engine) -> None:
        self._messages.append(self._load.question(self._robot, len(self.answers)))
        answer = engine.answer(self._robot, self._messages, self._load.new_tokens)
        self._messages.append(Message(role=Role.ASSISTANT, content=answer.text, token_ids=answer.token_ids))
        self.answers.append(answer)
        print('.', end='', file=sys.stderr, flush=True)


def _talk(engine: Engine, load: Load, robot: int) -> list[Answer]:
    talk = _Talk(load, robot)
    for _ in range(load.num_turns):
        talk.go_on(engine)
    return talk.answers


def _timed(play: Callable[[ThreadPoolExecutor], list[list[Answer]]], load: Load) -> Played:
    with ThreadPoolExecutor(load.num_robots) as pool:
        wall_s, cpu_s = time.monotonic(), time.process_time()
        answers = play(pool)
        wall_s, cpu_s = time.monotonic() - wall_s, time.process_time() - cpu_s
    print(f' {wall_s:.1f} s', file=sys.stderr, flush=True)
    return Played(wall_s=wall_s, cpu_s=cpu_s, answers=tuple(answer for said in answers for answer in said))


def num_equal(tokens: Sequence[int] | TokenArray, others: Sequence[int] | TokenArray) -> int:
    """With how many equal tokens both begin."""
    length = min(len(tokens), len(others))
    differing = np.flatnonzero(np.asarray(tokens[:length]) != np.asarray(others[:length]))
    return int(differing[0]) if len(differing) else length


def reachable_hit_rate(answers: Sequence[Answer]) -> float:
    """The share of prompt tokens that some earlier turn has seen, token by token, in this order of turns."""
    num_seen, seen = 0, [(answer.prompt + answer.token_ids) for answer in answers]
    for number, answer in enumerate(answers):
        num_seen += max((num_equal(known, answer.prompt[:-1]) for known in seen[:number]), default=0)
    return num_seen / sum(len(answer.prompt) for answer in answers)
