"""The life of the processes: all nodes in one, and each alone; started, active, ended by a signal, without a trace."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
import signal
import subprocess
import sys
import time

import psutil
import pytest
from running_graph import RunningGraph, own_domain, poll, settings

from kv_agent_ros.errors import Outcome
from kv_agent_ros.ros.graph import ProcessGraph, composed_graph, separate_graph

END_S = 5.0
START_S = 120.0
ENGLISH = 'Go to the kitchen, check whether the cup is full, if it is pour out half, then return to the charging dock.'
SHARED = (
    'simulator_node',
    'world_model_node',
    'kv_cache_node',
    'inference_node',
    'memory_node',
    'planner_node',
    'inspector_node',
)
STARTER = """
from pathlib import Path
import sys, time
from kv_agent_ros.ros.graph import NodeProcess, ProcessGraph

labels = ('world_model_node', 'memory_node')
with ProcessGraph([NodeProcess(executable=label) for label in labels], Path(sys.argv[1])) as graph:
    print(*map(graph.pid, labels), flush=True)
    time.sleep(60)
"""
LABELS = (*SHARED, 'robot1/perception_node', 'robot1/harness_node', 'robot1/agent_node')


def test_one_process_does_the_reports_task_in_english_and_ends_cleanly(
    open_graph: Callable[..., RunningGraph],
) -> None:
    graph = open_graph(compose=composed_graph)
    result = graph.do_task(ENGLISH)
    assert Outcome(result.result.error_code) is Outcome.SUCCESS, result.result.error_msg
    assert graph.fill_level('cup1') == pytest.approx(0.5, abs=0.05)
    assert graph.robot().is_docked
    assert_ends_cleanly(graph.graph, 'bringup', signal.SIGINT)


@pytest.mark.parametrize('number', [signal.SIGINT, signal.SIGTERM])
def test_every_node_alone_becomes_active_and_ends_cleanly_by_a_signal(tmp_path: Path, number: signal.Signals) -> None:
    with ExitStack() as stack:
        graphs = {label: stack.enter_context(alone(tmp_path, label)) for label in LABELS}
        for label, graph in graphs.items():
            poll(lambda label=label, graph=graph: is_active(graph, label), START_S, f'{label} active')
        for label, graph in graphs.items():
            assert_ends_cleanly(graph, label, number)


def test_a_graph_whose_starter_is_killed_leaves_no_node_behind(tmp_path: Path) -> None:
    starter = subprocess.Popen([sys.executable, '-c', STARTER, str(tmp_path)], stdout=subprocess.PIPE, text=True)
    try:
        assert starter.stdout is not None
        nodes = [psutil.Process(int(pid)) for pid in starter.stdout.readline().split()]
    finally:
        starter.kill()
        starter.communicate(timeout=END_S)

    assert len(nodes) == 2
    poll(lambda: all(has_ended(node) for node in nodes), 2 * END_S, 'an end of both nodes')


@pytest.mark.parametrize('label', ['memory_node', 'robot1/harness_node', 'inference_node'])
@pytest.mark.parametrize('delay_s', [0.2, 1.0])
def test_a_signal_during_the_start_ends_a_node_cleanly(tmp_path: Path, label: str, delay_s: float) -> None:
    with alone(tmp_path, label) as graph:
        ends_at = time.monotonic() + delay_s
        poll(lambda: time.monotonic() > ends_at, delay_s + 5.0, 'a moment of starting')
        assert_ends_cleanly(graph, label, signal.SIGINT)


def has_ended(process: psutil.Process) -> bool:
    try:
        return process.status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


@contextmanager
def alone(state_dir: Path, label: str) -> Iterator[ProcessGraph]:
    """One process of the separate graph, in a domain of its own."""
    processes = separate_graph(settings(state_dir, ('robot1',)))
    wanted = [process for process in processes if process.label == label]
    with own_domain(), ProcessGraph(wanted, state_dir / 'log') as graph:
        yield graph


def is_active(graph: ProcessGraph, label: str) -> bool:
    """Whether the node says so; fails when its process has ended."""
    assert label not in graph.dead(), graph.log(label)
    return '[INFO]' in graph.log(label) and 'active' in graph.log(label)


def assert_ends_cleanly(graph: ProcessGraph, label: str, number: signal.Signals) -> None:
    """Exit code 0 in time, and no traceback in the log."""
    begun_s = time.monotonic()
    try:
        code = graph.end(label, number)
    except subprocess.TimeoutExpired:
        pytest.fail(
            f'{label}: expected its end within {END_S} s of {number.name}; it prints\n{graph.log(label)[-2000:]}'
        )
    took_s = time.monotonic() - begun_s
    assert code == 0, f'{label}: {graph.log(label)[-2000:]}'
    assert 'Traceback' not in graph.log(label), graph.log(label)[-3000:]
    assert took_s < END_S, f'{label} took {took_s:.1f} s'
