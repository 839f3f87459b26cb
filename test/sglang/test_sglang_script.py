"""What scripts/sglang refuses before it starts anything; needs no environment of SGLang."""

from pathlib import Path
import subprocess

import pytest
from sglang_process import SCRIPT


def refusal(tmp_path: Path, *options: str) -> str:
    """What `start` says; in an environment that is not set up it can start nothing."""
    command = [SCRIPT, '--env', tmp_path / 'none', 'start', '--state-dir', tmp_path, *options]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert ended.returncode in (1, 2)
    return ended.stderr


@pytest.mark.parametrize('bits', ['1', '3', '04', '64'])
def test_bits_that_the_store_does_not_have_are_refused(tmp_path: Path, bits: str) -> None:
    said = refusal(tmp_path, '--l3', str(tmp_path / 'l3'), '--l3-bits', bits)

    assert f'--l3-bits: expected 2, 4, 8, 16 or 32, got {bits}' in said


@pytest.mark.parametrize('bits', ['2', '4', '8', '16', '32'])
def test_bits_of_the_store_are_taken(tmp_path: Path, bits: str) -> None:
    assert 'SGLang is not set up' in refusal(tmp_path, '--l3', str(tmp_path / 'l3'), '--l3-bits', bits)


def test_place_of_the_store_that_cannot_be_a_folder_is_refused(tmp_path: Path) -> None:
    file = tmp_path / 'file'
    file.write_text('')

    assert f'--l3: expected a folder that can be written, got {file}' in refusal(tmp_path, '--l3', str(file))
