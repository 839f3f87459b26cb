"""Eight robots at once on one model: the local engine's batch beside one request at a time, transformers and SGLang.

All play the same turns greedily, float32 and one torch thread. And: how long an urgent short request waits for its
first token behind a prompt of 4,096 tokens, with and without chunks.
"""

import argparse
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
import statistics
import subprocess
import sys
import tempfile
import threading
import time

from matplotlib.axes import Axes
import torch
import transformers

from benchmarks._reporting import Row, print_json, print_table, run_phases, save_plot
from benchmarks._robots import (
    BackendEngine,
    Engine,
    Load,
    Played,
    TransformersEngine,
    load_network,
    play_in_turn,
    play_together,
    reachable_hit_rate,
)
from benchmarks._sglang import SCRIPT, NoSglangError
from benchmarks._sglang_server import SglangServer, running
from benchmarks._ttft_peers import cpu_clock
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
PEERS = ('sglang', 'transformers')
BLOCK_TOKENS = 16
DRAM_BYTES = 512 << 20
TIMEOUT_S = 900.0
UNCHUNKED = 1 << 20
GOALS = {'transformers': 2.5}  # times the peer's tokens per second; of others, as many
Play = Callable[[Engine, Load], Played]
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


def play_local(model: LocalModel, load: Load, batching: Batching, play: Play) -> Played:
    """The load on the local engine."""
    with local_engine(model, batching) as (backend, _):
        play(BackendEngine(backend, model), WARM_UP)
        return play(BackendEngine(backend, model), load)


def play_transformers(model: LocalModel, directory: Path, load: Load) -> Played:
    """The load on transformers, one request at a time."""
    network = load_network(directory)
    play_in_turn(TransformersEngine(network, model), WARM_UP)
    return play_in_turn(TransformersEngine(network, model), load)


def play_sglang(model: LocalModel, load: Load) -> Played:
    """The load on a real SGLang server, all robots at once. Raises NoSglangError."""
    if subprocess.run([SCRIPT, 'env'], capture_output=True).returncode:
        raise NoSglangError('not set up: scripts/sglang setup')
    with tempfile.TemporaryDirectory(prefix='kv_agent_ros-throughput-') as state_dir, ExitStack() as stack:
        server = stack.enter_context(running(SglangServer(Path(state_dir), (), (), {})))
        cpu_s = cpu_clock(server.pid)
        settings = HttpSettings(base_url=server.url, model='', engine='sglang')
        backend = stack.enter_context(closing(connect_sglang(settings, cache_salt='home', deadline=Deadline(60))))
        engine = BackendEngine(backend, model)
        play_together(engine, WARM_UP)
        begun_s = cpu_s()
        played = play_together(engine, load)
        return replace(played, cpu_s=cpu_s() - begun_s)


class Bench:
    """The same load on one engine after the other; rows come with each."""

    def __init__(self, model: LocalModel, load: Load) -> None:
        self._model = model
        self._load = load
        self.played: dict[str, Played] = {}
        self.left_out: dict[str, str] = {}

    def ours(self) -> list[Row]:
        """The local engine, all robots at once."""
        self._play('batched', lambda: play_local(self._model, self._load, DEFAULT_BATCHING, play_together))
        return []

    def in_turn(self) -> list[Row]:
        """The local engine, one request at a time."""
        one = Batching(max_batch=1)
        return self._play('sequential', lambda: play_local(self._model, self._load, one, play_in_turn))

    def transformers(self, directory: Path) -> list[Row]:
        """transformers, one request at a time."""
        return self._play('transformers', lambda: play_transformers(self._model, directory, self._load))

    def sglang(self) -> list[Row]:
        """SGLang, where it is set up."""
        try:
            return self._play('SGLang', lambda: play_sglang(self._model, self._load))
        except (NoSglangError, KvAgentError) as error:
            print(f'SGLang is left out: {error}', file=sys.stderr, flush=True)
            self.left_out['SGLang'] = str(error)
            return []

    def _play(self, name: str, play: Callable[[], Played]) -> list[Row]:
        print(f'{name} ', end='', file=sys.stderr, flush=True)
        self.played[name] = play()
        return [] if name == 'batched' else throughput_rows(self.played['batched'], name, self.played[name])


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


