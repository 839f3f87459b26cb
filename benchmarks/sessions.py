"""What a session's references are worth: kept through a flood, gone after it is closed, and the hit rate they gain.

Retention: session A and a request B without one, then a flood of strangers over a small pool, on a real SGLang server
and on our manager. Ablation: the same tree and the same trace with references and without, in SGLang's tree and ours.
"""

import argparse
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from pathlib import Path
import random
import sys
import tempfile

from matplotlib.axes import Axes
import numpy as np

from benchmarks._reporting import Row, print_json, print_table, run_phases, save_plot, saving
from benchmarks._sglang import NoSglangError, run_driver
from benchmarks._sglang_server import SglangServer, running
from benchmarks._trace_replay import replay
from benchmarks._traces import Trace, agent_trace, belady_hit_rate, read_trace
from kv_agent_ros.kvcache.block import KVNamespace, SessionKey
from kv_agent_ros.kvcache.dram_tier import DramTier
from kv_agent_ros.kvcache.eviction import SessionsLast
from kv_agent_ros.kvcache.hit_density import HitDensityPolicy
from kv_agent_ros.kvcache.manager import KVCacheManager
from kv_agent_ros.kvcache.session_index import SessionIndex
from kv_agent_ros.kvcache.storage.base import checksum
from kv_agent_ros.kvcache.storage.host import HostStore, SegmentMap, SharedArena

