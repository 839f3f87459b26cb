"""Block hit rate on request traces by capacity: our tree and default policy against SGLang's RadixCache.

The peer is the best of SGLang's lru, lfu and slru at each capacity, replayed by its own code on the same requests. The
limit is Belady's clairvoyant policy. Further rows take parts of ours away: what it learnt, the ghosts, the references
of sessions. With room for every block of the trace, the share of blocks that were seen before must come out exactly.
"""

import argparse
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
import os
from pathlib import Path
import subprocess
import sys

from matplotlib.axes import Axes

from benchmarks._reporting import Row, print_json, print_table, save_plot
from benchmarks._sglang import NoSglangError, run_driver
from benchmarks._trace_replay import SESSION_VARIANTS, VARIANTS, Replay, replay
from benchmarks._traces import Trace, agent_trace, belady_hit_rate, infinite_hit_rate, read_trace

CAPACITIES = (1000, 3000, 10_000, 30_000, 50_000)
TRACES = Path(__file__).resolve().parents[2] / 'shared' / 'traces'
DRIVER = Path(__file__).resolve().parent / '_sglang_traces.py'
PEER_POLICIES = ('lru', 'lfu', 'slru')
PEER_TIMEOUT_S = 1800.0
UNIT = 'hit rate'


@dataclass(frozen=True, kw_only=True, slots=True)
class Point:
    """One trace at one capacity; hit rates by who."""

    trace: Trace
    capacity: int
    ours: dict[str, Replay]
    peers: dict[str, float]
    belady: float

    @property
    def gap_closed(self) -> float:
        """Share of the way from LRU in the same tree to Belady; where there is none, 1, or 0 when ours is worse."""
        lru = self.ours['our tree, LRU'].hit_rate
        gained = self.ours['ours'].hit_rate - lru
        return gained / (self.belady - lru) if self.belady > lru else float(gained >= 0)


def main() -> None:
    """Measure, then print."""
    options = _parse()
    traces = _traces(options.trace)
    points = _measure(traces, options.capacities)
    rows = [row for point in points for row in _rows(point)]
    rows += [_uncapped(trace) for trace in traces]
    facts: dict[str, object] = {
        'gap_closed': {_name(point): round(point.gap_closed, 4) for point in points},
        'infinite': {trace.name: infinite_hit_rate(trace) for trace in traces},
        'requests_per_s': {_name(point): round(_requests_per_s(point)) for point in points},
    }
    if options.json:
        print_json(rows, facts)
        return
    print_table('block hit rate', rows)
    for point in points:
        print(
            f'{_name(point)}: {point.gap_closed:.1%} of the way from LRU to Belady, {_requests_per_s(point):.0f} req/s'
        )
    print(save_plot('prefix_traces', lambda axes: _draw(axes, points)))


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument('--trace', type=Path, action='append', default=[], help='JSON lines with hash_ids; repeatable')
    parser.add_argument('--capacities', type=_capacities, default=CAPACITIES, help='in blocks, separated by commas')
    parser.add_argument('--json', action='store_true')
    return parser.parse_args()


def _capacities(text: str) -> tuple[int, ...]:
    capacities = tuple(int(part) for part in text.split(','))
    if min(capacities) < 1:
        raise argparse.ArgumentTypeError(f'expected blocks >= 1, got {text}')
    return capacities


def _traces(paths: Sequence[Path]) -> list[Trace]:
    found = list(paths) or sorted(TRACES.glob('*.jsonl'))
    repeated = {path.stem for path in found if [other.stem for other in found].count(path.stem) > 1}
    if repeated:
        raise SystemExit(f'--trace: expected files of different names, got {sorted(repeated)} more than once')
    return [read_trace(path) for path in found] or [agent_trace()]


def _measure(traces: Sequence[Trace], capacities: Sequence[int]) -> list[Point]:
    wanted = sorted(capacities)
    jobs = [(trace, capacity, name) for trace in traces for capacity in wanted for name in _variants(trace)]
    with ProcessPoolExecutor(os.cpu_count()) as pool:
        runs = pool.map(_run, jobs)
        peers = _peers(traces, wanted)
        ours = {(trace.name, *job): result for (trace, *job), result in zip(jobs, runs, strict=True)}
    return [
        Point(
            trace=trace,
            capacity=capacity,
            ours={name: ours[trace.name, capacity, name] for name in _variants(trace)},
            peers={policy: rates[index] for policy, rates in peers[trace.name].items()},
            belady=belady_hit_rate(trace, capacity),
        )
        for trace in traces
        for index, capacity in enumerate(wanted)
    ]


