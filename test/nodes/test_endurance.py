"""Twenty tasks in a row: no process, handle, thread, endpoint or lease grows with the number of tasks."""

from collections.abc import Callable, Mapping
import os
from pathlib import Path

import pytest
from running_graph import RunningGraph, poll

from kv_agent_ros.errors import Outcome
from kv_agent_ros.ros.runtime import NUM_THREADS

PAGE_BYTES = os.sysconf('SC_PAGE_SIZE')
NUM_TASKS = 20
WARM_UP = 3
MAX_GROWTH_BYTES = 24 << 20  # of 17 tasks, over everything that an interpreter does by itself
MAX_MORE_HANDLES = 3
MAX_MORE_THREADS = NUM_THREADS  # an executor starts its threads when it first has use for them
INSTRUCTIONS = (
    'go to the kitchen, then return to the dock',
    '去厨房检查水杯是否倒满，如果满了就倒掉一半，然后返回充电座。',
    'go to the living room, find the book, then return to the dock',
)


@pytest.fixture(scope='module')
def graph(open_graph: Callable[..., RunningGraph]) -> RunningGraph:
    """One robot, as fast as possible, planned by rules."""
    return open_graph()


def test_twenty_tasks_in_a_row_leave_everything_as_small_as_three_did(graph: RunningGraph) -> None:
    do_tasks(graph, WARM_UP)
    memory, handles, threads, clients = books(graph)
    do_tasks(graph, NUM_TASKS - WARM_UP)
    more_memory, more_handles, more_threads, more_clients = books(graph)
    print({label: round((more_memory[label] - memory[label]) / (1 << 20), 1) for label in memory})
    assert grown(memory, more_memory, MAX_GROWTH_BYTES) == {}
    assert grown(handles, more_handles, MAX_MORE_HANDLES) == {}
    assert grown(threads, more_threads, MAX_MORE_THREADS) == {}
    assert more_clients == clients
    poll(lambda: graph.cache().num_leases == 0, 5.0, 'a cache without leases')
    assert graph.graph.dead() == []
    assert {label for label in memory if 'Traceback' in graph.graph.log(label)} == set()


def do_tasks(graph: RunningGraph, count: int) -> None:
    """So many tasks, each of which must succeed."""
    for number in range(count):
        result = graph.do_task(INSTRUCTIONS[number % len(INSTRUCTIONS)])
        assert Outcome(result.result.error_code) is Outcome.SUCCESS, f'task {number}: {result.result.error_msg}'


def books(graph: RunningGraph) -> tuple[dict[str, int], dict[str, int], dict[str, int], dict[str, int]]:
    """By process: resident bytes, open handles, threads; by service: its clients."""
    processes = {label: Path('/proc') / str(graph.graph.pid(label)) for label in graph.graph.labels}
    services = [name for name, _ in graph.endpoints.node.get_service_names_and_types()]
    return (
        {label: int((process / 'statm').read_text().split()[1]) * PAGE_BYTES for label, process in processes.items()},
        {label: len(list((process / 'fd').iterdir())) for label, process in processes.items()},
        {label: len(list((process / 'task').iterdir())) for label, process in processes.items()},
        {name: graph.endpoints.node.count_clients(name) for name in services},
    )


def grown(before: Mapping[str, int], after: Mapping[str, int], bound: int) -> dict[str, int]:
    """By how much what grew by more than the bound has grown."""
    return {label: after[label] - before[label] for label in before if after[label] - before[label] > bound}
