"""Eight robots at once on one model: the local engine's batch beside one request at a time, transformers and SGLang.

All play the same turns greedily, float32 and one torch thread. And: how long an urgent short request waits for its
first token behind a prompt of 4,096 tokens, with and without chunks.
"""

import argparse
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import asdict, replace
from pathlib import Path
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time

from matplotlib.axes import Axes
import torch
import transformers

from benchmarks._reporting import Row, print_json, print_table, save_plot
from benchmarks._robots import (
    BackendEngine,
    Load,
    Played,
    TransformersEngine,
    load_network,
    play_in_turn,
    play_together,
    reachable_hit_rate,
)
from benchmarks._sglang import SCRIPT
from kv_agent_ros.config import CACHE_DIR, expand
from kv_agent_ros.deadline import Deadline
from kv_agent_ros.errors import KvAgentError
from kv_agent_ros.inference.base import GenerationRequest, Message, Role
from kv_agent_ros.inference.gguf_convert import converted_directory
from kv_agent_ros.inference.local import LocalBackend
from kv_agent_ros.inference.local_engine import DEFAULT_BATCHING, Batching
from kv_agent_ros.inference.local_model import LocalModel, bundled_gguf, load_local_model
from kv_agent_ros.inference.openai_http import HttpSettings
from kv_agent_ros.inference.sglang import connect_sglang
from kv_agent_ros.kvcache.block import SessionKey
from kv_agent_ros.kvcache.dram_tier import DramTier
from kv_agent_ros.kvcache.eviction import SessionLruPolicy
from kv_agent_ros.kvcache.manager import KVCacheManager
from kv_agent_ros.kvcache.session_index import SessionIndex
from kv_agent_ros.kvcache.storage.host import HostStore, SharedArena
from kv_agent_ros.kvcache.storage.segment import SegmentMap

Clock = Callable[[], float]
CLOCKS: dict[str, Clock] = {'wall': time.monotonic, 'cpu': time.process_time}
PEERS = ('transformers', 'sglang')
BLOCK_TOKENS = 16
DRAM_BYTES = 512 << 20
TIMEOUT_S = 900.0
UNCHUNKED = 1 << 20
WARM_UP = Load(num_robots=2, num_turns=1, new_tokens=2, head_sentences=2, kind='Warm-up')


@contextmanager
def local_engine(
    model: LocalModel, batching: Batching, clock: Clock = time.monotonic
) -> Iterator[tuple[LocalBackend, KVCacheManager]]:
    """The local engine over an empty cache in memory."""
    sessions = SessionIndex()
    dram = DramTier(store=HostStore(SharedArena.create(DRAM_BYTES)), policy=SessionLruPolicy(sessions.is_referenced))
    with KVCacheManager(dram=dram, sessions=sessions) as manager:
        namespace = model.namespace(BLOCK_TOKENS)
        backend = LocalBackend(
            model=model, cache=manager, segments=SegmentMap(), namespace=namespace, batching=batching, clock=clock
        )
        with closing(backend):
            yield backend, manager


@contextmanager
def sglang_url() -> Iterator[str]:
    """A real SGLang server on this machine, started and ended by its script."""
    with socket.socket() as probe:
        probe.bind(('127.0.0.1', 0))
        port = str(probe.getsockname()[1])
    with tempfile.TemporaryDirectory(prefix='kv_agent_ros-throughput-') as state_dir:
        place = ('--port', port, '--state-dir', state_dir)
        started = subprocess.run([SCRIPT, 'start', *place], stdout=subprocess.PIPE, text=True, check=True)
        try:
            yield started.stdout.split()[-1]
        finally:
            subprocess.run([SCRIPT, 'stop', *place], stdout=sys.stderr.fileno(), check=True)


