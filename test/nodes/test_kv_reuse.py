"""The KV cache as a resource of the robots: reuse over turns, robots and crashes, with the real model in the graph."""

from collections.abc import Callable
from typing import Any

from model_turns import shared_tokens
import pytest
from running_graph import RunningGoal, RunningGraph, poll

from kv_agent_ros.agent.session_store import FileSessions
from kv_agent_ros.errors import Outcome
from kv_agent_ros.kvcache.block import Tier
from kv_agent_ros.srv import GetCacheStats

MODEL_TASK_S = 240.0
CHINESE = '去厨房检查水杯是否倒满，如果满了就倒掉一半，然后返回充电座。'
TO_BEDROOM = 'go to the bedroom, then return to the dock'
TO_KITCHEN = 'go to the kitchen, then return to the dock'


@pytest.fixture(scope='module')
def graph(open_graph: Callable[..., RunningGraph]) -> RunningGraph:
    """Two robots and one model."""
    parameters = {
        'simulator_node': {'realtime_factor': 8.0},
        'inference_node': {'engine': 'local'},
        'planner_node': {'draft_timeout_s': 150.0},
        'agent_node': {'plan_timeout_s': 170.0},
        'kv_cache_node': {'dram_bytes': 512 << 20, 'ssd_bytes': 1 << 30},
    }
    return open_graph(parameters, robots=('robot1', 'robot2'))


@pytest.fixture(scope='module')
def first_task(graph: RunningGraph) -> Any:
    """The first task of the first robot, on a cold cache."""
    return graph.do_task(CHINESE, timeout_s=MODEL_TASK_S)


def turns(result: Any) -> list[Any]:
    """The model turns that were answered; fails when there is none."""
    answered = [turn for turn in result.turns if turn.error_code == Outcome.SUCCESS and turn.usage.prompt_tokens]
    assert answered, result.turns
    return answered


def assert_reused(turn: Any) -> None:
    """Less than a quarter of the prompt was computed."""
    usage = turn.usage
    assert usage.cached_tokens + usage.computed_tokens == usage.prompt_tokens
    assert usage.computed_tokens < 0.25 * usage.prompt_tokens, (turn.purpose, usage)


def succeeded(result: Any) -> None:
    """The task is done."""
    assert Outcome(result.result.error_code) is Outcome.SUCCESS, result.result.error_msg


def test_the_first_turn_is_cold_and_the_later_turns_of_the_session_are_reused(first_task: Any) -> None:
    succeeded(first_task)
    cold, *later = turns(first_task)
    assert cold.usage.cached_tokens == 0
    for turn in later:
        assert_reused(turn)


def test_another_robot_starts_with_the_shared_head_and_with_nothing_more(graph: RunningGraph, first_task: Any) -> None:
    result = graph.do_task(TO_KITCHEN, 'robot2', MODEL_TASK_S)
    succeeded(result)
    first = turns(result)[0].usage
    assert first.cached_tokens >= 0.5 * first.prompt_tokens, first
    assert first.cached_tokens <= shared_tokens('robot1', 'robot2'), first
    said = [message.content for message in FileSessions(graph.state_dir / 'sessions').resume('robot2').messages]
    assert any(TO_KITCHEN in content for content in said)
    assert not any(CHINESE in content or TO_BEDROOM in content for content in said)


def test_killing_the_engine_in_mid_task_costs_no_cached_prefix(graph: RunningGraph, first_task: Any) -> None:
    task = graph.start_task(TO_BEDROOM, timeout_s=MODEL_TASK_S)
    poll(lambda: is_executing(task), MODEL_TASK_S, 'the robot under way')
    graph.graph.kill('inference_node')
    graph.graph.start('inference_node')
    result = task.result(MODEL_TASK_S)
    succeeded(result)
    assert_reused(turns(result)[0])
    poll(lambda: graph.graph.log('inference_node').count('active') == 2, 60.0, 'the engine again')
    again = graph.do_task(TO_KITCHEN, timeout_s=MODEL_TASK_S)
    succeeded(again)
    assert_reused(turns(again)[0])


def test_killing_the_cache_between_turns_brings_the_prefix_back_from_disk(graph: RunningGraph, first_task: Any) -> None:
    poll(lambda: all_on_disk(graph), 30.0, 'all blocks on disk')
    graph.graph.kill('kv_cache_node')
    graph.graph.start('kv_cache_node')
    poll(lambda: graph.answered(GetCacheStats, '/cache_stats'), 60.0, 'the cache again')
    result = graph.do_task(TO_BEDROOM, timeout_s=MODEL_TASK_S)
    succeeded(result)
    assert_reused(turns(result)[0])
    assert tier(graph, Tier.SSD).num_hits > 0


def test_no_lease_is_left_at_the_end(graph: RunningGraph, first_task: Any) -> None:
    poll(lambda: graph.cache().num_leases == 0, 5.0, 'a cache without leases')


def is_executing(task: RunningGoal) -> bool:
    """Whether its feedback has told of a step under way."""
    return any(feedback.phase == 'executing' for feedback in task.feedback)


def tier(graph: RunningGraph, wanted: Tier) -> Any:
    """The books of one tier."""
    return next(usage for usage in graph.cache().tiers if usage.tier == wanted.value)


def all_on_disk(graph: RunningGraph) -> bool:
    """Whether the write-behind has caught up."""
    return bool(tier(graph, Tier.SSD).num_blocks >= tier(graph, Tier.DRAM).num_blocks > 0)
