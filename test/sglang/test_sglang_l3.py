"""SGLang over our store: its real host pools in its own environment, then a server that is killed and asked again."""

from collections.abc import Iterator
import json
from pathlib import Path
import signal
import subprocess

import httpx
import pytest
from sglang_process import SCRIPT, NoSglangError, SglangProcess, free_port, make_environment

pytestmark = pytest.mark.sglang

DRIVER = Path(__file__).resolve().parent / 'hicache_driver.py'
DRIVER_S, ANSWER_S = 300.0, 120.0
PAGE_TOKENS = 16
TOKEN_BYTES = (
    2 * 30 * 3 * 64 * 4
)  # of SmolLM2's keys and values in float32, which SGLang's file backend writes as they are


@pytest.fixture(scope='module')
def driven(tmp_path_factory: pytest.TempPathFactory) -> dict[str, object]:
    """What the driver found."""
    try:
        make_environment()
    except NoSglangError as error:
        pytest.skip(str(error))
    command = [SCRIPT, 'python', '-W', 'ignore', '-P', DRIVER, tmp_path_factory.mktemp('l3')]
    done = subprocess.run(command, capture_output=True, text=True, timeout=DRIVER_S)
    assert done.returncode == 0, done.stderr[-3000:]
    found: dict[str, object] = json.loads(done.stdout.splitlines()[-1])
    return found


def test_pages_come_back_into_pools_of_every_layout(driven: dict[str, dict[str, float]]) -> None:
    for name, error in driven['round_trips'].items():
        assert error <= (0.01 if name.startswith('4 ') else 0.0), name
    assert len(driven['round_trips']) == 16


def test_a_prefix_written_in_pieces_is_one_prefix(driven: dict[str, object]) -> None:
    assert driven['chains'] == {
        'whole': 8,
        'after_prefix': 5,
        'after_another_prefix': 0,
        'backup_pages': 8,
        'told_again': 0,
    }


def test_engines_that_differ_in_anything_do_not_share(driven: dict[str, object]) -> None:
    assert driven['strangers'] == {'same': 8, 'model': 0, 'rank': 0, 'bits': 0, 'tenant': 0, 'dtype': 0}


def test_states_beside_keys_and_values_end_where_they_were_written(driven: dict[str, object]) -> None:
    expected = {'trailing': [6, [5, 6]], 'all_pages': 0, 'read': [True, True], 'equal': True}
    assert driven['side_pools'] == expected


def test_calls_that_break_are_misses_and_are_counted(driven: dict[str, dict[str, object]]) -> None:
    found = driven['failures']
    assert (found['refused'], found['missed'], found['counted']) == (False, False, 3)
    assert found['broken'] == [[False] * 8, [False], 0]


@pytest.fixture
def server(tmp_path: Path) -> Iterator[SglangProcess]:
    try:
        make_environment()
    except NoSglangError as error:
        pytest.skip(str(error))
    process = SglangProcess(
        port=free_port(),
        event_ports=(0, 0),
        state_dir=tmp_path / 'state',
        flags=('--max-total-tokens', '3072', '--max-running-requests', '2'),
        options=('--l3', str(tmp_path / 'l3')),
    )
    process.start()
    yield process
    process.stop()


def ask(server: SglangProcess, text: str, tenant: str = 'home') -> tuple[str, int, int]:
    """Greedy answer, tokens of the prompt, and those that came from storage."""
    body = {'text': text, 'sampling_params': {'temperature': 0.0, 'max_new_tokens': 12}, 'cache_salt': tenant}
    answer = httpx.post(f'{server.url}/generate', json=body, timeout=ANSWER_S).raise_for_status().json()
    usage = answer['meta_info']
    storage = (usage.get('cached_tokens_details') or {}).get('storage', 0)
    return answer['text'], usage['prompt_tokens'], storage


def test_a_killed_server_goes_on_from_our_store_with_the_same_answers(server: SglangProcess, tmp_path: Path) -> None:
    rooms = ' '.join(f'The cup {number} is in room {number * 7 % 31}.' for number in range(40))
    prompts = [f'Robot {name}: {rooms} The cup 12 is in room' for name in ('one', 'two')]
    cold = [ask(server, prompt) for prompt in prompts]
    server.flush()  # after its writes
    server.send(signal.SIGKILL)
    server.stop()
    server.start()
    warm = [ask(server, prompt) for prompt in prompts]
    assert [text for text, _, _ in warm] == [text for text, _, _ in cold]
    for _, num_tokens, num_stored in warm:
        assert num_stored >= num_tokens - 2 * PAGE_TOKENS
    assert ask(server, prompts[0], 'neighbour')[2] == 0
    pages = list((tmp_path / 'l3' / 'blocks').iterdir())
    on_disk = sum(path.stat().st_blocks * 512 for path in pages)
    assert on_disk <= 0.2 * len(pages) * PAGE_TOKENS * TOKEN_BYTES
