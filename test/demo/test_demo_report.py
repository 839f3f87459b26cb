import json
from pathlib import Path

from kv_agent_ros.action import ExecuteTask
from kv_agent_ros.demo.picture import draw
from kv_agent_ros.demo.report import Facts, as_json, compare_first_token
from kv_agent_ros.msg import Argument, ModelTurn, ObjectState, Plan, Result, RobotState, TokenUsage
from kv_agent_ros.ros.conversions.world import world_to_msg
from kv_agent_ros.srv import GetSimulationState, QueryAudit
from kv_agent_ros.world.fake import example_world


def facts(ttft_s: float = 2.0, cached: int = 0) -> Facts:
    usage = TokenUsage(
        prompt_tokens=800, cached_tokens=cached, computed_tokens=800 - cached, generated_tokens=9, ttft_s=ttft_s
    )
    result = ExecuteTask.Result(
        result=Result(error_code=Result.SUCCESS),
        task_id='task-1',
        plans=[Plan(source='model')],
        turns=[ModelTurn(purpose='plan', usage=usage, engine='local')],
        duration_s=12.5,
    )
    truth = GetSimulationState.Response(world=world_to_msg(example_world('robot1', 1.0)))
    cup = Argument(name='fill_level', kind=Argument.NUMBER, number=0.5)
    truth.world.objects = [ObjectState(object_id='cup1', category='cup', location='sink', properties=[cup])]
    truth.world.robots = [RobotState(robot_id='robot1', is_docked=True, battery=0.75)]
    return Facts(result=result, truth=truth, audit=QueryAudit.Response(num_records=7, is_verified=True))


def test_the_json_object_has_the_facts_of_the_contract() -> None:
    report = json.loads(as_json(facts()))
    assert (report['outcome'], report['error_code'], report['task_id']) == ('SUCCESS', 0, 'task-1')
    assert report['objects']['cup1']['fill_level'] == 0.5
    assert report['objects']['cup1']['location'] == 'sink'
    robot = report['robots']['robot1']
    assert (robot['docked'], robot['battery'], robot['moving'], robot['position_m']) == (True, 0.75, False, [0.0, 0.0])
    assert report['audit'] == {'records': 7, 'verified': True}
    assert report['plan_sources'] == ['model']
    turn = report['turns'][0]
    assert (turn['purpose'], turn['prompt_tokens'], turn['cached_tokens'], turn['computed_tokens']) == (
        'plan',
        800,
        0,
        800,
    )
    assert (turn['ttft_ms'], turn['engine']) == (2000.0, 'local')


def test_a_moving_robot_is_told_as_moving() -> None:
    moving = facts()
    moving.truth.world.robots[0].velocity.linear.x = 0.2
    assert json.loads(as_json(moving))['robots']['robot1']['moving'] is True


def test_the_second_run_says_how_much_faster_its_first_token_was(tmp_path: Path) -> None:
    assert 'cold' in compare_first_token(facts(ttft_s=4.0), tmp_path)
    line = compare_first_token(facts(ttft_s=0.5, cached=700), tmp_path)
    assert '700 of 800 tokens cached' in line
    assert '8.0x faster' in line
    assert 'no faster' in compare_first_token(facts(ttft_s=5.0, cached=10), tmp_path)


def test_a_run_without_model_says_nothing_of_first_tokens(tmp_path: Path) -> None:
    silent = facts()
    silent.result.turns[0].usage.generated_tokens = 0
    assert compare_first_token(silent, tmp_path) == ''


def test_the_picture_is_a_png_of_some_size(tmp_path: Path) -> None:
    truth = facts().truth
    boxes = [((0.0, 0.0), (1.0, 0.0), (1.0, 0.5), (0.0, 0.5))] * len(truth.world.map.locations)
    draw(truth, boxes, 'title', tmp_path / 'home.png')
    assert (tmp_path / 'home.png').read_bytes()[:8] == b'\x89PNG\r\n\x1a\n'
    assert (tmp_path / 'home.png').stat().st_size > 10_000
