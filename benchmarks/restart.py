"""SGLang is killed and started again: how long each robot's next turn takes, from our store and from SGLang's files.

Every robot has a history of its own. It is asked once, the server gets kill -9, and each robot goes on: the time to the
first token, the bytes on disk, and whether the greedy answers are those of a server that computes everything.
"""

import argparse
from collections.abc import Sequence
from dataclasses import dataclass, field
import json
from pathlib import Path
import random
import statistics
import sys
import tempfile

from matplotlib.axes import Axes

from benchmarks._reporting import Row, print_json, print_table, save_plot
from benchmarks._sglang_server import Answer, SglangServer, running, settle

PLACES = ('kitchen', 'bedroom', 'hallway', 'office', 'balcony', 'garage', 'pantry')
THINGS = ('cup', 'plate', 'book', 'bottle', 'towel', 'lamp', 'spoon', 'phone')
SERVER = ('--max-total-tokens', '8192', '--max-running-requests', '2')
HICACHE = ('--enable-hierarchical-cache', '--hicache-ratio', '1.5', '--page-size', '16')
HICACHE += ('--hicache-write-policy', 'write_through', '--hicache-storage-prefetch-policy', 'wait_complete')
HICACHE += (
    '--hicache-io-backend',
    'direct',
    '--hicache-mem-layout',
    'layer_first',
    '--hicache-storage-backend',
    'file',
)
HICACHE += ('--hicache-storage-backend-extra-config', json.dumps({'prefetch_threshold': 32}))
SENTENCE_TOKENS = 14


@dataclass(frozen=True, kw_only=True, slots=True)
class Script:
    """What one robot is told; its answers are written beforehand, so that all servers are asked the same."""

    history: str
    turns: tuple[str, ...]

    def prompt(self, turn: int) -> str:
        """Everything up to the question of this turn."""
        return self.history + ''.join(self.turns[: turn + 1])


@dataclass(kw_only=True, slots=True)
class Played:
    """What one kind of server did."""

    bytes_on_disk: int = 0
    history_tokens: int = 0
    turns: list[list[Answer]] = field(default_factory=list)  # by robot

    def ttft_s(self, turn: int) -> float:
        """Median over the robots."""
        return statistics.median(answers[turn].ttft_s for answers in self.turns)

    def stored_share(self) -> float:
        """Share of the first turn's prompt that came from storage."""
        first = [answers[0] for answers in self.turns]
        return sum(answer.storage_tokens for answer in first) / sum(answer.prompt_tokens for answer in first)


