"""The laboratory of the harness tests, under the default policy."""

from dataclasses import replace
from pathlib import Path

import pytest

from kv_agent_ros.harness.fake import Lab
from kv_agent_ros.harness.policy import load_policy

DEFAULT_POLICY = Path(__file__).parents[2] / 'config' / 'policies' / 'default.yaml'


@pytest.fixture
def lab(tmp_path: Path) -> Lab:
    return Lab(tmp_path, replace(load_policy(DEFAULT_POLICY), patience_s=0.05))
