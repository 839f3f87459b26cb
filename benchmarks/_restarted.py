"""SGLang servers whose robots' histories are on disk: killed, started again, asked in turns. For benchmarks/restart."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
import json
import os
from pathlib import Path
import random
import sys

from benchmarks._sglang_server import Answer, SglangServer, bytes_on_disk, settle

PLACES = ('kitchen', 'bedroom', 'hallway', 'office', 'balcony', 'garage', 'pantry')
THINGS = ('cup', 'plate', 'book', 'bottle', 'towel', 'lamp', 'spoon', 'phone')
SENTENCE_TOKENS = 14
TENANT = 'home'
SERVER = ('--max-total-tokens', '8192', '--max-running-requests', '4')
FILE_BACKEND = (
    '--enable-hierarchical-cache',
    *('--hicache-ratio', '1.5'),
    *('--page-size', '16'),
    *('--hicache-write-policy', 'write_through'),
    *('--hicache-storage-prefetch-policy', 'wait_complete'),
    *('--hicache-io-backend', 'direct'),
    *('--hicache-mem-layout', 'layer_first'),
    *('--hicache-storage-backend', 'file'),
    *('--hicache-storage-backend-extra-config', json.dumps({'prefetch_threshold': 32})),
)  # what scripts/sglang start --l3 sets for ours, with another backend


@dataclass(frozen=True, kw_only=True, slots=True)
class Script:
    """What one robot is told; its answers are written beforehand, so that all servers are asked the same."""

    history: str
    turns: tuple[str, ...]

    def prompt(self, turn: int) -> str:
        """Everything up to the question of this turn."""
        return self.history + ''.join(self.turns[: turn + 1])


@dataclass(frozen=True, kw_only=True, slots=True)
class Fact:
    """Where a thing is."""

    thing: str
    place: str
    shelf: int

    @classmethod
    def any(cls, chance: random.Random) -> 'Fact':
        """One of some ten thousand."""
        thing = f'{chance.choice(THINGS)} {chance.randrange(30)}'
        return cls(thing=thing, place=chance.choice(PLACES), shelf=chance.randrange(9))

    def __str__(self) -> str:
        return f'The {self.thing} is in the {self.place} on shelf {self.shelf}.'

    @property
    def question(self) -> str:
        """Whose answer is the fact's place."""
        return f'Question: where is the {self.thing}?\nAnswer: The {self.thing} is in the'


def scripts(num_robots: int, num_turns: int, num_tokens: int, seed: int) -> list[Script]:
    """Histories of about `num_tokens`, each robot's own. A turn tells something and asks for what was told before."""
    chance = random.Random(seed)
    made = []
    for robot in range(num_robots):
        facts = [Fact.any(chance) for _ in range(max(1, num_tokens // SENTENCE_TOKENS))]
        turns = tuple(f' {Fact.any(chance)}\n{chance.choice(facts).question}' for _ in range(num_turns))
        made.append(Script(history=f'You are robot {seed}-{robot}. ' + ' '.join(map(str, facts)), turns=turns))
    return made


class RestartedServer:
    """One server and the folder with its pages; paused whenever it is not `awake`."""

    def __init__(self, name: str, server: SglangServer, store: Path) -> None:
        self.name = name
        self.history_tokens = 0
        self._server, self._store = server, store

    @classmethod
    def ours(cls, root: Path, bits: int) -> 'RestartedServer':
        """With our store."""
        options = ('--l3', str(root / 'pages'), '--l3-bits', str(bits))
        return cls('our store', SglangServer(root, options, SERVER, {}), root / 'pages')

    @classmethod
    def theirs(cls, root: Path) -> 'RestartedServer':
        """With SGLang's own files."""
        settings = {'SGLANG_HICACHE_FILE_BACKEND_STORAGE_DIR': str(root / 'pages')}
        return cls('SGLang files', SglangServer(root, (), (*SERVER, *FILE_BACKEND), settings), root / 'pages')

    def __enter__(self) -> 'RestartedServer':
        return self

    def __exit__(self, *ending: object) -> None:
        self.stop()

    def start(self) -> None:
        """Start, then pause. Raises NoSglangError."""
        say(f'{self.name}: starts …')
        took_s = self._server.start()
        say(f'{self.name}: answers after {took_s:.0f} s')
        self._server.pause()

    def hear(self, told: Sequence[Script]) -> None:
        """What robots said before; returns when it is on disk."""
        with self.awake():
            for number, script in enumerate(told):
                say(f'{self.name}: history {number + 1} of {len(told)}')
                self.history_tokens += self.ask(script.history, TENANT, 1).prompt_tokens
            self.settle()

    def kill_and_start(self) -> None:
        """kill -9, and start again."""
        self._server.kill()
        self.start()

    def bytes_on_disk(self) -> int:
        """What its files occupy."""
        return bytes_on_disk(self._store)

    @contextmanager
    def awake(self) -> Iterator['RestartedServer']:
        """While it may work."""
        self._server.resume()
        try:
            yield self
        finally:
            self._server.pause()

    def ask(self, prompt: str, tenant: str, max_new_tokens: int) -> Answer:
        """The greedy answer."""
        return self._server.ask(prompt, tenant=tenant, max_new_tokens=max_new_tokens)

    def settle(self) -> None:
        """Wait until everything is written, so that it disturbs nothing that is measured later."""
        settle(self._store)

    def forget(self) -> None:
        """Empty its memory; what is on disk stays."""
        self._server.flush()

    def empty_page_cache(self) -> None:
        """Let the system forget what it has of the files in memory, as after a cold start of the machine."""
        os.sync()
        for path in [path for path in self._store.rglob('*') if path.is_file()]:
            descriptor = os.open(path, os.O_RDONLY)
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
            os.close(descriptor)

    def stop(self) -> None:
        """End it; idempotent."""
        self._server.stop()


def say(text: str) -> None:
    """Progress."""
    print(text, file=sys.stderr, flush=True)
