"""One real server for the whole folder; skipped where SGLang's environment cannot be made."""

from collections.abc import Iterator
from pathlib import Path
import sys

import pytest
from sglang_process import NoSglangError, SglangProcess, free_port, make_environment

sys.path.append(str(Path(__file__).resolve().parents[1] / 'nodes'))  # running_graph

HICACHE = ('--enable-hierarchical-cache', '--hicache-ratio', '1.5', '--hicache-storage-backend', 'file')
HICACHE += ('--hicache-io-backend', 'direct', '--hicache-mem-layout', 'layer_first', '--page-size', '16')
HICACHE += ('--hicache-storage-prefetch-policy', 'wait_complete', '--hicache-write-policy', 'write_through')
SMALL = ('--max-total-tokens', '3072', '--max-running-requests', '2')


@pytest.fixture(scope='session')
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SglangProcess]:
    try:
        make_environment()
    except NoSglangError as error:
        pytest.skip(str(error))
    process = SglangProcess(port=free_port(), state_dir=tmp_path_factory.mktemp('sglang'), flags=(*HICACHE, *SMALL))
    process.start()
    yield process
    process.stop()
