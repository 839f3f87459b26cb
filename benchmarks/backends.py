"""The contract of engines and their faults, counted: every case over every engine here, and what a flood leaves.

The cases are the tests of test/inference; --real adds those against real SGLang and vLLM servers, where their
environments are set up, which takes minutes each. The flood asks a server on loopback, and the local engine with a tiny
random model. What is measured when the run is interrupted is printed.
"""

import argparse
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, redirect_stdout
from functools import partial
from pathlib import Path
import random
import re
import subprocess
import sys
import tempfile
import time

from matplotlib.axes import Axes
import pytest

from benchmarks._flood import Residue, flood, settled
from benchmarks._reporting import Row, print_json, print_table, run_phases, save_plot
from kv_agent_ros.deadline import Deadline
from kv_agent_ros.inference.base import InferenceBackend
from kv_agent_ros.inference.local import LocalBackend
from kv_agent_ros.inference.local_model import load_local_model
from kv_agent_ros.inference.loopback_engine import LoopbackEngine
from kv_agent_ros.inference.loopback_server import serving
from kv_agent_ros.inference.openai_http import HttpSettings
from kv_agent_ros.inference.sglang import connect_sglang
from kv_agent_ros.inference.tiny_model import TinyShape, write_tiny_llama
from kv_agent_ros.inference.vllm import connect_vllm
from kv_agent_ros.kvcache.dram_tier import DramTier
from kv_agent_ros.kvcache.eviction import SessionLruPolicy
from kv_agent_ros.kvcache.manager import KVCacheManager
from kv_agent_ros.kvcache.session_index import SessionIndex
from kv_agent_ros.kvcache.storage.host import HostStore, SharedArena
from kv_agent_ros.kvcache.storage.segment import SegmentMap

ROOT = Path(__file__).resolve().parent.parent
SUITES = (
    'test_backend_contract.py',
    'test_edge_cloud.py',
    'test_sglang.py',
    'test_vllm.py',
    'test_openai_http.py',
    'test_kv_events.py',
    'test_engine_mirror.py',
    'test_local_storm.py',
)
REAL = ('sglang', 'vllm')
NUM_ROBOTS = 8
ALLOWED_GROWTH_BYTES = 32 << 20
BLOCKS = 16

CountHeld = Callable[[], dict[str, int]]
OpenEngine = Callable[[ExitStack], tuple[InferenceBackend, CountHeld]]
"""Makes a backend, and counts what should be nothing when no request is at work."""


class Tally:
    """A plugin of pytest that counts, by case, how many engines passed."""

    def __init__(self) -> None:
        self.passed: dict[str, int] = defaultdict(int)
        self.total: dict[str, int] = defaultdict(int)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when == 'call' or report.failed:
            case = re.sub(r'\[.*', '', report.nodeid.rpartition('::')[2]).removeprefix('test_')
            self.total[case] += 1
            self.passed[case] += report.passed

    def rows(self) -> list[Row]:
        """One a case: the share of engines that passed."""
        return [row(case, self.passed[case] / total, 1.0, 'all', 'share', total) for case, total in self.total.items()]


def row(name: str, ours: float, peer: float, peer_name: str, unit: str, n: int) -> Row:
    """Shares: the ratio is ours to the peer's, so that 1 is all."""
    return Row(name=name, ours=ours, peer=peer, peer_name=peer_name, limit=peer, ratio=ours / peer, unit=unit, n=n)


def run_cases(paths: list[str], marker: str, matching: str) -> list[Row]:
    """Run the tests in this process."""
    tally = Tally()
    arguments = ['-q', '--no-header', '-p', 'no:cacheprovider', '-m', marker, '-k', matching]
    with redirect_stdout(sys.stderr):
        pytest.main([f'--rootdir={ROOT}', *arguments, *paths], plugins=[tally])
    return tally.rows()


def missing(name: str, asked: list[str]) -> str:
    """Why a real server is left out; nothing when it is there."""
    if name not in asked:
        return f'not asked for: --real {name}'
    is_there = subprocess.run([ROOT / 'scripts' / name, 'env'], capture_output=True).returncode == 0
    return '' if is_there else f'not set up: scripts/{name} setup'


def open_sglang(stack: ExitStack) -> tuple[InferenceBackend, CountHeld]:
    """SGLang's dialect against a loopback server."""
    engine = LoopbackEngine()
    url = stack.enter_context(serving(engine)).base_url
    settings = HttpSettings(base_url=url, model='m', engine='sglang')
    return connect_sglang(settings, cache_salt='home', deadline=Deadline(30.0)), lambda: {
        'connections': engine.num_open
    }


def open_vllm(stack: ExitStack) -> tuple[InferenceBackend, CountHeld]:
    """vLLM's dialect against a loopback server."""
    engine = LoopbackEngine()
    url = stack.enter_context(serving(engine)).base_url
    settings = HttpSettings(base_url=url, model='bundled', engine='vllm')
    return connect_vllm(settings, cache_salt='home', deadline=Deadline(30.0)), lambda: {'connections': engine.num_open}


