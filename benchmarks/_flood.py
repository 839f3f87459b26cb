"""Thousands of requests with random cancels against one server on loopback: what is left behind afterwards."""

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
import gc
import random
import threading

import psutil

from kv_agent_ros.deadline import Deadline
from kv_agent_ros.errors import Outcome
from kv_agent_ros.inference.base import GenerationRequest, InferenceBackend, Message, Role
from kv_agent_ros.kvcache.block import SessionKey

SETTLE_S = 10.0
TIMEOUT_S = 120.0
EXPECTED = {Outcome.SUCCESS, Outcome.CANCELED, Outcome.TIMEOUT}


@dataclass(frozen=True, kw_only=True, slots=True)
class Residue:
    """What this process holds."""

    num_threads: int
    num_files: int  # open descriptors, sockets among them
    rss_bytes: int

    @classmethod
    def now(cls) -> 'Residue':
        """After everything that can be let go is let go."""
        gc.collect()
        process = psutil.Process()
        return cls(
            num_threads=threading.active_count(), num_files=process.num_fds(), rss_bytes=process.memory_info().rss
        )


def flood(backend: InferenceBackend, num_requests: int, num_robots: int, chance: random.Random) -> dict[Outcome, int]:
    """Ask from some robots at once; a third is cancelled at a random word, a third has hardly any time."""
    plans = [(number, chance.choice(['whole', 'cancel', 'late']), chance.random()) for number in range(num_requests)]

    def ask(plan: tuple[int, str, float]) -> Outcome:
        number, ending, share = plan
        deadline = Deadline(share * 0.05 + 1e-6 if ending == 'late' else TIMEOUT_S)
        pieces: list[str] = []

        def listen(piece: str) -> None:
            pieces.append(piece)
            if ending == 'cancel' and len(pieces) > share * 10:
                deadline.cancel()

        answer = backend.generate(request_of(number), deadline, listen)
        assert answer.text == ''.join(pieces), (answer.text, pieces)
        return answer.outcome

    with ThreadPoolExecutor(max_workers=num_robots) as pool:
        outcomes = list(pool.map(ask, plans))
    assert set(outcomes) <= EXPECTED, outcomes
    return {outcome: outcomes.count(outcome) for outcome in EXPECTED}


def request_of(number: int) -> GenerationRequest:
    """A short request of one of some robots, which share a head."""
    return GenerationRequest(
        session=SessionKey(robot_id=f'robot{number % 8}', session_id='s'),
        messages=(
            Message(role=Role.SYSTEM, content='Plan for a robot. ' * 16),
            Message(role=Role.USER, content=f'Task {number % 64}'),
        ),
        max_new_tokens=12,
    )


def settled(before: Residue) -> Residue:
    """What is left when threads and sockets had some seconds to end."""
    deadline = Deadline(SETTLE_S)
    left = Residue.now()
    while (left.num_threads > before.num_threads or left.num_files > before.num_files) and not deadline.wait(0.1):
        left = Residue.now()
    return left
