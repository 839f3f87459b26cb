"""Runs a driver in SGLang's own environment: JSON in on its stdin, one JSON object as the last line of its stdout.

The environment is scripts/sglang's; it is made on demand, which needs a network and takes some minutes.
"""

import json
from pathlib import Path
import subprocess
import sys

SCRIPT = Path(__file__).resolve().parent.parent / 'scripts' / 'sglang'


class NoSglangError(Exception):
    """The environment is not there and cannot be made now; the message says why."""


def sglang_environment() -> Path:
    """The folder of SGLang's environment, made now if it is not there; raises NoSglangError."""
    found = subprocess.run([SCRIPT, 'env'], capture_output=True, text=True)
    if found.returncode:
        print('SGLang, for comparison, is set up once …', file=sys.stderr, flush=True)
        made = subprocess.run([SCRIPT, 'setup'], stdout=sys.stderr.fileno())
        found = subprocess.run([SCRIPT, 'env'], capture_output=True, text=True)
        if made.returncode or found.returncode:
            raise NoSglangError('SGLang cannot be set up here (is there a network?): see scripts/sglang setup')
    return Path(found.stdout.strip())


def run_driver(driver: Path, request: object, timeout_s: float) -> dict[str, object]:
    """Run `driver` with SGLang's Python; its answer. Its stderr is shown. Raises NoSglangError where it cannot run."""
    sglang_environment()
    done = subprocess.run(
        [SCRIPT, 'python', '-W', 'ignore', '-P', driver],
        input=json.dumps(request),
        stdout=subprocess.PIPE,
        text=True,
        timeout=timeout_s,
    )
    if done.returncode:
        raise NoSglangError(f'{driver.name}: expected exit code 0 in the environment of SGLang, got {done.returncode}')
    answer: dict[str, object] = json.loads(done.stdout.splitlines()[-1])
    return answer
