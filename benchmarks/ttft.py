"""Time to the first token against prompt length: cold, with 90 % of the prompt in memory, with 90 % on disk.

Real tokens through the local engine and the KV cache. The limit is the bare network's prefill of the same new tokens
with everything before them already in its buffer. At the longest prompt other engines get the same kind of prompts in
the same run: SGLang as it is and with its attention over a cached prefix fixed, vLLM, llama.cpp. A peer that is not set
up is named. What is measured when the run is interrupted is printed.
"""

import argparse
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
import statistics
import sys
import tempfile
import time

from matplotlib.axes import Axes
import torch

from benchmarks._reporting import Row, print_json, print_table, run_phases, save_plot
from benchmarks._ttft_local import (
    Clock,
    Prompts,
    Sample,
    agreement,
    logit_difference,
    measure,
    num_head_tokens,
    pass_times,
)
from benchmarks._ttft_peers import MakeClock, NoPeerError, Peer, cpu_clock, peers, wall_clock
from kv_agent_ros.config import CACHE_DIR, expand
from kv_agent_ros.inference.gguf_convert import converted_directory
from kv_agent_ros.inference.local_linear import Weights
from kv_agent_ros.inference.local_model import BUNDLED, LocalModel, bundled_gguf, load_local_model

CLOCKS: dict[str, tuple[Clock, MakeClock]] = {
    'wall': (time.monotonic, wall_clock),
    'cpu': (time.process_time, cpu_clock),
}
"""Of our own process, in which the engine has a thread, and of a peer's."""
WARM_SHARE_GOAL, BARE_GOAL, LOAD_GOAL, DISK_LOAD_GOAL = 0.12, 1.15, 0.05, 0.10
SETTLE_TOKENS = 300
NUM_HASHED = 16  # of a peer's prompt, that must be cached at least
LOGIT_GOALS = (('float32', 1e-4), ('float16', 0.05))


