import pytest

from kv_agent_ros.config import STATE_DIR, SimulatorConfig, checked, expand
from kv_agent_ros.errors import ConfigError


def test_the_base_directories_of_xdg_are_respected(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv('XDG_STATE_HOME', '/elsewhere')
    assert str(expand(STATE_DIR)) == '/elsewhere/kv_agent_ros'


def test_without_xdg_a_path_begins_at_home(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv('XDG_STATE_HOME', raising=False)
    monkeypatch.setenv('HOME', '/somebody')
    assert str(expand(STATE_DIR)) == '/somebody/.local/state/kv_agent_ros'


def test_a_setting_out_of_range_is_refused_with_its_unit() -> None:
    with pytest.raises(ConfigError, match=r'rate_hz: expected .* Hz, got 0.1'):
        checked(SimulatorConfig(rate_hz=0.1))
