"""SGLang gets kill -9 and starts again: each robot's next turn with our store, with SGLang's own files, with neither.

Two servers, in turns for every robot, so that both see the same noise; the one that is not asked is paused, because an
idle SGLang keeps a processor busy. Times are wall times to the first token, medians over the robots: of the turn right
after the restart, then of the same turns after the engine's memory was emptied, at last with the system's page cache
emptied too, as after a power cut. The answers of many short turns are compared with those of exact keys and values.
"""

import argparse
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
import statistics
import tempfile

from matplotlib.axes import Axes

from benchmarks._reporting import Row, print_json, print_table, run_phases, save_plot, saving
from benchmarks._restarted import TENANT, RestartedServer, Script, say, scripts
from benchmarks._sglang_server import Answer

ABREAST = 4  # robots that are asked at once where no times are taken
SAME_GOAL = 0.95  # of the answers
NO_L3, FILES = 'nothing stored, same server', 'SGLang file backend'

PARTS = ('next_turn', 'again', 'cold_disk', 'answers')

Pairs = list[tuple[Answer, Answer]]  # of our store, of SGLang's files


class Bench:
    """Its phases; every one returns the rows that it brings."""

    def __init__(
        self,
        ours: RestartedServer,
        files: RestartedServer,
        timed: Sequence[Script],
        judged: Sequence[Script],
        new_tokens: int,
        num_rounds: int,
    ) -> None:
        self._ours, self._files = ours, files
        self._timed, self._judged = timed, judged
        self._new_tokens, self._num_rounds = new_tokens, num_rounds

    def restart(self) -> list[Row]:
        """The servers hear the histories, die and come back; SGLang's files only where something is timed."""
        if not self._timed:
            self._restart(self._ours, self._judged)
            return []
        with ThreadPoolExecutor() as pool:
            ours, files = pool.map(self._restart, (self._ours, self._files), (self._judged, ()))
        return [row('bytes_on_disk', ours, files, FILES, 'B', len(self._timed))]

    def _restart(self, server: RestartedServer, judged: Sequence[Script]) -> int:
        """The bytes that the histories of the timed robots take."""
        server.start()
        server.hear(self._timed)
        num_bytes = server.bytes_on_disk()
        server.hear(judged)
        server.kill_and_start()
        return num_bytes

    def next_turn(self) -> list[Row]:
        """Right after the restart, and what it costs with nothing stored."""
        pairs = self._ask_both(lambda: None)
        cold = []
        with self._ours.awake():
            for script in self._timed:
                cold.append(self._ours.ask(script.prompt(0), 'nobody', self._new_tokens))
                self._ours.settle()
        mine, theirs = ([pair[place] for pair in pairs] for place in (0, 1))
        n = len(self._timed)
        return [
            *ttft_rows('ttft_next_turn', pairs),
            row('ttft_next_turn_of_cold', ttft_s(mine), ttft_s(cold), NO_L3, 's', n),
            row('ttft_file_backend_of_cold', ttft_s(theirs), ttft_s(cold), NO_L3, 's', n),
            higher('prompt_from_storage', stored_share(mine), stored_share(theirs), 'share of tokens', n),
            higher('same_answers_next_turn', same_share(mine, cold), same_share(theirs, cold), 'share of turns', n),
        ]

    def again(self) -> list[Row]:
        """The same turns, each round with nothing in the engine's memory."""
        pairs: Pairs = []
        for _ in range(self._num_rounds):
            self._forget()
            pairs += self._ask_both(lambda: None)
        return ttft_rows('ttft_after_flush', pairs) if pairs else []

    def cold_disk(self) -> list[Row]:
        """The same turns once more, every file read from the disk."""
        self._forget()
        return ttft_rows('ttft_page_cache_empty', self._ask_both(self._empty_page_caches))

    def answers(self) -> list[Row]:
        """Many short turns with what our store kept, and with exact keys and values."""
        self._files.stop()
        with self._ours.awake(), ThreadPoolExecutor(ABREAST) as pool:
            verdicts = [same for found in pool.map(self._judge, range(len(self._judged))) for same in found]
        same, n = share(verdicts), len(verdicts)
        return [
            Row(
                name='same_greedy_answers',
                ours=same,
                peer=SAME_GOAL,
                peer_name='goal',
                limit=1.0,
                ratio=same / SAME_GOAL,
                unit='share of turns',
                n=n,
            )
        ]

    def part(self, name: str) -> Callable[[], list[Row]]:
        """One of PARTS."""
        parts = (self.next_turn, self.again, self.cold_disk, self.answers)
        return dict(zip(PARTS, parts, strict=True))[name]

    def _judge(self, robot: int) -> list[bool]:
        """By turn, whether the robot gets the same answer."""
        say(f'answers of robot {robot + 1} of {len(self._judged)}')
        script = self._judged[robot]
        found, exact = (
            [self._ours.ask(script.prompt(turn), tenant, self._new_tokens).text for turn in range(len(script.turns))]
            for tenant in (TENANT, f'nobody {robot}')
        )
        return [mine == other for mine, other in zip(found, exact, strict=True)]

    def _ask_both(self, prepare: Callable[[], None]) -> Pairs:
        """The first turn of every robot; who is asked first alternates."""
        pairs: Pairs = []
        for number, script in enumerate(self._timed):
            say(f'turn of robot {number + 1} of {len(self._timed)}')
            found: dict[str, Answer] = {}
            for server in (self._ours, self._files)[:: 1 if number % 2 else -1]:
                prepare()
                with server.awake():
                    found[server.name] = server.ask(script.prompt(0), TENANT, self._new_tokens)
                    server.settle()
            pairs.append((found[self._ours.name], found[self._files.name]))
        return pairs

    def _forget(self) -> None:
        for server in (self._ours, self._files):
            with server.awake():
                server.forget()

    def _empty_page_caches(self) -> None:
        for server in (self._ours, self._files):
            server.empty_page_cache()


