"""One real server for the whole folder; skipped where SGLang's environment cannot be made."""

from collections.abc import Iterator
import json
from pathlib import Path
import sys

import pytest
from sglang_process import NoSglangError, SglangProcess, free_port, make_environment

sys.path.append(str(Path(__file__).resolve().parents[1] / 'nodes'))  # running_graph

HICACHE = ('--enable-hierarchical-cache', '--hicache-ratio', '1.5', '--hicache-storage-backend', 'file')
HICACHE += ('--hicache-io-backend', 'direct', '--hicache-mem-layout', 'layer_first', '--page-size', '16')
HICACHE += ('--hicache-storage-prefetch-policy', 'wait_complete', '--hicache-write-policy', 'write_through')
SMALL = ('--max-total-tokens', '3072', '--max-running-requests', '2')


def published(port: int, replay_port: int) -> dict[str, object]:
    """SGLang's setting for its event stream, on this machine only."""
    endpoint, replay_endpoint = f'tcp://127.0.0.1:{port}', f'tcp://127.0.0.1:{replay_port}'
    return {
        'publisher': 'zmq',
        'endpoint': endpoint,
        'replay_endpoint': replay_endpoint,
        'bind': True,
        'format': 'dynamo',  # hashes that tenants do not share
    }


@pytest.fixture(scope='session')
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SglangProcess]:
    try:
        make_environment()
    except NoSglangError as error:
        pytest.skip(str(error))
    events = free_port(), free_port()
    process = SglangProcess(
        port=free_port(),
        event_ports=events,
        state_dir=tmp_path_factory.mktemp('sglang'),
        flags=(*HICACHE, *SMALL, '--kv-events-config', json.dumps(published(*events))),
    )
    process.start()
    yield process
    process.stop()
