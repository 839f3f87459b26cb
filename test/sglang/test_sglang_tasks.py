"""A robot in a real ROS graph whose planner asks a real SGLang server."""

from collections.abc import Iterator
import signal
from typing import Any

import pytest

pytest.importorskip('rclpy')

from running_graph import RunningGraph, running, settings
from sglang_process import SglangProcess

from kv_agent_ros.errors import Outcome
from kv_agent_ros.ros.graph import separate_graph
from kv_agent_ros.srv import Generate

pytestmark = [pytest.mark.sglang, pytest.mark.ros]

TASK_S = 240.0
TO_KITCHEN = 'go to the kitchen, then return to the dock'
TO_BEDROOM = 'go to the bedroom, then return to the dock'


@pytest.fixture(scope='module')
def graph(server: SglangProcess, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningGraph]:
    """One robot; its inference node asks the server."""
    parameters = {
        'inference_node': {'engine': 'sglang', 'engine_url': server.url},
        'planner_node': {'draft_timeout_s': 150.0},
        'agent_node': {'plan_timeout_s': 170.0},
    }
    robots = ('robot1',)
    asked = settings(tmp_path_factory.mktemp('graph'), robots, parameters)
    with running(separate_graph(asked), robots, asked.state_dir) as client:
        yield client


def succeeded(result: Any) -> None:
    assert Outcome(result.result.error_code) is Outcome.SUCCESS, result.result.error_msg


def turns(result: Any) -> list[Any]:
    """The turns that the server answered; fails when there is none."""
    answered = [turn for turn in result.turns if turn.error_code == Outcome.SUCCESS and turn.usage.prompt_tokens]
    assert answered, result.turns
    assert {turn.engine for turn in answered} == {'sglang'}
    return answered


def test_the_node_says_what_the_server_can_do(graph: RunningGraph) -> None:
    assert 'SGLang 0.5.23, SmolLM2-135M-Instruct: tree core rust' in graph.graph.log('inference_node')


def test_a_task_is_planned_by_the_server_and_the_next_one_reuses_its_prefix(graph: RunningGraph) -> None:
    first = graph.do_task(TO_KITCHEN, timeout_s=TASK_S)
    succeeded(first)
    second = graph.do_task(TO_BEDROOM, timeout_s=TASK_S)
    succeeded(second)
    assert turns(first)[0].usage.prompt_tokens > 200
    usage = turns(second)[0].usage
    assert usage.cached_tokens > 0.5 * usage.prompt_tokens, usage


def test_a_robot_goes_on_by_its_rules_when_the_server_is_killed(graph: RunningGraph, server: SglangProcess) -> None:
    server.send(signal.SIGKILL)
    result = graph.do_task(TO_KITCHEN, timeout_s=TASK_S)
    succeeded(result)
    assert Outcome.MODEL_UNAVAILABLE in {turn.error_code for turn in result.turns}
    refused = graph.call(Generate, '/generate', timeout_s=10.0)
    assert refused.result.error_code == Outcome.MODEL_UNAVAILABLE
