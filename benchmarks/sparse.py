"""What queries that come after a compression lose by it, ours against the peers on the same real attention.

The bundled model reads documents of this repository and planning sessions. Every method scores the tokens of the
context from what it may know at its end; then the queries of the text that really follows look at what was kept.
Retained mass: their attention on kept and later tokens. Output error: relative mean squared error of their attention's
output. The limit is an oracle that keeps, per KV head, what they look at most.
"""

import argparse
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
import os
from pathlib import Path
import sys
import time

from matplotlib.axes import Axes
import numpy as np

from benchmarks._attention import Recording, Text, prefill, record, texts
from benchmarks._attention_peers import (
    ABLATIONS,
    ORACLE,
    OURS,
    PEERS,
    SNAPKV,
    SNAPKV_QUERIES,
    Cost,
    future_costs,
    kept_rows,
    observed_scores,
    oracle_scores,
    our_scores,
    policy_of,
)
from benchmarks._reporting import Row, print_json, print_table, save_plot
from kv_agent_ros.config import CACHE_DIR, expand
from kv_agent_ros.inference.llama_config import rotary_frequencies
from kv_agent_ros.inference.local_llama import KVBuffer
from kv_agent_ros.inference.local_model import BUNDLED, LocalModel, load_local_model
from kv_agent_ros.inference.local_sparse import SparseSession, load_rows
from kv_agent_ros.kvcache.block import SessionKey, TokenArray
from kv_agent_ros.kvcache.dram_tier import DramTier
from kv_agent_ros.kvcache.eviction import SessionLruPolicy
from kv_agent_ros.kvcache.manager import KVCacheManager
from kv_agent_ros.kvcache.session_index import SessionIndex
from kv_agent_ros.kvcache.sparse import SparseKVCache, importance_ahead
from kv_agent_ros.kvcache.sparse_kv import SparseKV
from kv_agent_ros.kvcache.sparse_policy import Pooling, Positions, SparsePolicy, TokenBudget, select
from kv_agent_ros.kvcache.storage.host import HostStore, SharedArena
from kv_agent_ros.kvcache.storage.segment import SegmentMap

BLAS_THREADS = 'OPENBLAS_NUM_THREADS'
SESSION = SessionKey(robot_id='bench', session_id='sparse')


@dataclass(kw_only=True, slots=True)
class Results:
    """Everything measured; lists have one entry per text."""

    costs: dict[tuple[str, float], list[Cost]] = field(default_factory=dict)  # by method and budget
    agreement: dict[tuple[str, float], list[float]] = field(default_factory=dict)
    selected_per_s: list[float] = field(default_factory=list)
    snapkv_per_s: list[float] = field(default_factory=list)
    prefilled_per_s: list[float] = field(default_factory=list)
    bytes_kept: dict[float, list[float]] = field(default_factory=dict)

    def mean(self, method: str, budget: float) -> Cost:
        """Over all texts."""
        costs = self.costs[method, budget]
        return Cost(
            mass=float(np.mean([cost.mass for cost in costs])), error=float(np.mean([cost.error for cost in costs]))
        )


def next_tokens(model: LocalModel, buffer: KVBuffer, num_rows: int, future: TokenArray) -> TokenArray:
    """The model's most likely token after each token of the future."""
    steps = (model.llama.forward(future[i : i + 1], buffer, num_rows + i) for i in range(len(future)))
    return np.array([int(logits.argmax()) for logits in steps], np.int32)


def cpu_s(work: Callable[[], object]) -> float:
    """CPU seconds of one call."""
    started_s = time.process_time()
    work()
    return time.process_time() - started_s


def measure(model: LocalModel, text: Text, budgets: Sequence[float], num_agreement: int, results: Results) -> None:
    """All methods at all budgets on one text."""
    started_s = time.process_time()
    recording = record(model, text)
    results.prefilled_per_s.append((len(text.context) + len(text.future)) / (time.process_time() - started_s))
    frequencies = np.array(rotary_frequencies(model.llama.config))
    num_context = recording.num_context
    kv = SparseKV.full(recording.keys[:, :, :num_context], recording.values[:, :, :num_context])
    scores = observed_scores(recording) | {ORACLE: oracle_scores(recording)}
    scores[OURS] = our_scores(recording, kv, frequencies)
    buffer = KVBuffer(model.llama.config)
    load_rows(kv, buffer, Positions.ORIGINAL, frequencies)
    expected = next_tokens(model, buffer, num_context, text.future[:num_agreement])
    for budget in budgets:
        kept = dict(kept_rows(kv, scores, budget, seed=len(results.prefilled_per_s)))
        for name, cost in future_costs(recording, kept).items():
            results.costs.setdefault((name, budget), []).append(cost)
        results.bytes_kept.setdefault(budget, []).append(kv.taken(kept[OURS]).num_bytes / kv.num_bytes)
        for name in (OURS, SNAPKV):
            rows = kv.taken(kept[name])
            sparse_buffer = KVBuffer(model.llama.config)
            load_rows(rows, sparse_buffer, Positions.ORIGINAL, frequencies)
            got = next_tokens(model, sparse_buffer, rows.keys.shape[2], text.future[:num_agreement])
            results.agreement.setdefault((name, budget), []).append(float((got == expected).mean()))
    time_selection(recording, kv, frequencies, budgets[0], results)


