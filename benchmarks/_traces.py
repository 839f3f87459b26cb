"""Request streams as block ids: read from files, or generated from a stated agent workload.

The format is one JSON object a line with `hash_ids`, ids that are equal only for equal blocks after equal prefixes, and
perhaps `session`. Also the two limits of any cache: endless memory, and Belady's clairvoyance.
"""

from collections.abc import Sequence
from dataclasses import dataclass
import heapq
import itertools
import json
from pathlib import Path
import random

NO_SESSION = ''


@dataclass(frozen=True, kw_only=True, slots=True)
class Trace:
    """Requests in order of time; `sessions` has an entry for each, NO_SESSION where the file names none."""

    name: str
    requests: tuple[tuple[int, ...], ...]
    sessions: tuple[str, ...]

    @property
    def num_blocks(self) -> int:
        """Of all requests, repetitions included."""
        return sum(map(len, self.requests))

    @property
    def num_unique(self) -> int:
        return len({block for request in self.requests for block in request})

    @property
    def has_sessions(self) -> bool:
        return any(self.sessions)


def read_trace(path: Path) -> Trace:
    """Raises ValueError for a line that is not of the format."""
    requests, sessions = [], []
    for number, line in enumerate(path.read_text().splitlines(), 1):
        if not line.strip():
            continue
        try:
            fields = json.loads(line)
            requests.append(tuple(int(block) for block in fields['hash_ids']))
            sessions.append(str(fields.get('session', NO_SESSION)))
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise ValueError(f'{path}:{number}: expected a JSON object with "hash_ids", got {line[:80]!r}') from error
    return Trace(name=path.stem, requests=tuple(requests), sessions=tuple(sessions))


def agent_trace(seed: int = 0, num_requests: int = 6000, num_live: int = 40) -> Trace:
    """`num_live` sessions take turns at random under one of three system prompts of 12 blocks.

    Each turn adds 1 to 6 blocks; a session ends after 15 turns in the mean and another begins.
    """
    chance = random.Random(seed)
    ids = itertools.count(1000)
    live: list[tuple[str, list[int]]] = []
    requests, sessions = [], []
    for _ in range(num_requests):
        while len(live) < num_live:
            head = 100 * chance.randrange(3)
            live.append((f's{next(ids)}', list(range(head, head + 12))))
        session, blocks = chance.choice(live)
        blocks += [next(ids) for _ in range(chance.randint(1, 6))]
        requests.append(tuple(blocks))
        sessions.append(session)
        if chance.random() < 1 / 15:
            live.remove((session, blocks))
    return Trace(name='generated agents', requests=tuple(requests), sessions=tuple(sessions))


def infinite_hit_rate(trace: Trace) -> float:
    """With room for everything."""
    return (trace.num_blocks - trace.num_unique) / max(1, trace.num_blocks)


def belady_hit_rate(trace: Trace, capacity: int) -> float:
    """Of a cache that knows the future and need not keep what passes: no policy can do better (Belady, 1966)."""
    next_uses = _next_uses(trace.requests)
    cached: dict[int, int] = {}
    farthest: list[tuple[int, int]] = []
    num_hits = 0
    for block, next_use in next_uses:
        num_hits += cached.pop(block, 0) > 0
        if next_use:
            cached[block] = next_use
            heapq.heappush(farthest, (-next_use, block))
        while len(cached) > capacity:
            use, victim = heapq.heappop(farthest)
            if cached.get(victim) == -use:
                del cached[victim]
    return num_hits / max(1, len(next_uses))


def _next_uses(requests: Sequence[Sequence[int]]) -> list[tuple[int, int]]:
    """Every block of every request with the number, from 1 on, of the request that uses it next; 0 for none."""
    following: dict[int, int] = {}
    found = []
    for number in range(len(requests), 0, -1):
        for block in reversed(requests[number - 1]):
            found.append((block, following.get(block, 0)))
            following[block] = number
    found.reverse()
    return found
