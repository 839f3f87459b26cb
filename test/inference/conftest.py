"""Models for the tests of the local engine: a tiny random Llama, and the bundled SmolLM2 (converted once per user)."""

from pathlib import Path

import pytest

from kv_agent_ros.inference.local_model import BUNDLED, LocalModel, load_local_model
from kv_agent_ros.inference.tiny_model import TinyShape, write_tiny_llama


@pytest.fixture(scope='session')
def tiny_directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_llama(tmp_path_factory.mktemp('models') / 'tiny', 7, TinyShape())


@pytest.fixture(scope='session')
def tiny_model(tiny_directory: Path) -> LocalModel:
    return load_local_model(str(tiny_directory), tiny_directory.parent)


@pytest.fixture(scope='session')
def smollm2() -> LocalModel:
    return load_local_model(BUNDLED, Path.home() / '.cache' / 'kv_agent_ros' / 'models')
