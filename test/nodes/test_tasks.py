"""Tasks over a real graph, one process a node: planned by rules, the simulator as fast as possible."""

from collections.abc import Callable

import pytest
from running_graph import RunningGraph

from kv_agent_ros.errors import Outcome

CHINESE = '去厨房检查水杯是否倒满，如果满了就倒掉一半，然后返回充电座。'
ENGLISH = 'Go to the kitchen, check whether the cup is full, if it is pour out half, then return to the charging dock.'


@pytest.fixture(scope='module')
def graph(open_graph: Callable[..., RunningGraph]) -> RunningGraph:
    """One robot."""
    return open_graph()


def test_the_reports_task_in_chinese_leaves_half_a_cup_and_a_docked_robot(graph: RunningGraph) -> None:
    result = graph.do_task(CHINESE)
    assert Outcome(result.result.error_code) is Outcome.SUCCESS, result.result.error_msg
    assert graph.fill_level('cup1') == pytest.approx(0.5, abs=0.05)
    assert graph.robot().is_docked


def test_a_cup_that_is_not_full_stays_as_it_is(graph: RunningGraph) -> None:
    result = graph.do_task(ENGLISH)  # half of it was poured out before
    assert Outcome(result.result.error_code) is Outcome.SUCCESS, result.result.error_msg
    assert graph.fill_level('cup1') == pytest.approx(0.5, abs=0.05)
    assert graph.robot().is_docked
