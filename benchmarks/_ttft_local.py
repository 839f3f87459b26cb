"""The local engine for benchmarks/ttft: a cold prompt, its head again from memory and from disk, the bare network.

Every repetition has a text of its own, so nothing is warm by chance.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
import random
import time

import numpy as np

from kv_agent_ros.deadline import Deadline
from kv_agent_ros.inference.base import GenerationRequest, Message, Role, Usage
from kv_agent_ros.inference.local import LocalBackend
from kv_agent_ros.inference.local_llama import KVBuffer
from kv_agent_ros.inference.local_model import LocalModel
from kv_agent_ros.inference.local_reuse import KVReuse
from kv_agent_ros.inference.local_run import CHUNK_TOKENS
from kv_agent_ros.kvcache.block import SessionKey, Tier, TokenArray
from kv_agent_ros.kvcache.dram_tier import DramTier
from kv_agent_ros.kvcache.eviction import SessionLruPolicy
from kv_agent_ros.kvcache.manager import KVCacheManager
from kv_agent_ros.kvcache.session_index import SessionIndex
from kv_agent_ros.kvcache.storage.disk import DiskStore
from kv_agent_ros.kvcache.storage.host import HostStore, SharedArena
from kv_agent_ros.kvcache.storage.segment import SegmentMap
from kv_agent_ros.kvcache.storage.tiered import BackingTier

Clock = Callable[[], float]

SESSION = SessionKey(robot_id='bench', session_id='ttft')
BLOCK_TOKENS = 16
CACHED_SHARE = 0.9
TIMEOUT_S = 600.0
DRAM_BYTES = 512 << 20
DISK_BYTES = 2 << 30
PLACES = ('kitchen', 'bedroom', 'hallway', 'office', 'balcony', 'garage', 'pantry')
QUESTIONS = (
    'What is a robot?',
    'Tell me how to make tea.',
    'Write a short story about a cup.',
    'Why is the sky blue?',
)
ANSWER_TOKENS = 40
THINGS = ('cup', 'plate', 'book', 'bottle', 'towel', 'lamp', 'spoon', 'phone')


@dataclass(frozen=True, kw_only=True, slots=True)
class Sample:
    """One repetition at one length; seconds."""

    cold_s: float
    dram_s: float
    disk_s: float
    bare_cold_s: float
    bare_warm_s: float
    dram_load_s: float
    disk_load_s: float


@contextmanager
def engine(
    model: LocalModel, directory: Path, dtype: str, clock: Clock
) -> Iterator[tuple[LocalBackend, KVCacheManager]]:
    """A local engine over a cache whose disk tier is `directory`."""
    sessions = SessionIndex()
    store = DiskStore.open(directory, DISK_BYTES)
    with KVCacheManager(
        dram=DramTier(store=HostStore(SharedArena.create(DRAM_BYTES)), policy=SessionLruPolicy(sessions.is_referenced)),
        sessions=sessions,
        backing=(BackingTier.open(tier=Tier.SSD, store=store),),
    ) as manager:
        namespace = model.namespace(BLOCK_TOKENS, dtype)
        backend = LocalBackend(model=model, cache=manager, segments=SegmentMap(), namespace=namespace, clock=clock)
        with closing(backend):
            yield backend, manager


class Prompts:
    """Prompts of a wanted length in tokens: a head that can be cached and a tail that is always another."""

    def __init__(self, model: LocalModel, seed: int) -> None:
        self._chat = model.chat
        self._random = random.Random(seed)

    def head(self, num_tokens: int) -> Message:
        """A system message that renders to about `num_tokens`."""
        return self._message(Role.SYSTEM, num_tokens)

    def tail(self, num_tokens: int) -> Message:
        """A user message that renders to about `num_tokens`, the question to the assistant included."""
        return self._message(Role.USER, num_tokens - len(self._chat.prompt([])))

    def pair(self, num_tokens: int) -> tuple[list[int], list[int]]:
        """The tokens of two prompts with one head and different tails."""
        num_head = num_head_tokens(num_tokens)
        head = self.head(num_head)
        first, second = (self._chat.prompt((head, self.tail(num_tokens - num_head))).tolist() for _ in range(2))
        return first, second

    def _message(self, role: Role, num_tokens: int) -> Message:
        words: list[str] = []
        frame = len(self._chat.prompt([]))
        while len(self._chat.prompt([self._of(role, words)])) - frame < num_tokens:
            words += self._sentence()
        while len(words) > 1 and len(self._chat.prompt([self._of(role, words)])) - frame > num_tokens:
            words.pop()
        return self._of(role, words)

    def _of(self, role: Role, words: list[str]) -> Message:
        return Message(role=role, content=' '.join(words))

    def _sentence(self) -> list[str]:
        thing, place = self._random.choice(THINGS), self._random.choice(PLACES)
        return f'The {thing} {self._random.randrange(1000)} is in the {place} {self._random.randrange(1000)}.'.split()


def num_head_tokens(num_tokens: int) -> int:
    """How many of a prompt's tokens are its head, in whole blocks."""
    return int(num_tokens * CACHED_SHARE) // BLOCK_TOKENS * BLOCK_TOKENS


