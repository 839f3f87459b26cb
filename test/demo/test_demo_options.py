import pytest

from kv_agent_ros.demo.options import REPORT_TASK, read_options


def test_without_arguments_the_task_of_the_report_is_done_in_chinese() -> None:
    options = read_options([])
    assert options.instruction == REPORT_TASK
    assert (options.robot, options.engine, options.seed) == ('robot1', 'local', 0)


def test_json_implies_headless() -> None:
    assert read_options(['--json']).is_headless


def test_a_cup_that_is_not_full_reaches_the_simulator_as_a_parameter() -> None:
    assert read_options(['--cup-fill', '0.3']).parameters()['simulator_node']['fill_levels'] == ('cup1=0.3',)


def test_no_cup_takes_it_out_of_the_simulated_home() -> None:
    assert read_options(['--no-cup']).parameters()['simulator_node']['removed'] == ('cup1',)


@pytest.mark.parametrize('level', ['-0.1', '1.5', 'nan', 'full'])
def test_a_fill_level_outside_of_0_to_1_is_refused(level: str) -> None:
    with pytest.raises(SystemExit):
        read_options(['--cup-fill', level])


def test_the_audit_key_lies_beside_the_log_and_not_in_it(tmp_path) -> None:
    options = read_options(['--state-dir', str(tmp_path)])
    assert options.parameters()['harness_node']['audit_key_file'] == str(tmp_path / 'keys' / 'audit.key')


@pytest.mark.parametrize('arguments', [[''], ['x' * 2001], ['--robot', 'a b'], ['--cup', 'cup7'], ['--robot', 'Robot']])
def test_what_cannot_work_is_refused_before_anything_starts(arguments: list[str]) -> None:
    with pytest.raises(SystemExit):
        read_options(arguments)