def scripts(num_robots: int, num_turns: int, num_tokens: int) -> list[Script]:
    """Histories of about `num_tokens`, each robot's own."""
    chance = random.Random(7)

    def sentence() -> str:
        place, number = chance.choice(PLACES), chance.randrange(30)
        return f'The {chance.choice(THINGS)} {number} is in the {place} on shelf {chance.randrange(9)}.'

    made = []
    for robot in range(num_robots):
        seen = [sentence() for _ in range(max(1, num_tokens // SENTENCE_TOKENS))]
        turns = tuple(f' {sentence()}\nQuestion: what is in the {place}?\nAnswer:' for place in PLACES * 30)
        made.append(Script(history=f'You are robot {robot}. ' + ' '.join(seen), turns=turns[:num_turns]))
    return made


def play_restart(server: SglangServer, store: Path, told: Sequence[Script], new_tokens: int) -> tuple[Played, Played]:
    """Every robot once, kill -9, then all turns of every robot; and beside each the same turns with nothing cached."""
    played, cold = Played(), Played()
    with running(server):
        for number, script in enumerate(told):
            say(f'  history of robot {number + 1} of {len(told)}')
            played.history_tokens += server.ask(script.history, tenant='home', max_new_tokens=1).prompt_tokens
        played.bytes_on_disk = settle(store)
        server.kill()
        say('  kill -9; starting again …')
        server.start()
        for number, script in enumerate(told):
            say(f'  next turns of robot {number + 1} of {len(told)}')
            played.turns.append(play_turns(server, script, 'home', new_tokens))
            settle(store)  # what is being written must not disturb what is measured
            cold.turns.append(play_turns(server, script, f'nobody {number}', new_tokens))
            settle(store)
    return played, cold


def play_turns(server: SglangServer, script: Script, tenant: str, new_tokens: int) -> list[Answer]:
    """All turns of one robot."""
    return [
        server.ask(script.prompt(turn), tenant=tenant, max_new_tokens=new_tokens) for turn in range(len(script.turns))
    ]


def same_share(one: Played, other: Played) -> float:
    """Share of the turns with the same answer, to the letter."""
    pairs = [
        (mine.text, theirs.text)
        for robot, others in zip(one.turns, other.turns, strict=True)
        for mine, theirs in zip(robot, others, strict=True)
    ]
    return sum(mine == theirs for mine, theirs in pairs) / len(pairs)


def rows_of(ours: Played, files: Played, cold: Played, their_cold: Played) -> list[Row]:
    """Ratios above 1 are better for us."""
    num_robots = len(ours.turns)
    num_turns = sum(len(turns) for turns in ours.turns)
    on_device_s = ours.ttft_s(1) if len(ours.turns[0]) > 1 else 0.0
    next_s, their_s, cold_s = ours.ttft_s(0), files.ttft_s(0), cold.ttft_s(0)
    same, their_same = same_share(ours, cold), same_share(files, their_cold)

    def row(name: str, mine: float, peer: float, peer_name: str, limit: float, unit: str, n: int = num_robots) -> Row:
        ratio = peer / mine if mine else float('inf')
        return Row(name=name, ours=mine, peer=peer, peer_name=peer_name, limit=limit, ratio=ratio, unit=unit, n=n)

    same_row = Row(
        name='same_greedy_answers',
        ours=same,
        peer=their_same,
        peer_name='SGLang file backend',
        limit=1.0,
        ratio=same / their_same if their_same else float('inf'),
        unit='share of turns',
        n=num_turns,
    )
    stored = Row(
        name='prompt_from_storage',
        ours=ours.stored_share(),
        peer=files.stored_share(),
        peer_name='SGLang file backend',
        limit=1.0,
        ratio=ours.stored_share() / max(files.stored_share(), 1e-9),
        unit='share of tokens',
        n=num_robots,
    )
    return [
        row('ttft_next_turn', next_s, their_s, 'SGLang file backend', on_device_s, 's'),
        row('ttft_next_turn_of_cold', next_s, cold_s, 'nothing cached, same server', on_device_s, 's'),
        row('cold_next_turn_beside_it', cold_s, their_cold.ttft_s(0), 'SGLang file backend', 0.0, 's'),
        row('bytes_on_disk', ours.bytes_on_disk, files.bytes_on_disk, 'SGLang file backend', 0.0, 'B'),
        same_row,
        stored,
    ]


def draw(axes: Axes, rows: Sequence[Row]) -> None:
    """Bars of the time to the first token."""
    seconds = {row.name: row for row in rows}
    next_turn, of_cold = seconds['ttft_next_turn'], seconds['ttft_next_turn_of_cold']
    names = ('our store', 'file backend', 'nothing cached')
    axes.bar(names, (next_turn.ours, next_turn.peer, of_cold.peer))
    axes.set(ylabel="time to the first token of a robot's next turn (s)", title='SGLang after kill -9')


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def main() -> None:
    """Measure, then print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument('--robots', type=int, default=6)
    parser.add_argument('--turns', type=int, default=2, help='of each robot after the restart; 200 in all: 20 and 10')
    parser.add_argument('--tokens', type=int, default=800, help="of each robot's history, about")
    parser.add_argument('--new-tokens', type=int, default=12, help='of each answer')
    parser.add_argument('--bits', type=int, default=4, choices=(2, 4, 8, 16, 32), help='of an element in our store')
    parser.add_argument('--json', action='store_true', help='one JSON object as the last line')
    arguments = parser.parse_args()
    told = scripts(arguments.robots, arguments.turns, arguments.tokens)
    with tempfile.TemporaryDirectory(prefix='kv_agent_ros-restart-') as directory:
        root = Path(directory)
        say('our store …')
        mine = ('--l3', str(root / 'ours'), '--l3-bits', str(arguments.bits))
        ours, cold = play_restart(SglangServer(root, mine, SERVER, {}), root / 'ours', told, arguments.new_tokens)
        say("SGLang's file backend …")
        settings = {'SGLANG_HICACHE_FILE_BACKEND_STORAGE_DIR': str(root / 'file')}
        their_server = SglangServer(root, (), (*SERVER, *HICACHE), settings)
        files, their_cold = play_restart(their_server, root / 'file', told, arguments.new_tokens)
    rows = rows_of(ours, files, cold, their_cold)
    facts = {'model': 'SmolLM2-135M-Instruct', 'bits': arguments.bits, 'history_tokens': ours.history_tokens}
    if arguments.json:
        print_json(rows, facts)
        return
    print_table('SGLang after kill -9: the next turn of each robot', rows)
    print(save_plot('restart', lambda axes: draw(axes, rows)))


if __name__ == '__main__':
    main()