def _variants(trace: Trace) -> list[str]:
    return [*VARIANTS, *(SESSION_VARIANTS if trace.has_sessions else ())]


def _run(job: tuple[Trace, int, str]) -> Replay:
    trace, capacity, name = job
    print(f'{trace.name}, {capacity} blocks, {name} …', file=sys.stderr, flush=True)
    return replay(trace, capacity, name)


def _peers(traces: Sequence[Trace], capacities: Sequence[int]) -> dict[str, dict[str, list[float]]]:
    """Hit rates of SGLang's policies by trace, one per capacity; no policies where SGLang cannot run."""
    requests = {trace.name: trace.requests for trace in traces}
    request = {'traces': requests, 'policies': PEER_POLICIES, 'capacities': capacities}
    try:
        answer = run_driver(DRIVER, request, PEER_TIMEOUT_S)
    except (NoSglangError, subprocess.TimeoutExpired) as error:
        print(f'without SGLang: {error}', file=sys.stderr, flush=True)
        return {trace.name: {} for trace in traces}
    rates = answer['rates']
    assert isinstance(rates, dict)
    return {
        trace: {f'SGLang {policy}': values for policy, values in by_policy.items()}
        for trace, by_policy in rates.items()
    }


def _rows(point: Point) -> list[Row]:
    ours = point.ours['ours'].hit_rate
    lru = {'our tree, LRU': point.ours['our tree, LRU'].hit_rate}
    peers = point.peers or lru
    best = max(peers, key=peers.__getitem__)
    rows = [_row(point, '', ours, peers[best], best)]
    rows += [_row(point, ', learning', ours, *_named(point, 'our tree, LRU'))]
    rows += [_row(point, ', ghosts', ours, *_named(point, 'without ghosts'))]
    if point.trace.has_sessions:
        with_sessions = {name: point.ours[name].hit_rate for name in SESSION_VARIANTS}
        rows += [
            _row(point, ', session references', with_sessions['ours with session references'], ours, 'ours'),
            _row(
                point,
                ', session references on LRU',
                with_sessions['LRU with session references'],
                *_named(point, 'our tree, LRU'),
            ),
        ]
    return rows


def _uncapped(trace: Trace) -> Row:
    capacity = max(1, trace.num_unique)
    ours, limit = _run((trace, capacity, 'ours')).hit_rate, infinite_hit_rate(trace)
    return Row(
        name=f'{trace.name} uncapped ({capacity} blocks)',
        ours=ours,
        peer=limit,
        peer_name='all that was seen before',
        limit=limit,
        ratio=ours / limit if limit else 1.0,
        unit=UNIT,
        n=1,
    )


def _named(point: Point, name: str) -> tuple[float, str]:
    return point.ours[name].hit_rate, name


def _row(point: Point, part: str, ours: float, peer: float, peer_name: str) -> Row:
    ratio = ours / peer if peer else 1.0
    name = _name(point) + part
    return Row(name=name, ours=ours, peer=peer, peer_name=peer_name, limit=point.belady, ratio=ratio, unit=UNIT, n=1)


def _name(point: Point) -> str:
    return f'{point.trace.name} {point.capacity} blocks'


def _requests_per_s(point: Point) -> float:
    return len(point.trace.requests) / max(1e-9, point.ours['ours'].cpu_s)


def _draw(axes: Axes, points: Sequence[Point]) -> None:
    for number, name in enumerate(dict.fromkeys(point.trace.name for point in points)):
        line = [point for point in points if point.trace.name == name]
        capacities = [point.capacity for point in line]
        colour = f'C{number}'
        axes.plot(capacities, [p.ours['ours'].hit_rate for p in line], 'o-', color=colour, label=f'{name}, ours')
        axes.plot(capacities, [p.belady for p in line], ':', color=colour, label=f'{name}, Belady')
        if all(point.peers for point in line):
            best = [max(point.peers.values()) for point in line]
            axes.plot(capacities, best, 'x--', color=colour, label=f'{name}, best of SGLang')
    axes.set(xscale='log', xlabel='capacity (blocks)', ylabel='block hit rate', ylim=(0, 1))
    axes.legend(fontsize='small')


if __name__ == '__main__':
    main()