def time_selection(
    recording: Recording, kv: SparseKV, frequencies: np.ndarray, budget: float, results: Results
) -> None:
    """Tokens of context per CPU second, scores and selection together."""
    num_tokens = recording.num_context
    policy = policy_of(budget)
    last = recording.queries[:, :, num_tokens - SNAPKV_QUERIES : num_tokens]
    ours_s = cpu_s(lambda: kv.taken(select(kv, our_scores(recording, kv, frequencies), policy)))
    snapkv_s = cpu_s(
        lambda: kv.taken(select(kv, importance_ahead(kv, last), replace(policy, pooling=Pooling.ALL_HEADS)))
    )
    results.selected_per_s.append(num_tokens / ours_s)
    results.snapkv_per_s.append(num_tokens / snapkv_s)


def growing_agreement(model: LocalModel, text: Text, budget_tokens: int, num_agreement: int) -> tuple[float, float]:
    """A session that stays within a budget of tokens while it grows, through the real cache.

    Returns the share of rows it holds at the end, and of next tokens that are the full session's.
    """
    full = KVBuffer(model.llama.config)
    prefill(model, text.context, full)
    expected = next_tokens(model, full, len(text.context), text.future[:num_agreement])
    sessions = SessionIndex()
    dram = DramTier(store=HostStore(SharedArena.create(256 << 20)), policy=SessionLruPolicy(sessions.is_referenced))
    with KVCacheManager(dram=dram, sessions=sessions) as manager:
        policy = SparsePolicy(budget=TokenBudget(budget_tokens))
        sparse = SparseKVCache(cache=manager, segments=SegmentMap(), namespace=model.namespace(16), policy=policy)
        SparseSession(model=model, sparse=sparse, session=SESSION).extend(text.context)
        later = SparseSession(model=model, sparse=sparse, session=SESSION)
        num_cached = later.resume(text.context[:-1])
        later.extend(text.context[num_cached:])
        share = later.num_rows / later.num_tokens
        got = [int(later.extend(text.future[i : i + 1]).argmax()) for i in range(num_agreement)]
    return share, float((np.array(got) == expected).mean())


def rows_of(results: Results, budgets: Sequence[float]) -> list[Row]:
    """Means over the texts; the peer of a row is the best of all peers in that row."""
    num_texts = len(results.prefilled_per_s)
    rows = []

    def add(name: str, ours: float, peer: float, peer_name: str, limit: float, ratio: float, unit: str) -> None:
        rows.append(
            Row(
                name=name,
                ours=ours,
                peer=peer,
                peer_name=peer_name,
                limit=limit,
                ratio=ratio,
                unit=unit,
                n=num_texts,
            )
        )

    for budget in budgets:
        percent = round(100 * budget)
        ours, oracle = results.mean(OURS, budget), results.mean(ORACLE, budget)
        peers = {name: results.mean(name, budget) for name in PEERS}
        best = max(peers, key=lambda name: peers[name].mass)
        mass = peers[best].mass
        add(f'retained_mass_{percent}', ours.mass, mass, best, oracle.mass, ours.mass / mass, 'fraction')
        best = min(peers, key=lambda name: peers[name].error)
        error = peers[best].error
        add(f'output_error_{percent}', ours.error, error, best, oracle.error, error / ours.error, 'relMSE')
        ours_equal, snapkv_equal = (float(np.mean(results.agreement[name, budget])) for name in (OURS, SNAPKV))
        ratio = ours_equal / snapkv_equal
        add(f'next_token_agreement_{percent}', ours_equal, snapkv_equal, SNAPKV, 1.0, ratio, 'fraction')
        kept = float(np.mean(results.bytes_kept[budget]))
        add(f'memory_{percent}', kept, 1.0, 'full KV', budget, 1 / kept, 'of full KV')
    speed, snapkv = float(np.median(results.selected_per_s)), float(np.median(results.snapkv_per_s))
    prefilled = float(np.median(results.prefilled_per_s))
    add('selection_speed', speed, prefilled, 'prefill of the same tokens', snapkv, speed / prefilled, 'tokens/CPU s')
    return rows


