"""edge_cloud as the engine of a real graph: a tiny model on the robot, a server that dies in mid-answer beside it.

The tiny model's plans are nonsense, which the rehearsal refuses: the rules plan then, as with any poor model.
"""

from collections.abc import Callable, Iterator
import json
from pathlib import Path
from typing import Any

import pytest
from running_graph import RunningGraph, poll

from kv_agent_ros.errors import Outcome
from kv_agent_ros.inference.loopback_engine import LoopbackEngine
from kv_agent_ros.inference.loopback_faults import killed
from kv_agent_ros.inference.loopback_server import LoopbackServer, serving, stream_hello
from kv_agent_ros.inference.tiny_model import TinyShape, write_tiny_llama
from kv_agent_ros.msg import ChatMessage, SessionKey
from kv_agent_ros.ros.graph import composed_graph
from kv_agent_ros.srv import Generate

TASK = 'go to the kitchen, then return to the dock'
PRIVATE_TASK = '去卧室，然后返回充电座。'
PRIVATE_WORD = '卧室'
BACK_S = 60.0


@pytest.fixture(scope='module')
def cloud() -> Iterator[LoopbackServer]:
    """A server that says three letters of every answer, then its process is gone."""
    with serving(stream_hello) as server:
        server.answer = killed(server)
        yield server


@pytest.fixture(scope='module')
def graph(open_graph: Callable[..., RunningGraph], cloud: LoopbackServer, tmp_path_factory: Any) -> RunningGraph:
    """All may leave the robot but what is marked as private."""
    folder: Path = tmp_path_factory.mktemp('models')
    shape = TinyShape(hidden_size=32, intermediate_size=48, num_layers=1, num_kv_heads=1, max_tokens=16384)
    inference = {
        'engine': 'edge_cloud',
        'model': str(write_tiny_llama(folder / 'tiny', 7, shape)),
        'cache_dir': str(folder),
        'engine_url': cloud.base_url,
        'cloud_engine': 'sglang',
        'cloud_purposes': ('*',),
        'cloud_patience_s': 2.0,
        'private_marks': (PRIVATE_WORD,),
    }
    parameters = {'inference_node': inference, 'planner_node': {'draft_timeout_s': 20.0}}
    return open_graph(parameters, compose=composed_graph)


def prompts(cloud: LoopbackServer) -> list[str]:
    """What the server was asked."""
    return [json.dumps(body, ensure_ascii=False) for body in cloud.bodies if 'messages' in body or 'text' in body]


def ask(graph: RunningGraph, text: str) -> Any:
    """An answer of the graph's engine to what goes to the cloud if it may, in a session of its own."""
    return graph.call(
        Generate,
        '/generate',
        session=SessionKey(robot_id='somebody', session_id='chat'),
        messages=[ChatMessage(role='user', content=text)],
        max_new_tokens=8,
        purpose='plan',
    )


def assert_done_on_the_robot(graph: RunningGraph, result: Any) -> None:
    """The task is done, the robot is home, and every turn of the model was ended by the robot's own engine."""
    assert Outcome(result.result.error_code) is Outcome.SUCCESS, result.result.error_msg
    assert graph.robot().is_docked
    assert result.turns
    assert {(turn.engine, Outcome(turn.error_code)) for turn in result.turns} == {('local', Outcome.SUCCESS)}


def test_a_cloud_that_dies_in_mid_answer_costs_the_robot_nothing_but_time(
    graph: RunningGraph, cloud: LoopbackServer
) -> None:
    result = graph.do_task(TASK)
    assert_done_on_the_robot(graph, result)
    assert any('kitchen' in prompt for prompt in prompts(cloud))


def test_what_is_private_never_reaches_a_cloud_that_is_back(graph: RunningGraph, cloud: LoopbackServer) -> None:
    cloud.answer = LoopbackEngine()
    poll(lambda: ask(graph, 'Where is the cup?').engine == 'sglang', BACK_S, 'the cloud to be asked again')
    num_asked = len(prompts(cloud))
    assert ask(graph, f'谁在{PRIVATE_WORD}里？').engine == 'local'
    assert_done_on_the_robot(graph, graph.do_task(PRIVATE_TASK))
    assert len(prompts(cloud)) == num_asked
    assert not any(PRIVATE_WORD in prompt for prompt in prompts(cloud))
