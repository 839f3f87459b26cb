"""Hundreds of requests at once that are cancelled, late or answered: nothing is left of them."""

from concurrent.futures import ThreadPoolExecutor
import gc
import random
import threading

from batch_engine import SCHEMA, TIMEOUT_S, asked, engine, engine_threads, wait_until
import psutil
import pytest

from kv_agent_ros.deadline import Deadline
from kv_agent_ros.errors import Outcome
from kv_agent_ros.inference.base import Generation
from kv_agent_ros.inference.local_engine import Batching
from kv_agent_ros.inference.local_model import LocalModel


def storm(model: LocalModel, num_requests: int, seed: int) -> list[Generation]:
    """Many requests of all kinds from several threads, half of them cancelled or too late at any moment."""
    batching = Batching(max_batch=4, chunk_tokens=32)
    with engine(model, batching, dram_bytes=4 << 20) as (backend, manager):

        def ask(number: int) -> Generation:
            chance = random.Random(seed * num_requests + number)
            deadline = Deadline(TIMEOUT_S if chance.random() < 0.8 else chance.uniform(0.001, 0.2))
            num_left = chance.choice([0, 1, 2, 5, 10**6, 10**6])
            if num_left == 0:
                timer = threading.Timer(chance.uniform(0, 0.05), deadline.cancel)
                timer.start()

            def listen(text: str) -> None:
                nonlocal num_left
                num_left -= 1
                if num_left == 0:
                    deadline.cancel()

            request = asked(
                f'robot{number % 7}',
                'word ' * chance.randrange(1, 60),
                max_new_tokens=chance.randrange(1, 30),
                priority=chance.choice([0, 0, 5]),
                temperature=chance.choice([0.0, 0.8]),
                seed=number,
                json_schema=chance.choice(['', SCHEMA]),
            )
            return backend.generate(request, deadline, listen)

        with ThreadPoolExecutor(10) as pool:
            answers = list(pool.map(ask, range(num_requests), timeout=TIMEOUT_S * 5))
        stats = manager.stats()
        assert stats.num_leases == 0
        assert all(usage.used_bytes <= usage.capacity_bytes for usage in stats.tiers)
    wait_until(lambda: not engine_threads())
    return answers


def check_storm(answers: list[Generation], num_requests: int) -> None:
    outcomes = [answer.outcome for answer in answers]
    assert len(outcomes) == num_requests
    assert {Outcome.SUCCESS, Outcome.CANCELED} <= set(outcomes) <= {Outcome.SUCCESS, Outcome.CANCELED, Outcome.TIMEOUT}
    assert outcomes.count(Outcome.SUCCESS) > num_requests // 4


def test_storm_of_cancels_leaks_neither_leases_nor_threads(tiny_model: LocalModel) -> None:
    check_storm(storm(tiny_model, 300, seed=1), 300)


@pytest.mark.slow
def test_2000_requests_with_random_cancels_leak_no_memory(tiny_model: LocalModel) -> None:
    check_storm(storm(tiny_model, 500, seed=1), 500)
    gc.collect()
    process = psutil.Process()
    before_bytes, num_files = process.memory_info().rss, process.num_fds()
    check_storm(storm(tiny_model, 2000, seed=2), 2000)
    gc.collect()
    assert process.memory_info().rss - before_bytes < 32 << 20
    assert process.num_fds() <= num_files + 4