def all_costs(results: Results, budgets: Sequence[float]) -> dict[str, object]:
    """Every method, mean over texts and for each text, for the machine-readable output."""
    names = (OURS, *ABLATIONS, *PEERS, ORACLE)
    return {
        f'{round(100 * budget)} %': {
            name: {
                'mass': round(results.mean(name, budget).mass, 4),
                'error': round(results.mean(name, budget).error, 4),
                'masses': [round(cost.mass, 4) for cost in results.costs[name, budget]],
                'errors': [round(cost.error, 4) for cost in results.costs[name, budget]],
            }
            for name in names
        }
        for budget in budgets
    }


def print_costs(results: Results, budgets: Sequence[float]) -> None:
    """Every method, for a person."""
    for budget in budgets:
        print(f'\n{round(100 * budget)} % budget: retained mass, output error, and on how many texts ours is better')
        for name in (ORACLE, OURS, *ABLATIONS, *PEERS):
            cost, pairs = (
                results.mean(name, budget),
                list(zip(results.costs[OURS, budget], results.costs[name, budget], strict=True)),
            )
            wins = f'{sum(a.mass > b.mass for a, b in pairs)}, {sum(a.error < b.error for a, b in pairs)}'
            print(f'  {name:32s} {cost.mass:.4f}  {cost.error:.4f}  {wins} of {len(pairs)}')


def draw(axes: Axes, results: Results, budgets: Sequence[float]) -> None:
    """Lost mass against output error, one point for each method and budget."""
    for name in (ORACLE, OURS, 'SnapKV without pooling', SNAPKV, 'observed attention', 'H2O'):
        means = [results.mean(name, budget) for budget in budgets]
        axes.plot([1 - cost.mass for cost in means], [cost.error for cost in means], marker='o', label=name)
    percents = ' and '.join(f'{round(100 * budget)} %' for budget in budgets)
    axes.set(xlabel='lost attention mass', ylabel='relative squared error of the output', title=f'{percents} of the KV')
    axes.grid(True, alpha=0.3)
    axes.legend()


def main() -> None:
    """Measure, then print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument('--budgets', type=float, nargs='+', default=[0.2, 0.12], help='share of the tokens to keep')
    parser.add_argument('--context', type=int, default=1536, help='tokens before the compression')
    parser.add_argument('--future', type=int, default=64, help='tokens after it, whose queries are measured')
    parser.add_argument('--agreement', type=int, default=16, help='of these, how many next tokens are compared')
    parser.add_argument('--texts', type=int, default=6, choices=range(1, 7), help='documents and sessions in turn')
    parser.add_argument('--model', default=BUNDLED, help='bundled, a .gguf file or a Hugging Face directory')
    parser.add_argument('--cache-dir', type=Path, default=expand(CACHE_DIR) / 'models')
    parser.add_argument('--threads', type=int, default=1, help='torch threads')
    parser.add_argument('--json', action='store_true', help='one JSON object as the last line')
    arguments = parser.parse_args()
    if os.environ.get(BLAS_THREADS) != '1':  # numpy reads it when it is imported; waiting threads would count as work
        os.environ[BLAS_THREADS] = '1'
        os.execv(sys.executable, sys.orig_argv)
    model = load_local_model(arguments.model, arguments.cache_dir, arguments.threads, progress)
    results = Results()
    growing = []
    for text in texts(model, arguments.context, arguments.future, arguments.texts):
        progress(f'{text.name}: {len(text.context)} tokens and {len(text.future)} after them …')
        measure(model, text, arguments.budgets, arguments.agreement, results)
        if not growing:
            growing.append(growing_agreement(model, text, arguments.context // 4, arguments.agreement))
    rows = rows_of(results, arguments.budgets)
    share, agreement = growing[0]
    facts = {
        'model': model.name,
        'context_tokens': arguments.context,
        'future_tokens': arguments.future,
        'growing_session': {'share_of_rows': round(share, 4), 'next_token_agreement': round(agreement, 4)},
        'methods': all_costs(results, arguments.budgets),
    }
    if arguments.json:
        print_json(rows, facts)
        return
    print_table(f'Sparse KV, {model.name}, {arguments.context} tokens', rows)
    print_costs(results, arguments.budgets)
    print(f'growing session, resumed from the cache: {share:.0%} of the rows, {agreement:.0%} of the next tokens equal')
    print(save_plot('sparse', lambda axes: draw(axes, results, arguments.budgets)))


def progress(line: str) -> None:
    """Where the run is."""
    print(line, file=sys.stderr, flush=True)


if __name__ == '__main__':
    main()
