"""Starts the graph, gives the robot its task, shows what happens, and ends everything that it started."""

from collections.abc import Sequence
import shutil
import signal
import sys
from types import FrameType

from rich.console import Console

from kv_agent_ros.build.home import world_path
from kv_agent_ros.deadline import Deadline
from kv_agent_ros.demo.client import DemoClient, demo_client, wait_until_ready
from kv_agent_ros.demo.options import DemoOptions, read_options
from kv_agent_ros.demo.picture import draw
from kv_agent_ros.demo.report import Facts, as_json, compare_first_token
from kv_agent_ros.demo.view import View
from kv_agent_ros.errors import Outcome, UnreachableError
from kv_agent_ros.ros.graph import GraphSettings, ProcessGraph, composed_graph, separate_graph
from kv_agent_ros.world.map_file import load_furniture

START_S = 180.0
TASK_S = 600.0


class Interrupted(Exception):
    """Ctrl-C."""


def main(arguments: Sequence[str]) -> int:
    """0 = the task succeeded or the demonstration was ended by Ctrl-C, 1 = it did not."""
    options = read_options(arguments)
    console = Console(no_color=options.is_headless, highlight=False, width=None if sys.stdout.isatty() else 140)
    deadline = Deadline(TASK_S)

    def interrupt(number: int, frame: FrameType | None) -> None:
        deadline.cancel()
        raise Interrupted

    signal.signal(signal.SIGINT, interrupt)
    signal.signal(signal.SIGTERM, interrupt)
    try:
        return run(options, View(console), deadline)
    except Interrupted:
        console.print('ended by request')
        return 0
    except UnreachableError as error:
        console.print(f'the demonstration failed: {error}', style='red')
        return 1


def run(options: DemoOptions, view: View, deadline: Deadline) -> int:
    """One run; everything that it starts is ended when it leaves."""
    if options.is_fresh:
        shutil.rmtree(options.state_dir, ignore_errors=True)
    options.state_dir.mkdir(parents=True, exist_ok=True)
    settings = GraphSettings(robots=(options.robot,), state_dir=options.state_dir, parameters=options.parameters())
    processes = composed_graph(settings) if options.is_composed else separate_graph(settings)
    view.open(options.instruction, options.robot, f'engine {options.engine}')
    with ProcessGraph(processes, options.state_dir / 'log') as graph:
        try:
            facts = _do_task(options, view, deadline, graph)
        except UnreachableError:
            for label in graph.dead():
                view.line(f'--- {label}:\n{graph.log(label)[-3000:]}')
            raise
    furniture = load_furniture(world_path(options.world))
    draw(facts.truth, furniture, f'{options.robot}: {facts.outcome.name}', options.picture)
    log, key = options.state_dir / 'audit' / options.robot, options.audit_key
    verify_command = f'kv_agent audit verify {log} --key {key}'
    view.close(facts, compare_first_token(facts, options.state_dir), str(options.picture), verify_command)
    if options.is_json:
        print(as_json(facts), flush=True)
    return 0 if facts.outcome is Outcome.SUCCESS else 1


def _do_task(options: DemoOptions, view: View, deadline: Deadline, graph: ProcessGraph) -> Facts:
    with demo_client(options.robot) as client:
        _await_graph(client, view, graph)
        with view.working():
            result = client.execute(options.instruction, TASK_S, deadline, view.feedback)
        return Facts(result=result, truth=client.truth(), audit=client.audit())


def _await_graph(client: DemoClient, view: View, graph: ProcessGraph) -> None:
    last = ''
    for waiting in wait_until_ready(client, graph.dead, START_S):
        if waiting != last:
            last = waiting
            view.line(f'  [dim]starting: waiting for {waiting}[/]')
    view.line('  [dim]the graph is up[/]')