TRACES = Path(__file__).resolve().parents[2] / 'shared' / 'traces'
DRIVER = Path(__file__).resolve().parent / '_sglang_sessions.py'
DRIVER_TIMEOUT_S = 1200.0
POOL_TOKENS = 2048
PAGE_TOKENS = 16
PROMPT_WORDS = 200  # of one, two or three tokens
FLOOD = 10
KEPT, GONE = 0.75, 0.20
CAPACITY_SHARES = (0.05, 0.1, 0.2)  # of a trace's different blocks
OUR_PAIRS = {
    'our tree, LRU': 'LRU with session references',
    'ours': 'ours with session references',
}
NAMESPACE = KVNamespace(
    model='none', revision='', dtype='float32', num_layers=1, num_kv_heads=1, head_dim=8, block_tokens=PAGE_TOKENS
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Retention:
    """Share of the prompt that is still cached."""

    session: float  # A after the flood
    stranger: float  # B, asked without a session, after the flood
    closed: float  # A after its end and another flood


def text(number: int) -> str:
    """A prompt that shares nothing with that of another number."""
    chance = random.Random(number)
    return f'{number}. ' + ' '.join(str(chance.randrange(1000)) for _ in range(PROMPT_WORDS))


def sglang_retention(directory: Path) -> Retention:
    """The experiment over HTTP."""
    flags = ('--enable-session-radix-cache', '--max-total-tokens', str(POOL_TOKENS), '--page-size', str(PAGE_TOKENS))
    server = SglangServer(directory, (), (*flags, '--max-running-requests', '1'), {})

    def share(number: int, session: str) -> float:
        answer = server.ask(text(number), tenant='home', max_new_tokens=1, session=session)
        return answer.cached_tokens / answer.prompt_tokens

    def flood(first: int) -> None:
        for number in range(first, first + FLOOD):
            say(f'flood {number} …')
            share(number, '')

    with running(server):
        share(1, 'A')
        share(2, '')
        flood(100)
        kept, stranger = share(1, 'A'), share(2, '')
        server.close_session('A')
        flood(200)
        return Retention(session=kept, stranger=stranger, closed=share(1, ''))


def manager_retention() -> Retention:
    """The same on our manager with its default policy: as many tokens of room, prompts of as many tokens."""
    sessions = SessionIndex()
    policy = HitDensityPolicy()
    arena = SharedArena.create(POOL_TOKENS // PAGE_TOKENS * NAMESPACE.block_bytes)
    dram = DramTier(store=HostStore(arena), policy=SessionsLast(sessions.num_references, policy))
    strangers = iter(range(1_000_000))
    segments = SegmentMap()
    with KVCacheManager(dram=dram, sessions=sessions) as manager, closing(segments):

        def share(number: int, session: SessionKey) -> float:
            tokens = np.random.default_rng(number).integers(0, 50_000, 2 * PROMPT_WORDS).astype(np.int32)
            found = manager.acquire(NAMESPACE, session, tokens)
            manager.release(found.lease_id)
            write = manager.reserve(NAMESPACE, session, tokens)
            sums = [checksum(segments.slot(slot)) for slot in write.slots]
            manager.commit(write.lease_id, sums)
            return found.matched_tokens / len(tokens)

        def once(number: int) -> float:
            session = SessionKey(robot_id='stranger', session_id=str(next(strangers)))
            found = share(number, session)
            manager.end_session(session)
            return found

        robot = SessionKey(robot_id='robot1', session_id='A')
        share(1, robot)
        once(2)
        for number in range(100, 100 + FLOOD):
            once(number)
        kept, stranger = share(1, robot), once(2)
        manager.end_session(robot)
        for number in range(200, 200 + FLOOD):
            once(number)
        return Retention(session=kept, stranger=stranger, closed=once(1))


def retention_rows(name: str, found: Retention) -> list[Row]:
    """Against the bounds of the field's acceptance test."""

    def row(what: str, ours: float, goal: float, ratio: float) -> Row:
        return Row(
            name=f'{name}_{what}', ours=ours, peer=goal, peer_name='goal', limit=goal, ratio=ratio, unit='cached', n=1
        )

    return [
        row('session_through_flood', found.session, KEPT, found.session / KEPT),
        row('no_session_through_flood', found.stranger, GONE, GONE / max(found.stranger, 0.01)),
        row('closed_session_through_flood', found.closed, GONE, GONE / max(found.closed, 0.01)),
    ]


def traces(names: Sequence[str], num_requests: int) -> list[Trace]:
    """The first requests of the recorded ones that are there, and one that is generated."""
    found = [read_trace(TRACES / f'{name}.jsonl') for name in names if (TRACES / f'{name}.jsonl').is_file()]
    cut = [
        Trace(name=trace.name, requests=trace.requests[:num_requests], sessions=trace.sessions[:num_requests])
        for trace in found
    ]
    return [*cut, *map(side_by_side, cut), agent_trace(num_requests=num_requests, num_live=24)]


def side_by_side(trace: Trace) -> Trace:
    """The same sessions, all live at once: their next requests in turns. As recorded, they run one after the other."""
    seen: Counter[str] = Counter()
    order = []
    for number, session in enumerate(trace.sessions):
        order.append((seen[session], number))
        seen[session] += 1
    numbers = [number for _, number in sorted(order)]
    return Trace(
        name=f'{trace.name} side by side',
        requests=tuple(trace.requests[number] for number in numbers),
        sessions=tuple(trace.sessions[number] for number in numbers),
    )


def capacities(trace: Trace) -> list[int]:
    """In blocks."""
    return [max(1, int(share * trace.num_unique)) for share in CAPACITY_SHARES]


def sglang_rates(trace: Trace) -> dict[str, list[float]]:
    """Hit rates with references and without, by trace and capacity. Raises NoSglangError."""
    asked = {'requests': trace.requests, 'sessions': trace.sessions, 'capacities': capacities(trace)}
    rates: dict[str, list[float]] = run_driver(DRIVER, {trace.name: asked}, DRIVER_TIMEOUT_S)['rates']
    return rates


def ablation_rows(trace: Trace, theirs: dict[str, list[float]]) -> list[Row]:
    """Ours is with references, the peer without, in the same tree with the same policy."""
    rows = []
    for capacity in capacities(trace):
        say(f'ours, {trace.name}, {capacity} blocks …')
        pairs = {
            f'manager {without}': (
                replay(trace, capacity, with_them).hit_rate,
                replay(trace, capacity, without).hit_rate,
            )
            for without, with_them in OUR_PAIRS.items()
        }
        if f'{trace.name} {capacity}' in theirs:
            first, second = theirs[f'{trace.name} {capacity}']
            pairs['SGLang tree, LRU'] = first, second
        limit = belady_hit_rate(trace, capacity)
        rows += [
            Row(
                name=f'{trace.name}_{capacity}_{tree}',
                ours=with_them,
                peer=without,
                peer_name='without references',
                limit=limit,
                ratio=with_them / max(without, 1e-9),
                unit='hit rate',
                n=len(trace.requests),
            )
            for tree, (with_them, without) in pairs.items()
        ]
    return rows


class Bench:
    """Its phases; what needs SGLang where there is none brings fewer rows, and says why."""

    def __init__(self) -> None:
        self.missing: list[str] = []

    def manager(self) -> list[Row]:
        """Retention in our manager."""
        return retention_rows('manager', manager_retention())

    def sglang(self) -> list[Row]:
        """Retention in a real server."""
        try:
            with tempfile.TemporaryDirectory(prefix='kv_agent_ros-sessions-') as directory:
                return retention_rows('sglang', sglang_retention(Path(directory)))
        except NoSglangError as error:
            self.missing.append(str(error))
            return []

    def ablation(self, trace: Trace) -> list[Row]:
        """With references and without, on one trace."""
        theirs: dict[str, list[float]] = {}
        try:
            theirs = sglang_rates(trace)
        except NoSglangError as error:
            self.missing.append(str(error))
        return ablation_rows(trace, theirs)


def say(text: str) -> None:
    """Progress."""
    print(text, file=sys.stderr, flush=True)


def draw(axes: Axes, rows: Sequence[Row]) -> None:
    """Gain of the references in points."""
    shown = [row for row in rows if row.unit == 'hit rate']
    axes.barh([row.name for row in shown], [100 * (row.ours - row.peer) for row in shown])
    axes.set(xlabel='hit rate gained by session references (points)')
    axes.tick_params(axis='y', labelsize=6)


def main() -> None:
    """Measure, then print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    parser.add_argument('--requests', type=int, default=200, help='of each trace, from its start')
    parser.add_argument('--traces', nargs='*', default=['magagent'], help='recorded ones, where they are')
    parser.add_argument('--parts', nargs='+', choices=('retention', 'ablation'), default=['retention', 'ablation'])
    parser.add_argument('--json', action='store_true', help='one JSON object as the last line')
    arguments = parser.parse_args()
    bench = Bench()
    phases: list[Callable[[], list[Row]]] = []
    if 'retention' in arguments.parts:
        phases += [bench.manager, bench.sglang]
    if 'ablation' in arguments.parts:
        phases += [partial(bench.ablation, trace) for trace in traces(arguments.traces, arguments.requests)]
    rows = run_phases(saving('sessions', phases))
    for reason in bench.missing:
        say(f'without SGLang: {reason}')
    if arguments.json:
        print_json(rows, {'pool_tokens': POOL_TOKENS, 'flood': FLOOD, 'without': bench.missing})
        return
    print_table('Session references', rows)
    print(save_plot('sessions', lambda axes: draw(axes, rows)))


if __name__ == '__main__':
    main()