class Bench:
    """What was measured so far, and the rows of it."""

    def __init__(self, model: LocalModel, num_repeats: int, clock: Clock) -> None:
        self._model = model
        self._prompts = Prompts(model, seed=1)
        self._num_repeats = num_repeats
        self._clock = clock
        self._samples: dict[int, list[Sample]] = {}
        self._peers: dict[str, list[tuple[float, float]]] = {}  # cold and warm seconds
        self.left_out: dict[str, str] = {}

    def local(self, num_tokens: int) -> list[Row]:
        """The local engine at one length."""
        samples = self._samples.setdefault(num_tokens, [])
        for number in range(self._num_repeats):
            say(f'{num_tokens} tokens, repetition {number + 1} of {self._num_repeats} …')
            with tempfile.TemporaryDirectory(prefix='kv_agent_ros-ttft-') as directory:
                samples.append(measure(self._model, self._prompts, num_tokens, Path(directory), self._clock))
        return local_rows(num_tokens, samples)

    def peer(self, name: str, open_peer: Peer, num_tokens: int) -> list[Row]:
        """A peer at the same length, cold and warm by turns."""
        say(f'{name} …')
        try:
            with open_peer() as ask:
                for tokens in self._prompts.pair(SETTLE_TOKENS):
                    ask(tokens)
                pairs = [self._prompts.pair(num_tokens) for _ in range(self._num_repeats)]
                answers = [(ask(cold), ask(warm)) for cold, warm in pairs]
        except NoPeerError as error:
            say(f'{name} is left out: {error}')
            self.left_out[name] = str(error)
            return []
        assert all(cold.cached_tokens <= NUM_HASHED < warm.cached_tokens for cold, warm in answers), answers
        self._peers[name] = [(cold.ttft_s, warm.ttft_s) for cold, warm in answers]
        return peer_rows(num_tokens, self._samples[num_tokens], name, self._peers[name])

    def shares(self, num_tokens: int) -> list[Row]:
        """A warm prompt's share of a cold one: ours, against the goal and against the best peer."""
        samples = self._samples[num_tokens]
        ours = median(each.dram_s / each.cold_s for each in samples)
        bare = median(each.bare_warm_s / each.bare_cold_s for each in samples)
        shares = {name: median(warm / cold for cold, warm in pairs) for name, pairs in self._peers.items()}
        best = sorted(shares, key=shares.__getitem__)[:1]
        compared = [(WARM_SHARE_GOAL, 'goal'), *((shares[name], f'best peer: {name}') for name in best)]
        name = f'warm_share_of_cold_{num_tokens}'
        return [row(name, ours, peer, of_whom, bare, 'fraction', len(samples)) for peer, of_whom in compared]

    def int8(self, name: str, cache_dir: Path, threads: int, num_tokens: int) -> list[Row]:
        """The bare network with int8 weights beside float32, by turns, and how often both go on alike."""
        say('int8 weights …')
        other = load_local_model(name, cache_dir, threads, say, Weights.INT8)
        first, second = self._prompts.pair(num_tokens)
        models = (other, self._model)
        spent = [[pass_times(each, first, second, self._clock) for each in models] for _ in range(self._num_repeats)]
        rows = []
        for index, what in enumerate(('prefill_cold', 'prefill_warm', 'decode_step')):
            ours, peer = (median(by_model[which][index] for by_model in spent) for which in range(2))
            unit = 's' if what != 'decode_step' else 's/token'
            rows.append(row(f'int8_{what}_{num_tokens}', ours, peer, 'float32', 0.0, unit, self._num_repeats))
        same, num_compared = agreement(other, self._model)
        agreed = Row(
            name='int8_same_next_token',
            ours=same,
            peer=1.0,
            peer_name='float32',
            limit=1.0,
            ratio=same,
            unit='fraction',
            n=num_compared,
        )
        return [*rows, agreed]

    def logits(self, num_tokens: int) -> list[Row]:
        """How far answers after reuse are from those of a cold prefill, by stored precision."""
        head, tail = self._prompts.head(num_head_tokens(num_tokens)), self._prompts.tail(num_tokens // 10)
        tokens = self._model.chat.prompt((head, tail))
        rows = []
        for dtype, goal in LOGIT_GOALS:
            with tempfile.TemporaryDirectory(prefix='kv_agent_ros-ttft-') as directory:
                found = logit_difference(self._model, tokens, num_head_tokens(num_tokens), dtype, Path(directory))
            rows.append(row(f'max_logit_difference_{dtype}_{num_tokens}', found, goal, 'goal', 0.0, 'logit', 1))
        return rows


def local_rows(num_tokens: int, samples: list[Sample]) -> list[Row]:
    """Medians over the repetitions of one length."""

    def of(value: Callable[[Sample], float]) -> float:
        return median(value(sample) for sample in samples)

    def line(name: str, ours: float, peer: float, peer_name: str, limit: float, unit: str = 'fraction') -> Row:
        return row(f'{name}_{num_tokens}', ours, peer, peer_name, limit, unit, len(samples))

    cold, dram, disk = of(lambda s: s.cold_s), of(lambda s: s.dram_s), of(lambda s: s.disk_s)
    bare_cold, bare_warm = of(lambda s: s.bare_cold_s), of(lambda s: s.bare_warm_s)
    over_bare = of(lambda s: s.dram_s / s.bare_warm_s)
    return [
        line('ttft_cold', cold, bare_cold, 'bare model, all tokens', bare_cold, 's'),
        line('ttft_warm_dram', dram, cold, 'cold', bare_warm, 's'),
        line('ttft_warm_disk', disk, cold, 'cold', bare_warm, 's'),
        line('warm_over_bare_warm', over_bare, BARE_GOAL, 'goal, times the bare model', 1.0),
        line('reuse_share_of_ttft_dram', of(lambda s: s.dram_load_s / s.dram_s), LOAD_GOAL, 'goal', 0.0),
        line('reuse_share_of_ttft_disk', of(lambda s: s.disk_load_s / s.disk_s), DISK_LOAD_GOAL, 'goal', 0.0),
    ]


def peer_rows(num_tokens: int, samples: list[Sample], name: str, pairs: list[tuple[float, float]]) -> list[Row]:
    """Ours against one peer: both times, and the warm one as a share of the cold one."""
    cold, warm = median(pair[0] for pair in pairs), median(pair[1] for pair in pairs)
    share = median(pair[1] / pair[0] for pair in pairs)
    ours = median(each.cold_s for each in samples), median(each.dram_s for each in samples)
    our_share = median(each.dram_s / each.cold_s for each in samples)
    bare = median(each.bare_cold_s for each in samples), median(each.bare_warm_s for each in samples)
    return [
        row(f'ttft_cold_{num_tokens}', ours[0], cold, name, bare[0], 's', len(pairs)),
        row(f'ttft_warm_dram_{num_tokens}', ours[1], warm, name, bare[1], 's', len(pairs)),
        row(f'warm_share_of_cold_{num_tokens}', our_share, share, name, bare[1] / bare[0], 'fraction', len(pairs)),
    ]


def row(name: str, ours: float, peer: float, peer_name: str, limit: float, unit: str, n: int) -> Row:
    """Of a number that is better when it is smaller."""
    ratio = peer / max(ours, 1e-12)
    return Row(name=name, ours=ours, peer=peer, peer_name=peer_name, limit=limit, ratio=ratio, unit=unit, n=n)


def median(values: Iterable[float]) -> float:
    """Of an iterable of numbers."""
    return statistics.median(values)


def say(text: str) -> None:
    """Progress for people."""
    print(text, file=sys.stderr, flush=True)


def draw(axes: Axes, rows: list[Row]) -> None:
    """TTFT over prompt length, both logarithmic."""
    ours = {each.name: each for each in rows if each.peer_name.startswith(('cold', 'bare'))}
    sizes = sorted(int(name.rpartition('_')[2]) for name in ours if name.startswith('ttft_warm_disk'))
    for name, label in (
        ('ttft_cold', 'cold'),
        ('ttft_warm_disk', '90 % on disk'),
        ('ttft_warm_dram', '90 % in memory'),
    ):
        axes.plot(sizes, [ours[f'{name}_{size}'].ours for size in sizes], marker='o', label=label)
    limits = [ours[f'ttft_warm_dram_{size}'].limit for size in sizes]
    axes.plot(sizes, limits, 'k--', label='bare model, new tokens only')
    axes.set(xscale='log', yscale='log', xlabel='prompt (tokens)', ylabel='time to first token (s)')
    axes.set_xticks(sizes, [str(size) for size in sizes])
    axes.grid(True, which='both', alpha=0.3)
    axes.legend()


def main() -> None:
    """Measure, then print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument('--sizes', type=int, nargs='+', default=[128, 512, 1024, 1500], help='prompt lengths in tokens')
    parser.add_argument('--n', type=int, default=2, help='repetitions')
    parser.add_argument('--model', default=BUNDLED, help='bundled, a .gguf file or a Hugging Face directory')
    parser.add_argument('--no-peers', action='store_true', help='only our own engine, as with a model of yours')
    parser.add_argument('--cache-dir', type=Path, default=expand(CACHE_DIR) / 'models')
    parser.add_argument('--threads', type=int, default=1, help='torch threads')
    parser.add_argument(
        '--clock', choices=sorted(CLOCKS), default='wall', help='cpu: CPU seconds of each engine, for a busy machine'
    )
    parser.add_argument('--json', action='store_true', help='one JSON object as the last line')
    arguments = parser.parse_args()
    model = load_local_model(arguments.model, arguments.cache_dir, arguments.threads, say)
    clock, make_clock = CLOCKS[arguments.clock]
    bench, longest = Bench(model, arguments.n, clock), max(arguments.sizes)
    phases = [partial(bench.local, size) for size in sorted(arguments.sizes, reverse=True)]
    if not arguments.no_peers and arguments.model == BUNDLED:
        found = peers(converted_directory(bundled_gguf(), arguments.cache_dir, say), bundled_gguf(), make_clock)
        phases += [partial(bench.peer, name, each, longest) for name, each in found.items()]
    phases.append(partial(bench.shares, longest))
    phases.append(partial(bench.int8, arguments.model, arguments.cache_dir, arguments.threads, longest))
    rows = run_phases([*phases, partial(bench.logits, longest)])
    facts = {
        'model': model.name,
        'torch': torch.__version__,
        'torch_threads': arguments.threads,
        'clock': arguments.clock,
        'left_out': bench.left_out,
    }
    if arguments.json:
        print_json(rows, facts)
        return
    print_table(f'Time to first token, {facts["model"]}, 90 % of the prompt cached', rows)
    for name, reason in bench.left_out.items():
        print(f'{name} is left out: {reason}')
    print(save_plot('ttft', lambda axes: draw(axes, rows)))


if __name__ == '__main__':
    main()
