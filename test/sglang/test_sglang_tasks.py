"""A robot in a real ROS graph and the real SGLang server its planner asks: mirrored, killed, told of sessions."""

from collections.abc import Iterator
import re
from typing import Any

import pytest

pytest.importorskip('rclpy')

from running_graph import RunningGraph, poll, running, settings
from sglang_process import SglangProcess

from kv_agent_ros.errors import Outcome
from kv_agent_ros.inference.session_name import session_name
from kv_agent_ros.kvcache.base import PrefetchPolicy
from kv_agent_ros.ros.conversions.kv import session_from_msg
from kv_agent_ros.ros.graph import separate_graph
from kv_agent_ros.srv import Generate, InspectInfra, PrefetchPrefix, ReleaseSession

pytestmark = [pytest.mark.sglang, pytest.mark.ros]

TASK_S, SOON_S = 240.0, 30.0
PAGE_TOKENS = 16
WITH_REFERENCES = ('--enable-session-radix-cache', '--page-size', str(PAGE_TOKENS))
TO_KITCHEN = 'go to the kitchen, then return to the dock'
TO_BEDROOM = 'go to the bedroom, then return to the dock'


@pytest.fixture(scope='module')
def keeper(server: SglangProcess) -> SglangProcess:
    """The server with session references, which it can only have instead of its Rust tree."""
    server.stop()
    server.start(flags=WITH_REFERENCES)
    return server


@pytest.fixture(scope='module')
def graph(keeper: SglangProcess, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningGraph]:
    """One robot; its inference node asks the server, its cache node mirrors it."""
    events, replay = keeper.event_endpoints
    parameters = {
        'inference_node': {'engine': 'sglang', 'engine_url': keeper.url},
        'kv_cache_node': {'engine_events': events, 'engine_events_replay': replay},
        'planner_node': {'draft_timeout_s': 150.0},
        'agent_node': {'plan_timeout_s': 170.0},
    }
    robots = ('robot1',)
    asked = settings(tmp_path_factory.mktemp('graph'), robots, parameters)
    with running(separate_graph(asked), robots, asked.state_dir) as client:
        yield client


def do(graph: RunningGraph, instruction: str) -> list[Any]:
    """The usages of a task's turns that the server answered; fails when there is none."""
    result = graph.do_task(instruction, timeout_s=TASK_S)
    assert Outcome(result.result.error_code) is Outcome.SUCCESS, result.result.error_msg
    answered = [turn for turn in result.turns if turn.error_code == Outcome.SUCCESS and turn.usage.prompt_tokens]
    assert answered, result.turns
    assert {turn.engine for turn in answered} == {'sglang'}
    return [turn.usage for turn in answered]


def session_of(graph: RunningGraph) -> Any:
    """The books of the robot's session in kv_cache_node; nothing while there are none."""
    return next((each for each in graph.cache().sessions if each.session.robot_id == 'robot1'), None)


def device(graph: RunningGraph) -> Any:
    """The server's device tier as kv_cache_node mirrors it."""
    return next(tier for tier in graph.cache().tiers if tier.tier == 'hbm')


def mirror_findings(graph: RunningGraph) -> list[str]:
    """What the inspector says of the mirror."""
    found = graph.call(InspectInfra, '/inspect_infra').findings
    return [each.message for each in found if each.component == 'kv_cache_node/mirror']


@pytest.fixture(scope='module')
def two_tasks(graph: RunningGraph) -> tuple[list[Any], int, list[Any]]:
    """The usages of two tasks of one robot, and the blocks of its session that the mirror has between them."""
    first = do(graph, TO_KITCHEN)
    between = poll(lambda: session_of(graph), SOON_S, 'the session').num_blocks
    return first, between, do(graph, TO_BEDROOM)


def test_the_node_says_what_the_server_can_do(graph: RunningGraph, keeper: SglangProcess) -> None:
    said = graph.graph.log('inference_node')
    assert 'SGLang 0.5.23, SmolLM2-135M-Instruct: tree core python' in said
    assert f'session references, reports cached tokens, events at {keeper.event_endpoints[0]}' in said