def ttft_s(answers: Sequence[Answer]) -> float:
    """The median."""
    return statistics.median(answer.ttft_s for answer in answers)


def stored_share(answers: Sequence[Answer]) -> float:
    """Share of the prompts that came from storage."""
    return sum(answer.storage_tokens for answer in answers) / sum(answer.prompt_tokens for answer in answers)


def same_share(answers: Sequence[Answer], exact: Sequence[Answer]) -> float:
    """Share of the answers that are the exact ones."""
    return share([mine.text == other.text for mine, other in zip(answers, exact, strict=True)])


def share(verdicts: Sequence[bool]) -> float:
    """Of those that hold."""
    return sum(verdicts) / len(verdicts)


def ttft_rows(name: str, pairs: Pairs) -> list[Row]:
    """The medians, and how often ours was the faster one of a pair."""
    mine, theirs = ([pair[place] for pair in pairs] for place in (0, 1))
    won = share([ours.ttft_s <= files.ttft_s for ours, files in pairs])
    return [
        row(name, ttft_s(mine), ttft_s(theirs), FILES, 's', len(pairs)),
        higher(f'{name}_pairs_won', won, 1 - won, 'share of pairs', len(pairs)),
    ]


def row(name: str, ours: float, peer: float, peer_name: str, unit: str, n: int) -> Row:
    """Less is better."""
    return Row(name=name, ours=ours, peer=peer, peer_name=peer_name, limit=0.0, ratio=peer / ours, unit=unit, n=n)


def higher(name: str, ours: float, peer: float, unit: str, n: int) -> Row:
    """More is better; the most is 1."""
    ratio = ours / max(peer, 1e-9)
    return Row(name=name, ours=ours, peer=peer, peer_name=FILES, limit=1.0, ratio=ratio, unit=unit, n=n)


def draw(axes: Axes, rows: Sequence[Row]) -> None:
    """Bars of the time to the first token."""
    seconds = {row.name: row for row in rows}
    if not {'ttft_next_turn', 'ttft_next_turn_of_cold'} <= seconds.keys():
        return
    next_turn, of_cold = seconds['ttft_next_turn'], seconds['ttft_next_turn_of_cold']
    axes.bar(('our store', 'file backend', 'nothing stored'), (next_turn.ours, next_turn.peer, of_cold.peer))
    axes.set(ylabel="time to the first token of a robot's next turn (s)", title='SGLang after kill -9')


def main() -> None:
    """Measure, then print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    parser.add_argument('--robots', type=int, default=8, help='whose next turn is timed; 2 for a quick look')
    parser.add_argument('--tokens', type=int, default=800, help='of the history of each of them, about')
    parser.add_argument('--rounds', type=int, default=2, help='of the same turns with an emptied engine')
    parser.add_argument('--judged-robots', type=int, default=20, help='whose answers are compared; 1 for a quick look')
    parser.add_argument('--judged-turns', type=int, default=10, help='of each of them')
    parser.add_argument('--judged-tokens', type=int, default=200, help='of the history of each of them, about')
    parser.add_argument('--new-tokens', type=int, default=4, help='of each answer')
    parser.add_argument('--bits', type=int, default=4, choices=(2, 4, 8, 16, 32), help='of an element in our store')
    parser.add_argument('--parts', nargs='+', choices=PARTS, default=list(PARTS), help='after the restart')
    parser.add_argument('--json', action='store_true', help='one JSON object as the last line')
    arguments = parser.parse_args()
    num_timed = arguments.robots if arguments.parts != ['answers'] else 0
    timed = scripts(num_timed, 1, arguments.tokens, seed=1)
    num_judged = arguments.judged_robots if 'answers' in arguments.parts else 0
    judged = scripts(num_judged, arguments.judged_turns, arguments.judged_tokens, seed=2)
    with tempfile.TemporaryDirectory(prefix='kv_agent_ros-restart-') as directory, ExitStack() as servers:
        ours = servers.enter_context(RestartedServer.ours(Path(directory) / 'ours', arguments.bits))
        files = servers.enter_context(RestartedServer.theirs(Path(directory) / 'files'))
        bench = Bench(ours, files, timed, judged, arguments.new_tokens, arguments.rounds)
        rows = run_phases(saving('restart', [bench.restart, *(bench.part(name) for name in arguments.parts)]))
        facts = {'model': 'SmolLM2-135M-Instruct', 'bits': arguments.bits, 'history_tokens': ours.history_tokens}
    if arguments.json:
        print_json(rows, facts)
        return
    print_table('SGLang after kill -9: the next turn of each robot', rows)
    print(save_plot('restart', lambda axes: draw(axes, rows)))


if __name__ == '__main__':
    main()