def open_local(stack: ExitStack) -> tuple[InferenceBackend, CountHeld]:
    """The local engine, with a tiny random model over a real cache."""
    folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix='kv_agent_ros-backends-')))
    model = load_local_model(str(write_tiny_llama(folder / 'tiny', 7, TinyShape())), folder)
    sessions = SessionIndex()
    dram = DramTier(store=HostStore(SharedArena.create(64 << 20)), policy=SessionLruPolicy(sessions.is_referenced))
    cache = stack.enter_context(KVCacheManager(dram=dram, sessions=sessions))
    backend = LocalBackend(model=model, cache=cache, segments=SegmentMap(), namespace=model.namespace(BLOCKS))
    return backend, lambda: held_by(cache)


def held_by(cache: KVCacheManager) -> dict[str, int]:
    """Leases, blocks that a lease locks, and sessions beyond one a robot."""
    cache.check_integrity()
    stats = cache.stats()
    return {'leases': stats.num_leases, 'sessions_too_many': max(0, len(stats.sessions) - NUM_ROBOTS)}


@contextmanager
def opened(open_engine: OpenEngine) -> Iterator[tuple[InferenceBackend, CountHeld]]:
    """The engine, closed at the end."""
    with ExitStack() as stack:
        backend, count_held = open_engine(stack)
        yield backend, count_held
        backend.close()


def flood_rows(name: str, open_engine: OpenEngine, num_requests: int) -> list[Row]:
    """What a flood leaves behind; a first one warms up what a process makes once."""
    chance = random.Random(5)
    with opened(open_engine) as (backend, count_held):
        flood(backend, max(50, num_requests // 5), NUM_ROBOTS, chance)
        before, asked_before = settled(Residue.now()), backend.stats().num_requests
        begun_s = time.monotonic()
        outcomes = flood(backend, num_requests, NUM_ROBOTS, chance)
        took_s = time.monotonic() - begun_s
        left = settled(before)
        num_asked = backend.stats().num_requests - asked_before
        held = count_held()
    print(f'{name}: {num_requests} requests in {took_s:.0f} s, {outcomes}', file=sys.stderr, flush=True)
    grown_bytes = max(0, left.rss_bytes - before.rss_bytes)
    return [
        *(leak(f'{name}_{what}', number, num_requests) for what, number in held.items()),
        leak(f'{name}_threads', left.num_threads - before.num_threads, num_requests),
        leak(f'{name}_open_files', left.num_files - before.num_files, num_requests),
        leak(f'{name}_requests_not_in_the_books', num_requests - num_asked, num_requests),
        Row(
            name=f'{name}_memory_growth',
            ours=grown_bytes,
            peer=ALLOWED_GROWTH_BYTES,
            peer_name='allowed',
            limit=0.0,
            ratio=ALLOWED_GROWTH_BYTES / max(1, grown_bytes),
            unit='B',
            n=num_requests,
        ),
        row(f'{name}_answered', sum(outcomes.values()) / num_requests, 1.0, 'all', 'share', num_requests),
    ]


def leak(name: str, number: int, n: int) -> Row:
    """A count that must be 0; the ratio is 1 when it is."""
    return Row(
        name=name, ours=number, peer=0.0, peer_name='none', limit=0.0, ratio=1.0 / (1 + abs(number)), unit='1', n=n
    )


def draw(axes: Axes, rows: list[Row]) -> None:
    """The passed share of every case."""
    shares = [each for each in rows if each.unit == 'share']
    axes.barh([each.name[:60] for each in shares], [each.ours for each in shares])
    axes.tick_params(axis='y', labelsize=4)
    axes.set_xlabel('passed share')


def main() -> int:
    """Run, then print; exit code 1 when a case failed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument('--requests', type=int, default=2000, help='of each flood (2000)')
    parser.add_argument('--cases', default='', help="only cases that match, as pytest's -k")
    parser.add_argument('--real', nargs='+', choices=REAL, default=[], help='also against these real servers')
    parser.add_argument('--json', action='store_true', help='one JSON object as the last line')
    arguments = parser.parse_args()
    left_out = {name: reason for name in REAL if (reason := missing(name, arguments.real))}
    phases = [
        partial(run_cases, [str(ROOT / 'test' / 'inference' / name) for name in SUITES], 'not slow', arguments.cases)
    ]
    phases += [
        partial(run_cases, [str(ROOT / 'test' / name)], f'{name} and not ros', arguments.cases)
        for name in REAL
        if name not in left_out
    ]
    engines = (('flood_sglang', open_sglang), ('flood_vllm', open_vllm), ('flood_local', open_local))
    phases += [partial(flood_rows, name, open_engine, arguments.requests) for name, open_engine in engines]
    rows = run_phases(phases)
    if arguments.json:
        print_json(rows, {'requests': arguments.requests, 'left_out': left_out})
    else:
        print_table('Engines: contract, faults, floods', rows)
        for name, reason in left_out.items():
            print(f'{name} is left out: {reason}')
        print(save_plot('backends', lambda axes: draw(axes, rows)))
    failed = [each.name for each in rows if each.ratio < 1]
    return 1 if failed or not rows else 0


if __name__ == '__main__':
    sys.exit(main())
