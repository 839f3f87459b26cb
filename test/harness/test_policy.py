"""The policy file is read strictly and refused as a whole."""

from pathlib import Path

import pytest

from kv_agent_ros.errors import ConfigError
from kv_agent_ros.harness.policy import load_policy, parse_policy
from kv_agent_ros.robot.skills import HOUSEHOLD_SKILLS
from kv_agent_ros.world.state import LocationKind

DEFAULT = Path(__file__).parents[2] / 'config' / 'policies' / 'default.yaml'
TEXT = DEFAULT.read_text(encoding='utf-8')


def test_default_policy_allows_exactly_the_household_skills() -> None:
    policy = load_policy(DEFAULT)
    assert set(policy.skills.allowed) == {skill.name for skill in HOUSEHOLD_SKILLS}
    assert policy.pour.kinds == (LocationKind.SINK,)
    assert policy.skills.limits['navigate']['speed_mps'].maximum == 0.8


def test_unknown_entry_is_refused_by_name() -> None:
    with pytest.raises(ConfigError, match='batery_reserve'):
        parse_policy(TEXT + '\nbatery_reserve: 0.1\n')


def test_unknown_nested_entry_is_refused_by_name() -> None:
    with pytest.raises(ConfigError, match=r'policy\.plan.*max_stpes'):
        parse_policy(TEXT.replace('max_steps: 40', 'max_steps: 40\n  max_stpes: 2'))


def test_missing_entry_is_refused_by_name() -> None:
    with pytest.raises(ConfigError, match="'battery_reserve'"):
        parse_policy(TEXT.replace('battery_reserve: 0.1', ''))


@pytest.mark.parametrize('value', ['-0.1', '1.5', '.nan', '.inf', 'true', 'lots', '[]'])
def test_number_out_of_range_is_refused(value: str) -> None:
    with pytest.raises(ConfigError, match='battery_reserve'):
        parse_policy(TEXT.replace('battery_reserve: 0.1', f'battery_reserve: {value}'))


def test_limit_of_a_skill_that_is_not_allowed_is_refused() -> None:
    with pytest.raises(ConfigError, match=r'limits\.pour'):
        parse_policy(TEXT.replace('pour, open', 'open'))


@pytest.mark.parametrize('text', ['', '[]', '{', 'name: 1', '1: 2', 'a: !!python/object/apply:os.system [ls]'])
def test_text_that_is_no_policy_is_refused(text: str) -> None:
    with pytest.raises(ConfigError):
        parse_policy(text)


def test_entry_that_stands_twice_is_refused() -> None:
    with pytest.raises(ConfigError, match=r'max_steps.*twice'):
        parse_policy(TEXT.replace('max_steps: 40', 'max_steps: 40\n  max_steps: 9999'))


def test_missing_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r'absent\.yaml'):
        load_policy(tmp_path / 'absent.yaml')


def test_hash_ignores_layout_and_follows_content() -> None:
    policy = parse_policy(TEXT)
    assert parse_policy(TEXT.replace('# m/s', '# metres a second')).policy_hash == policy.policy_hash
    assert parse_policy(TEXT.replace('max_steps: 40', 'max_steps: 41')).policy_hash != policy.policy_hash
