"""Starts an executable by name: signals first, imports second, so that Ctrl-C during a slow import ends cleanly too."""

import importlib
import os
import signal
import sys


def start(module: str) -> int:
    """Run `main()` of a module of this package; its exit code. Signals that the starter held back come through."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: os._exit(0))
    signal.pthread_sigmask(signal.SIG_UNBLOCK, (signal.SIGINT, signal.SIGTERM))
    entry = importlib.import_module(f'kv_agent_ros.{module}')
    return int(entry.main() or 0)


if __name__ == '__main__':
    sys.exit(start(sys.argv.pop(1)))