def throughput_rows(ours: Played, name: str, peer: Played) -> list[Row]:
    """Tokens per second against a peer, the time of the whole, and what was reused; limits are goals."""
    num_turns = len(ours.answers)
    goal = GOALS.get(name, 1.0)
    same = sum(a.token_ids == b.token_ids for a, b in zip(ours.answers, peer.answers, strict=True)) / num_turns
    speeds, cpu_speeds = (ours.tokens_per_s, peer.tokens_per_s), (ours.tokens_per_cpu_s, peer.tokens_per_cpu_s)
    total = row('total', ours.wall_s, peer.wall_s, name, unit='s', n=num_turns)
    return [
        row('tokens_per_s', *speeds, name, goal * peer.tokens_per_s, unit='tokens/s', n=num_turns),
        row('tokens_per_cpu_s', *cpu_speeds, name, goal * peer.tokens_per_cpu_s, unit='tokens/s', n=num_turns),
        replace(total, ratio=peer.wall_s / ours.wall_s),
        row('hit_rate', ours.hit_rate, peer.hit_rate, name, reachable_hit_rate(ours.answers), n=num_turns),
        row('same_answers', same, 1.0, name, 1.0, n=num_turns),
    ]


def row(
    name: str, ours: float, peer: float, peer_name: str, limit: float = 0.0, unit: str = 'fraction', n: int = 1
) -> Row:
    """Of a number that is better when it is larger."""
    ratio = ours / max(peer, 1e-9)
    return Row(name=name, ours=ours, peer=peer, peer_name=peer_name, limit=limit, ratio=ratio, unit=unit, n=n)


def urgent_rows(model: LocalModel, num_tokens: int, num_repeats: int, clock: Clock) -> list[Row]:
    """An urgent request's first token behind a long prompt, in chunks and in one piece."""
    ours, peer = [], []
    for number in range(num_repeats):
        print(f'urgent behind {num_tokens} tokens, {number + 1} of {num_repeats} …', file=sys.stderr, flush=True)
        ours.append(urgent_ttft_s(model, DEFAULT_BATCHING.chunk_tokens, num_tokens, clock))
        peer.append(urgent_ttft_s(model, UNCHUNKED, num_tokens, clock))
    medians = statistics.median(ours), statistics.median(peer)
    found = Row(
        name=f'urgent_ttft_behind_{num_tokens}',
        ours=medians[0],
        peer=medians[1],
        peer_name='without chunks',
        limit=0.3 * medians[1],
        ratio=medians[1] / medians[0],
        unit='s',
        n=num_repeats,
    )
    return [found]


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
    bench = Bench(model, load)
    peers: dict[str, Callable[[], list[Row]]] = {
        'sglang': bench.sglang,
        'transformers': partial(bench.transformers, directory),
    }
    urgent = partial(urgent_rows, model, arguments.long_tokens, arguments.n, CLOCKS[arguments.clock])
    rows = run_phases([bench.ours, urgent, *(peers[name] for name in arguments.peers), bench.in_turn])
    facts = {
        'model': 'SmolLM2-135M-Instruct',
        'torch': torch.__version__,
        'transformers': transformers.__version__,
        'torch_threads': arguments.threads,
        'clock': arguments.clock,
        'load': asdict(load),
        'left_out': bench.left_out,
    }
    if arguments.json:
        print_json(rows, facts)
        return
    print_table(f'{load.num_robots} robots × {load.num_turns} turns, {facts["model"]}', rows)
    print(save_plot('throughput', lambda axes: draw(axes, bench.played)))


if __name__ == '__main__':
    main()
