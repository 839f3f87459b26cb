"""One real server for the whole folder, since a start takes half a minute; skipped where there is no environment."""

from collections.abc import Iterator
from pathlib import Path
import sys

import pytest
from sglang_process import NoSglangError, SglangProcess, free_port, make_environment

sys.path.append(str(Path(__file__).resolve().parents[1] / 'nodes'))  # running_graph

SMALL = ('--max-total-tokens', '3072', '--max-running-requests', '2')


@pytest.fixture(scope='session')
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SglangProcess]:
    """Device, host and our store as its tiers; its events where the script puts them."""
    try:
        make_environment()
    except NoSglangError as error:
        pytest.skip(str(error))
    process = SglangProcess(port=free_port(), state_dir=tmp_path_factory.mktemp('sglang'), flags=SMALL)
    process.start('--l3', str(process.l3_dir))
    yield process
    process.stop()
