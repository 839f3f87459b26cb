"""Time to the first token against prompt length: cold, with 90 % of the prompt in memory, with 90 % on disk.

Real tokens through the local engine and the KV cache. The limit is the bare network's prefill of the same new tokens
with everything before them already in its buffer. Every repetition has a text of its own, so nothing is warm by chance.
"""

import argparse
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
import random
import statistics
import sys
import tempfile
import time

from matplotlib.axes import Axes
import numpy as np
import torch

from benchmarks._reporting import Row, print_json, print_table, save_plot
from kv_agent_ros.config import CACHE_DIR, expand
from kv_agent_ros.deadline import Deadline
from kv_agent_ros.inference.base import GenerationRequest, Message, Role, Usage
from kv_agent_ros.inference.local import LocalBackend
from kv_agent_ros.inference.local_llama import KVBuffer
from kv_agent_ros.inference.local_model import BUNDLED, LocalModel, load_local_model
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
CLOCKS: dict[str, Clock] = {'wall': time.monotonic, 'cpu': time.process_time}  # the engine has a thread of its own

SESSION = SessionKey(robot_id='bench', session_id='ttft')
BLOCK_TOKENS = 16
CACHED_SHARE = 0.9
TIMEOUT_S = 600.0
DRAM_BYTES = 512 << 20
DISK_BYTES = 2 << 30
PLACES = ('kitchen', 'bedroom', 'hallway', 'office', 'balcony', 'garage', 'pantry')
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
        yield LocalBackend(model=model, cache=manager, segments=SegmentMap(), namespace=namespace, clock=clock), manager


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