def measure(model: LocalModel, prompts: Prompts, num_tokens: int, directory: Path, clock: Clock) -> Sample:
    """One repetition: cold, the same head from memory, a restart, the same head from disk."""
    num_head = num_head_tokens(num_tokens)
    head = prompts.head(num_head)
    tails = [prompts.tail(num_tokens - num_head) for _ in range(3)]
    buffer = KVBuffer(model.llama.config)
    buffer.ensure(num_tokens + 2 * BLOCK_TOKENS, 0)
    buffer.values.zero_()  # pages of the buffer are touched, as they are in an engine that runs
    tokens = model.chat.prompt((head, tails[1]))
    with engine(model, directory, 'float32', clock) as (backend, manager):
        settle(backend, manager, prompts)
        cold, _ = first_token(backend, (head, tails[0]))
        manager.flush(TIMEOUT_S)
        bare_cold_s = prefill_s(model, tokens, buffer, 0, clock)
        dram, dram_load_s = first_token(backend, (head, tails[1]))
        bare_warm_s = prefill_s(model, tokens, buffer, dram.cached_tokens, clock)
        manager.flush(TIMEOUT_S)
    with engine(model, directory, 'float32', clock) as (backend, manager):
        settle(backend, manager, prompts)
        disk, disk_load_s = first_token(backend, (head, tails[2]))
    assert cold.cached_tokens == 0
    assert dram.cached_tokens == disk.cached_tokens > 0
    return Sample(
        cold_s=cold.ttft_s,
        dram_s=dram.ttft_s,
        disk_s=disk.ttft_s,
        bare_cold_s=bare_cold_s,
        bare_warm_s=bare_warm_s,
        dram_load_s=dram_load_s,
        disk_load_s=disk_load_s,
    )


def settle(backend: LocalBackend, manager: KVCacheManager, prompts: Prompts) -> None:
    """The first request of a process pays for its libraries; that is not what is measured here."""
    first_token(backend, (prompts.head(300),))
    manager.flush(TIMEOUT_S)


def first_token(backend: LocalBackend, messages: tuple[Message, ...]) -> tuple[Usage, float]:
    """The usage of a one-token answer, and the seconds that fetching its cached blocks took."""
    load_s = backend.stats().load_s
    request = GenerationRequest(session=SESSION, messages=messages, max_new_tokens=1)
    usage = backend.generate(request, Deadline(TIMEOUT_S)).usage
    return usage, backend.stats().load_s - load_s


def prefill_s(model: LocalModel, tokens: TokenArray, buffer: KVBuffer, num_cached: int, clock: Clock) -> float:
    """Seconds the bare network needs for the tokens after `num_cached`, in the engine's chunks."""
    started_s = clock()
    prefill_logits(model, tokens, buffer, num_cached)
    return clock() - started_s


def prefill_logits(model: LocalModel, tokens: TokenArray, buffer: KVBuffer, start: int) -> np.ndarray:
    """Logits of the last token after a prefill from `start`."""
    logits = np.empty(0, dtype=np.float32)
    for first in range(start, len(tokens), CHUNK_TOKENS):
        logits = model.llama.forward(tokens[first : first + CHUNK_TOKENS], buffer, first)
    return logits


def logit_difference(model: LocalModel, tokens: TokenArray, num_head: int, dtype: str, directory: Path) -> float:
    """The largest difference of a logit after reuse of `num_head` tokens stored as `dtype` from a cold prefill."""
    cold, warm = KVBuffer(model.llama.config), KVBuffer(model.llama.config)
    expected = prefill_logits(model, tokens, cold, 0)
    with engine(model, directory / dtype, dtype, time.monotonic) as (_, manager):
        reuse = KVReuse(cache=manager, segments=SegmentMap(), namespace=model.namespace(BLOCK_TOKENS, dtype))
        reuse.store(SESSION, tokens[:num_head], cold)
        num_cached = reuse.fetch(SESSION, tokens, warm)
    return float(np.abs(prefill_logits(model, tokens, warm, num_cached) - expected).max())


def pass_times(
    model: LocalModel, first: Sequence[int], second: Sequence[int], clock: Clock
) -> tuple[float, float, float]:
    """Seconds of the bare network: a cold prompt, another with its head, and one token after that."""
    cold, warm = np.array(first, np.int32), np.array(second, np.int32)
    num_head = num_head_tokens(len(warm))
    buffer = KVBuffer(model.llama.config)
    buffer.ensure(len(cold) + 2 * BLOCK_TOKENS, 0)
    buffer.values.zero_()
    times = prefill_s(model, cold, buffer, 0, clock), prefill_s(model, warm, buffer, num_head, clock)
    begun_s = clock()
    for position in range(len(warm), len(warm) + BLOCK_TOKENS):
        model.llama.forward(warm[-1:], buffer, position)
    return *times, (clock() - begun_s) / BLOCK_TOKENS


def agreement(model: LocalModel, reference: LocalModel) -> tuple[float, int]:
    """How often the model would say next what the reference says, over the reference's own greedy answers."""
    num_same = num_compared = 0
    for question in QUESTIONS:
        tokens = reference.chat.prompt((Message(role=Role.USER, content=question),))
        buffers = KVBuffer(model.llama.config), KVBuffer(reference.llama.config)
        start = 0
        for _ in range(ANSWER_TOKENS):
            guess, said = (
                int(each.llama.forward(tokens[start:], buffer, start).argmax())
                for each, buffer in zip((model, reference), buffers, strict=True)
            )
            num_same, num_compared = num_same + (guess == said), num_compared + 1
            if said in reference.stop_ids:
                break
            start, tokens = len(tokens), np.append(tokens, np.int32(said))
    return num_same / num_compared, num_compared
