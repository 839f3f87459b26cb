"""Graphs of real processes, one a module."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest
from running_graph import RunningGraph, running, settings

from kv_agent_ros.ros.graph import GraphSettings, separate_graph


@pytest.fixture(scope='module')
def open_graph(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[..., RunningGraph]]:
    """Starts graphs, one process a node; ends them with the module."""
    with ExitStack() as graphs:

        def make(*layers: Any, robots: tuple[str, ...] = ('robot1',), compose: Any = separate_graph) -> RunningGraph:
            state_dir = tmp_path_factory.mktemp('graph')
            asked: GraphSettings = settings(state_dir, robots, *layers)
            return graphs.enter_context(running(compose(asked), robots, state_dir))

        yield make