def measure(model: LocalModel, prompts: Prompts, num_tokens: int, directory: Path, clock: Clock) -> Sample:
    """One repetition: cold, the same head from memory, a restart, the same head from disk."""
    num_head = int(num_tokens * CACHED_SHARE) // BLOCK_TOKENS * BLOCK_TOKENS
    head = prompts.head(num_head)
    tails = [prompts.tail(num_tokens - num_head) for _ in range(3)]
    with engine(model, directory, 'float32', clock) as (backend, manager):
        settle(backend, manager, prompts)
        cold, _ = first_token(backend, (head, tails[0]))
        manager.flush(TIMEOUT_S)
        dram, dram_load_s = first_token(backend, (head, tails[1]))
        manager.flush(TIMEOUT_S)
    with engine(model, directory, 'float32', clock) as (backend, manager):
        settle(backend, manager, prompts)
        disk, disk_load_s = first_token(backend, (head, tails[2]))
    tokens = model.chat.prompt((head, tails[1]))
    assert cold.cached_tokens == 0
    assert dram.cached_tokens == disk.cached_tokens > 0
    buffer = KVBuffer(model.llama.config)
    buffer.ensure(len(tokens) + 1, 0)
    buffer.values.zero_()  # pages of the buffer are touched, as they are in an engine that runs
    return Sample(
        cold_s=cold.ttft_s,
        dram_s=dram.ttft_s,
        disk_s=disk.ttft_s,
        bare_cold_s=prefill_s(model, tokens, buffer, 0, clock),
        bare_warm_s=prefill_s(model, tokens, buffer, dram.cached_tokens, clock),
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
    for start in range(num_cached, len(tokens), CHUNK_TOKENS):
        model.llama.forward(tokens[start : start + CHUNK_TOKENS], buffer, start)
    return clock() - started_s


def rows_of(num_tokens: int, samples: list[Sample]) -> list[Row]:
    """Medians over the repetitions of one length."""

    def median(value: Callable[[Sample], float]) -> float:
        return statistics.median(value(sample) for sample in samples)

    cold, dram, disk = median(lambda s: s.cold_s), median(lambda s: s.dram_s), median(lambda s: s.disk_s)
    bare_cold, bare_warm = median(lambda s: s.bare_cold_s), median(lambda s: s.bare_warm_s)

    def row(name: str, ours: float, peer: float, peer_name: str, limit: float, unit: str = 's') -> Row:
        ratio = peer / ours if ours else float('inf')
        return Row(
            name=f'{name}_{num_tokens}',
            ours=ours,
            peer=peer,
            peer_name=peer_name,
            limit=limit,
            ratio=ratio,
            unit=unit,
            n=len(samples),
        )

    dram_share, disk_share = median(lambda s: s.dram_load_s / s.dram_s), median(lambda s: s.disk_load_s / s.disk_s)
    return [
        row('ttft_cold', cold, bare_cold, 'bare model, all tokens', bare_cold),
        row('ttft_warm_dram', dram, cold, 'cold', bare_warm),
        row('ttft_warm_disk', disk, cold, 'cold', bare_warm),
        row('reuse_share_of_ttft_dram', dram_share, 0.10, 'goal', 0.0, 'fraction'),
        row('reuse_share_of_ttft_disk', disk_share, 0.10, 'goal', 0.0, 'fraction'),
    ]


def logit_rows(model: LocalModel, prompts: Prompts, num_tokens: int, directory: Path) -> list[Row]:
    """Largest difference of a logit after reuse from a cold prefill, by stored precision."""
    rows = []
    tokens = model.chat.prompt((prompts.head(int(num_tokens * CACHED_SHARE)), prompts.tail(num_tokens // 10)))
    for dtype, goal in (('float32', 1e-4), ('float16', 0.05)):
        cold, warm = KVBuffer(model.llama.config), KVBuffer(model.llama.config)
        expected = prefill_logits(model, tokens, cold, 0)
        with engine(model, directory / dtype, dtype, time.monotonic) as (_, manager):
            reuse = KVReuse(cache=manager, segments=SegmentMap(), namespace=model.namespace(BLOCK_TOKENS, dtype))
            reuse.store(SESSION, tokens[: int(num_tokens * CACHED_SHARE)], cold)
            num_cached = reuse.fetch(SESSION, tokens, warm)
        difference = float(np.abs(prefill_logits(model, tokens, warm, num_cached) - expected).max())
        rows.append(
            Row(
                name=f'max_logit_difference_{dtype}_{num_tokens}',
                ours=difference,
                peer=goal,
                peer_name='goal',
                limit=0.0,
                ratio=goal / max(difference, 1e-12),
                unit='logit',
                n=1,
            )
        )
    return rows


def prefill_logits(model: LocalModel, tokens: TokenArray, buffer: KVBuffer, start: int) -> np.ndarray:
    """Logits of the last token after a prefill from `start`."""
    logits = np.empty(0, dtype=np.float32)
    for first in range(start, len(tokens), CHUNK_TOKENS):
        logits = model.llama.forward(tokens[first : first + CHUNK_TOKENS], buffer, first)
    return logits


def draw(axes: Axes, sizes: list[int], rows: list[Row]) -> None:
    """TTFT over prompt length, both logarithmic."""
    seconds = {row.name: row for row in rows}
    for name, label in (
        ('ttft_cold', 'cold'),
        ('ttft_warm_disk', '90 % on disk'),
        ('ttft_warm_dram', '90 % in memory'),
    ):
        axes.plot(sizes, [seconds[f'{name}_{size}'].ours for size in sizes], marker='o', label=label)
    limits = [seconds[f'ttft_warm_dram_{size}'].limit for size in sizes]
    axes.plot(sizes, limits, 'k--', label='bare model, new tokens only')
    axes.set(xscale='log', yscale='log', xlabel='prompt (tokens)', ylabel='time to first token (s)')
    axes.set_xticks(sizes, [str(size) for size in sizes])
    axes.grid(True, which='both', alpha=0.3)
    axes.legend()


def main() -> None:
    """Measure, then print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument('--sizes', type=int, nargs='+', default=[128, 512, 1024, 1500], help='prompt lengths in tokens')
    parser.add_argument('--n', type=int, default=3, help='repetitions')
    parser.add_argument('--model', default=BUNDLED, help='bundled, a .gguf file or a Hugging Face directory')
    parser.add_argument('--cache-dir', type=Path, default=expand(CACHE_DIR) / 'models')
    parser.add_argument('--threads', type=int, default=1, help='torch threads')
    parser.add_argument(
        '--clock', choices=sorted(CLOCKS), default='wall', help='cpu: CPU seconds of the engine, for a busy machine'
    )
    parser.add_argument('--json', action='store_true', help='one JSON object as the last line')
    arguments = parser.parse_args()
    model = load_local_model(arguments.model, arguments.cache_dir, arguments.threads, print)
    prompts = Prompts(model, seed=1)
    rows = []
    for size in arguments.sizes:
        samples = []
        for number in range(arguments.n):
            print(f'{size} tokens, repetition {number + 1} of {arguments.n} …', file=sys.stderr, flush=True)
            with tempfile.TemporaryDirectory(prefix='kv_agent_ros-ttft-') as directory:
                samples.append(measure(model, prompts, size, Path(directory), CLOCKS[arguments.clock]))
        rows += rows_of(size, samples)
    with tempfile.TemporaryDirectory(prefix='kv_agent_ros-ttft-') as directory:
        rows += logit_rows(model, prompts, max(arguments.sizes), Path(directory))
    facts = {
        'model': model.name,
        'torch': torch.__version__,
        'torch_threads': arguments.threads,
        'clock': arguments.clock,
    }
    if arguments.json:
        print_json(rows, facts)
        return
    print_table(f'Time to first token, {model.name}, 90 % of the prompt cached', rows)
    print(save_plot('ttft', lambda axes: draw(axes, arguments.sizes, rows)))


if __name__ == '__main__':
    main()