def test_the_second_task_reuses_what_the_mirror_says_is_there(two_tasks: tuple[list[Any], int, list[Any]]) -> None:
    first, between, second = two_tasks
    assert first[0].prompt_tokens > 200
    assert 0.5 * second[0].prompt_tokens < second[0].cached_tokens <= between * PAGE_TOKENS


def test_the_sessions_books_are_those_of_the_replies(
    graph: RunningGraph, two_tasks: tuple[list[Any], int, list[Any]]
) -> None:
    usages = [*two_tasks[0], *two_tasks[2]]
    books = session_of(graph)
    assert books.prompt_tokens == sum(usage.prompt_tokens for usage in usages)
    assert books.cached_tokens == sum(usage.cached_tokens for usage in usages)
    assert 0 < books.num_blocks <= device(graph).num_blocks
    assert (device(graph).is_degraded, mirror_findings(graph)) == (False, [])


@pytest.fixture(scope='module')
def killed(graph: RunningGraph, keeper: SglangProcess, two_tasks: tuple[list[Any], int, list[Any]]) -> SglangProcess:
    """The server after kill -9."""
    keeper.kill()
    return keeper


def test_a_robot_goes_on_by_its_rules_when_the_server_is_killed(graph: RunningGraph, killed: SglangProcess) -> None:
    result = graph.do_task(TO_KITCHEN, timeout_s=TASK_S)
    assert Outcome(result.result.error_code) is Outcome.SUCCESS, result.result.error_msg
    assert Outcome.MODEL_UNAVAILABLE in {turn.error_code for turn in result.turns}
    refused = graph.call(Generate, '/generate', timeout_s=10.0)
    assert refused.result.error_code == Outcome.MODEL_UNAVAILABLE


def test_the_mirror_is_degraded_while_the_server_is_away(graph: RunningGraph, killed: SglangProcess) -> None:
    poll(lambda: device(graph).is_degraded, SOON_S, 'a degraded tier')
    assert mirror_findings(graph)[0].startswith('DEGRADED')


@pytest.fixture(scope='module')
def restarted(graph: RunningGraph, killed: SglangProcess) -> SglangProcess:
    """The server in its next life, heard by the mirror."""
    killed.start(flags=WITH_REFERENCES)
    poll(lambda: not device(graph).is_degraded, SOON_S, 'a mirror that is synced again')
    return killed


def test_the_server_that_is_back_is_mirrored_anew_and_warmed_before_the_robots_turn(
    graph: RunningGraph, restarted: SglangProcess
) -> None:
    assert (device(graph).num_blocks, session_of(graph).num_blocks, mirror_findings(graph)) == (0, 0, [])
    asked = {'session': session_of(graph).session, 'policy': PrefetchPolicy.WAIT_COMPLETE.value, 'timeout_s': 60.0}
    warmed = graph.call(PrefetchPrefix, '/prefetch_prefix', wait_s=2 * 70.0, **asked)
    assert (warmed.is_complete, warmed.num_blocks > 20) == (True, True)
    poll(lambda: session_of(graph).num_blocks == warmed.num_blocks, SOON_S, 'the warmed blocks in the mirror')
    usage = do(graph, TO_BEDROOM)[0]
    assert usage.cached_tokens > 0.5 * usage.prompt_tokens


def test_a_session_that_ends_is_closed_in_the_server(graph: RunningGraph, restarted: SglangProcess) -> None:
    session = session_of(graph).session
    reply = graph.call(ReleaseSession, '/release_session', session=session)
    assert reply.num_blocks > 0
    name = re.escape(session_name(session_from_msg(session)))
    closed = poll(lambda: re.search(rf'release_session {name}: indexed (\d+)', restarted.log()), SOON_S, 'the close')
    assert int(closed[1]) > 0
    assert session_of(graph) is None
