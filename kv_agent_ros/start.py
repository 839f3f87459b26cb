"""Starts an executable by name: signals first, imports second, so that Ctrl-C during a slow import ends cleanly too."""

import importlib
import os
import signal
import sys
from typing import NoReturn


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


if __name__ == '__main__':
    start(sys.argv.pop(1))
