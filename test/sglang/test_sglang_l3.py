"""Our store under SGLang: its real host pools, in its own environment. The server over it: test_sglang_server.py."""

import json
from pathlib import Path
import subprocess

import pytest
from sglang_process import SCRIPT, NoSglangError, make_environment

pytestmark = pytest.mark.sglang

DRIVER = Path(__file__).resolve().parent / 'hicache_driver.py'
DRIVER_S = 300.0


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
    assert len(driven['round_trips']) == 20


def test_pages_of_floats_go_straight_to_where_they_are_wanted(driven: dict[str, dict[str, bool]]) -> None:
    straight = {name for name, has_lines in driven['lines'].items() if has_lines}
    layouts = ('layer_first', 'page_first', 'page_first_direct', 'page_head')
    assert straight == {f'{dtype} {layout}' for dtype in ('float32', 'float16') for layout in layouts}
    assert driven['scattered'] <= 0.01


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