def play_sglang(model: LocalModel, load: Load) -> list[Played]:
    """One round of turns on SGLang; none where its environment is not set up or the server does not start."""
    if subprocess.run([SCRIPT, 'env'], capture_output=True).returncode:
        print('SGLang is not set up (scripts/sglang setup): left out', file=sys.stderr, flush=True)
        return []
    try:
        with sglang_url() as url:
            settings = HttpSettings(base_url=url, model='', engine='sglang')
            with closing(connect_sglang(settings, cache_salt='home', deadline=Deadline(60))) as backend:
                engine = BackendEngine(backend, model)
                play_together(engine, WARM_UP)
                return [play_together(engine, load)]
    except (subprocess.CalledProcessError, KvAgentError) as error:
        print(f'SGLang is left out: {error}', file=sys.stderr, flush=True)
        return []


def play_all(model: LocalModel, directory: Path, load: Load, peers: list[str]) -> dict[str, Played]:
    """The same load on every engine."""
    played = {}
    print('local engine, batched ', end='', file=sys.stderr, flush=True)
    with local_engine(model, DEFAULT_BATCHING) as (backend, _):
        play_together(BackendEngine(backend, model), WARM_UP)
        played['batched'] = play_together(BackendEngine(backend, model), load)
    print('local engine, one at a time ', end='', file=sys.stderr, flush=True)
    with local_engine(model, Batching(max_batch=1)) as (backend, _):
        play_in_turn(BackendEngine(backend, model), WARM_UP)
        played['sequential'] = play_in_turn(BackendEngine(backend, model), load)
    if 'transformers' in peers:
        print('transformers, one at a time ', end='', file=sys.stderr, flush=True)
        network = load_network(directory)
        play_in_turn(TransformersEngine(network, model), WARM_UP)
        played['transformers'] = play_in_turn(TransformersEngine(network, model), load)
    if 'sglang' in peers:
        print('SGLang ', end='', file=sys.stderr, flush=True)
        for found in play_sglang(model, load):
            played['SGLang'] = found
    return played


def urgent_ttft_s(model: LocalModel, chunk_tokens: int, num_tokens: int, clock: Clock) -> float:
    """Seconds to the first token of a short urgent request that comes right after a prompt of `num_tokens` began."""
    words = model.tokenizer.encode('cup ' * num_tokens, add_special_tokens=False).ids[:num_tokens]
    long = Message(role=Role.USER, content=model.tokenizer.decode(words))
    urgent = Message(role=Role.USER, content='A child stands in the way. Stop or go on?')
    deadline = Deadline(TIMEOUT_S)
    with local_engine(model, Batching(chunk_tokens=chunk_tokens), clock) as (backend, manager):
        backend.generate(_request('warm-up', urgent, 0), Deadline(TIMEOUT_S))
        known = manager.stats().prompt_tokens
        thread = threading.Thread(target=backend.generate, args=(_request('long', long, 0), deadline))
        thread.start()
        while manager.stats().prompt_tokens == known:
            deadline.wait(0.005)
        usage = backend.generate(_request('urgent', urgent, 10), Deadline(TIMEOUT_S)).usage
        deadline.cancel()
        thread.join()
    return usage.ttft_s


def _request(robot: str, message: Message, priority: int) -> GenerationRequest:
    session = SessionKey(robot_id=robot, session_id='urgent')
    return GenerationRequest(session=session, messages=(message,), max_new_tokens=1, priority=priority)


def throughput_rows(played: dict[str, Played]) -> list[Row]:
    """Tokens per second against every peer, the time of the whole, and what was reused."""
    ours = played['batched']
    num_turns = len(ours.answers)
    rows = []
    for name, peer in played.items():
        if name == 'batched':
            continue
        same = sum(a.token_ids == b.token_ids for a, b in zip(ours.answers, peer.answers, strict=True)) / num_turns
        rows += [
            row('tokens_per_s', ours.tokens_per_s, peer.tokens_per_s, name, unit='tokens/s', n=num_turns),
            replace(
                row('total', ours.wall_s, peer.wall_s, name, unit='s', n=num_turns), ratio=peer.wall_s / ours.wall_s
            ),
            row('hit_rate', ours.hit_rate, peer.hit_rate, name, reachable_hit_rate(ours.answers), n=num_turns),
            row('same_answers', same, 1.0, name, 1.0, n=num_turns),
        ]
        if name != 'SGLang':  # its CPU time is another process's
            cpu = ours.tokens_per_cpu_s, peer.tokens_per_cpu_s
            rows.append(row('tokens_per_cpu_s', *cpu, name, unit='tokens/s', n=num_turns))
    return rows


