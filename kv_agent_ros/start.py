"""Starts an executable by name: signals first, imports second, so that Ctrl-C during a slow import ends cleanly too."""

import contextlib
import importlib
import os
import signal
import stat
import sys
import threading
import time
from typing import NoReturn

LIFELINE = '--lifeline'
GRACE_S = 4.0


def start(module: str) -> NoReturn:
    """Run `main()` of a module of this package and leave with its exit code.

    Signals that the starter held back come through. The interpreter is not taken down piece by piece: with torch loaded
    that takes seconds, and everything of ours is closed when `main()` returns.
    """
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: os._exit(0))
    signal.pthread_sigmask(signal.SIG_UNBLOCK, (signal.SIGINT, signal.SIGTERM))
    entry = importlib.import_module(f'kv_agent_ros.{module}')
    code = int(entry.main() or 0)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def end_with_starter() -> None:
    """End this process when the pipe at stdin ends: its starter holds it, and lets go even when it is killed.

    Raises SystemExit for any other stdin: a file ends at once, a terminal stops who reads in the background, and in the
    place of a closed one something else is opened soon.
    """
    if not _is_pipe(0):
        print(f'{LIFELINE}: expected a pipe at stdin, got something else; leave the option out', file=sys.stderr)
        raise SystemExit(2)
    os.set_blocking(0, True)
    threading.Thread(target=_watch_stdin, name='lifeline', daemon=True).start()


def _is_pipe(descriptor: int) -> bool:
    try:
        mode = os.fstat(descriptor).st_mode
    except OSError:
        return False
    return stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode)


def _watch_stdin() -> None:
    with contextlib.suppress(OSError):  # of a socket whose other end is killed
        while os.read(0, 1):
            pass
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(GRACE_S)
    os._exit(1)


if __name__ == '__main__':
    if sys.argv[1] == LIFELINE:
        sys.argv.pop(1)
        end_with_starter()
    start(sys.argv.pop(1))
