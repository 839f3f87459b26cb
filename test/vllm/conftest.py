"""One real server for the whole folder; skipped where vLLM's environment cannot be made."""

from collections.abc import Iterator
from pathlib import Path
import sys
import tempfile

import pytest
from vllm_process import NoVllmError, VllmProcess, make_environment, serving_vllm

from kv_agent_ros.config import CACHE_DIR, expand
from kv_agent_ros.inference.gguf_convert import converted_directory
from kv_agent_ros.inference.local_model import bundled_gguf

sys.path.append(str(Path(__file__).resolve().parents[1] / 'inference'))  # backend_contract


@pytest.fixture(scope='session')
def server() -> Iterator[VllmProcess]:
    try:
        make_environment()
    except NoVllmError as error:
        pytest.skip(str(error))
    model = converted_directory(bundled_gguf(), expand(CACHE_DIR) / 'models', print)
    with tempfile.TemporaryDirectory(prefix='vllm-') as folder, serving_vllm(model, Path(folder)) as process:
        yield process  # a short path: sockets have room for 107 characters
