"""The lifeline of a process: a pipe whose other end its starter holds, and nothing else."""

import os
from pathlib import Path
import signal
import subprocess
import sys

import pytest

from kv_agent_ros.start import LIFELINE

WAIT_S = 60.0
STARTED = [sys.executable, '-m', 'kv_agent_ros.start', LIFELINE, 'robot.base']  # which has no main()
HELD = 'from kv_agent_ros.start import end_with_starter; import time; end_with_starter(); time.sleep(60.0)'


def refusal(command: list[str], stdin: int) -> str:
    ended = subprocess.run(command, stdin=stdin, capture_output=True, text=True, timeout=WAIT_S, check=False)
    assert ended.returncode == 2, ended.stderr
    assert 'Traceback' not in ended.stderr
    return ended.stderr


def test_closed_stdin_is_no_lifeline() -> None:
    assert 'expected a pipe' in refusal(['sh', '-c', 'exec "$@" <&-', 'sh', *STARTED], subprocess.PIPE)


def test_nothing_at_stdin_is_no_lifeline() -> None:
    assert 'expected a pipe' in refusal(STARTED, subprocess.DEVNULL)


def test_file_at_stdin_is_no_lifeline(tmp_path: Path) -> None:
    path = tmp_path / 'file'
    path.write_text('text')
    with path.open() as file:
        assert 'expected a pipe' in refusal(STARTED, file.fileno())


def test_terminal_at_stdin_is_no_lifeline() -> None:
    ours, theirs = os.openpty()
    try:
        assert 'expected a pipe' in refusal(STARTED, theirs)
    finally:
        os.close(ours)
        os.close(theirs)


@pytest.mark.parametrize('blocks', [True, False])
def test_process_lives_as_long_as_its_pipe_is_held(blocks: bool) -> None:
    theirs, ours = os.pipe()
    os.set_blocking(theirs, blocks)
    process = subprocess.Popen([sys.executable, '-c', HELD], stdin=theirs)
    os.close(theirs)
    try:
        os.write(ours, b'still here')
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(1.0)
        os.close(ours)
        assert process.wait(WAIT_S) == -signal.SIGTERM
    finally:
        process.kill()
        process.wait(WAIT_S)
