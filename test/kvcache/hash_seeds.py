"""What a program prints in processes that hash strings differently."""

import os
import subprocess
import sys


def outputs(program: str) -> list[str]:
    """Two runs of a program, each with another PYTHONHASHSEED."""
    return [
        subprocess.run(
            [sys.executable, '-c', program],
            env={**os.environ, 'PYTHONHASHSEED': seed, 'PYTHONPATH': os.pathsep.join(sys.path)},
            capture_output=True,
            text=True,
            timeout=60,
            check=True,
        ).stdout.strip()
        for seed in ('1', '2')
    ]