def row(
    name: str, ours: float, peer: float, peer_name: str, limit: float = 0.0, unit: str = 'fraction', n: int = 1
) -> Row:
    """Of a number that is better when it is larger."""
    ratio = ours / max(peer, 1e-9)
    return Row(name=name, ours=ours, peer=peer, peer_name=peer_name, limit=limit, ratio=ratio, unit=unit, n=n)


def urgent_row(model: LocalModel, num_tokens: int, num_repeats: int, clock: Clock) -> Row:
    """An urgent request's first token behind a long prompt, in chunks and in one piece."""
    ours, peer = [], []
    for number in range(num_repeats):
        print(f'urgent behind {num_tokens} tokens, {number + 1} of {num_repeats} …', file=sys.stderr, flush=True)
        ours.append(urgent_ttft_s(model, DEFAULT_BATCHING.chunk_tokens, num_tokens, clock))
        peer.append(urgent_ttft_s(model, UNCHUNKED, num_tokens, clock))
    medians = statistics.median(ours), statistics.median(peer)
    return Row(
        name=f'urgent_ttft_behind_{num_tokens}',
        ours=medians[0],
        peer=medians[1],
        peer_name='without chunks',
        limit=0.3 * medians[1],
        ratio=medians[1] / medians[0],
        unit='s',
        n=num_repeats,
    )


def draw(axes: Axes, played: dict[str, Played]) -> None:
    """Tokens per second of each engine."""
    axes.barh(list(played), [found.tokens_per_s for found in played.values()])
    axes.set(xlabel='answers (tokens/s), 8 robots')
    axes.grid(True, axis='x', alpha=0.3)


def main() -> None:
    """Measure, then print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument('--robots', type=int, default=8)
    parser.add_argument('--turns', type=int, default=10)
    parser.add_argument('--new-tokens', type=int, default=8, help='of an answer')
    parser.add_argument('--head-sentences', type=int, default=20, help='of the shared head, 13 tokens each or so')
    parser.add_argument('--long-tokens', type=int, default=4096, help='of the prompt before the urgent request')
    parser.add_argument('--n', type=int, default=1, help='repetitions of the urgent request')
    parser.add_argument('--cache-dir', type=Path, default=expand(CACHE_DIR) / 'models')
    parser.add_argument('--threads', type=int, default=1, help='torch threads')
    parser.add_argument('--peers', nargs='*', choices=PEERS, default=list(PEERS), help='beside one request at a time')
    parser.add_argument(
        '--clock', choices=sorted(CLOCKS), default='wall', help='of the urgent request; cpu: on a busy machine'
    )
    parser.add_argument('--json', action='store_true', help='one JSON object as the last line')
    arguments = parser.parse_args()
    directory = converted_directory(bundled_gguf(), arguments.cache_dir, print)
    model = load_local_model(str(directory), arguments.cache_dir, arguments.threads)
    load = Load(
        num_robots=arguments.robots,
        num_turns=arguments.turns,
        new_tokens=arguments.new_tokens,
        head_sentences=arguments.head_sentences,
    )
    played = play_all(model, directory, load, arguments.peers)
    rows = throughput_rows(played)
    rows.append(urgent_row(model, arguments.long_tokens, arguments.n, CLOCKS[arguments.clock]))
    facts = {
        'model': 'SmolLM2-135M-Instruct',
        'torch': torch.__version__,
        'transformers': transformers.__version__,
        'torch_threads': arguments.threads,
        'clock': arguments.clock,
        'load': asdict(load),
    }
    if arguments.json:
        print_json(rows, facts)
        return
    print_table(f'{load.num_robots} robots × {load.num_turns} turns, {facts["model"]}', rows)
    print(save_plot('throughput', lambda axes: draw(axes, played)))


if __name__ == '__main__':
    main()
