"""The home of the agent tests: the example map, the real harness under the default policy, a pretended robot."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from kv_agent_ros.agent.fake import FakeHome
from kv_agent_ros.harness.policy import Policy, load_policy
from kv_agent_ros.world.state import ObjectState

DEFAULT_POLICY = Path(__file__).parents[2] / 'config' / 'policies' / 'default.yaml'


@pytest.fixture
def policy() -> Policy:
    return load_policy(DEFAULT_POLICY)


@pytest.fixture
def make_home(tmp_path: Path, policy: Policy) -> Callable[..., FakeHome]:
    def make(*things: ObjectState, policy: Policy = policy, **options: Any) -> FakeHome:
        return FakeHome(tmp_path, policy, things, **options)

    return make
