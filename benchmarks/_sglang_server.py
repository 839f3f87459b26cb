"""A real SGLang server for a benchmark: started, killed, started again by scripts/sglang, asked one turn at a time."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
import json
import os
from pathlib import Path
import signal
import socket
import subprocess
import sys
import time

import httpx

from benchmarks._sglang import SCRIPT, NoSglangError, sglang_environment

START_S, STOP_S, ANSWER_S, SETTLE_S, QUIET_S = 900, 60.0, 300.0, 120.0, 0.7


@dataclass(frozen=True, kw_only=True, slots=True)
class Answer:
    """One greedy answer; the tokens of the prompt by where they came from."""

    text: str
    ttft_s: float
    prompt_tokens: int
    cached_tokens: int
    storage_tokens: int


class SglangServer:
    """The server at one port. `options` are those of scripts/sglang start, `flags` those of SGLang's launcher."""

    def __init__(self, state_dir: Path, options: Sequence[str], flags: Sequence[str], settings: dict[str, str]) -> None:
        self._options, self._flags, self._settings = options, flags, settings
        with socket.socket() as probe:
            probe.bind(('127.0.0.1', 0))
            self._port = int(probe.getsockname()[1])
        self._server = ('--port', str(self._port), '--state-dir', str(state_dir))
        self._pid_file = state_dir / f'{self._port}.pid'
        self.url = f'http://127.0.0.1:{self._port}'

    def start(self) -> float:
        """Start it, wait until it answers; the seconds that took. Raises NoSglangError."""
        sglang_environment()
        begun_s = time.monotonic()
        command = [SCRIPT, 'start', *self._server, '--timeout', str(START_S), *self._options, '--', *self._flags]
        done = subprocess.run(command, capture_output=True, text=True, env=os.environ | self._settings)
        if done.returncode:
            raise NoSglangError(f'scripts/sglang start: {(done.stdout + done.stderr)[-2000:]}')
        self.ask('Hello', tenant='warm-up', max_new_tokens=2)
        return time.monotonic() - begun_s

    @property
    def pid(self) -> int:
        """Of the process that leads its group."""
        return int(self._pid_file.read_text())

    def kill(self) -> None:
        """kill -9, as a crash would."""
        self._signal(signal.SIGKILL)
        self.stop()

    def pause(self) -> None:
        """Stop all its processes where they are: an idle SGLang keeps a processor busy."""
        self._signal(signal.SIGSTOP)

    def resume(self) -> None:
        """Let them go on."""
        self._signal(signal.SIGCONT)

    def flush(self) -> None:
        """Forget everything that is not in its storage."""
        httpx.post(f'{self.url}/flush_cache', timeout=ANSWER_S).raise_for_status()

    def stop(self) -> None:
        """End it, paused or not; idempotent."""
        if self._pid_file.exists():
            self.resume()
        subprocess.run([SCRIPT, 'stop', *self._server], capture_output=True, timeout=STOP_S)

    def ask(self, text: str, *, tenant: str, max_new_tokens: int, session: str = '') -> Answer:
        """A greedy answer, streamed, with the time to its first token."""
        body = {
            'text': text,
            'sampling_params': {'temperature': 0.0, 'max_new_tokens': max_new_tokens, 'ignore_eos': True},
            'cache_salt': tenant,
            'stream': True,
        }
        body |= {'session_id': session} if session else {}
        begun_s, ttft_s, last = time.monotonic(), 0.0, ''
        with httpx.stream('POST', f'{self.url}/generate', json=body, timeout=ANSWER_S) as reply:
            reply.raise_for_status()
            for line in reply.iter_lines():
                if line.startswith('data: {'):
                    ttft_s = ttft_s or time.monotonic() - begun_s
                    last = line
        answer = json.loads(last.removeprefix('data: '))
        usage = answer['meta_info']
        return Answer(
            text=answer['text'],
            ttft_s=ttft_s,
            prompt_tokens=usage['prompt_tokens'],
            cached_tokens=usage['cached_tokens'],
            storage_tokens=(usage.get('cached_tokens_details') or {}).get('storage', 0),
        )

    def close_session(self, session: str) -> None:
        """End a session's references."""
        httpx.post(f'{self.url}/close_session', json={'session_id': session}, timeout=ANSWER_S).raise_for_status()

    def _signal(self, number: signal.Signals) -> None:
        """To everything that scripts/sglang started."""
        with suppress(ProcessLookupError):
            os.killpg(self.pid, number)


@contextmanager
def running(server: SglangServer) -> Iterator[SglangServer]:
    """The server, started; ended at the end whatever happens."""
    try:
        took_s = server.start()
        print(f'SGLang answers after {took_s:.0f} s', file=sys.stderr, flush=True)
        yield server
    finally:
        server.stop()


def bytes_on_disk(directory: Path) -> int:
    """What the files below a directory occupy."""
    return sum(path.stat().st_blocks * 512 for path in directory.rglob('*') if path.is_file())


def settle(directory: Path) -> int:
    """Wait until a directory no longer grows; its bytes."""
    ends_s = time.monotonic() + SETTLE_S
    before, now = -1, bytes_on_disk(directory)
    while now != before and time.monotonic() < ends_s:
        time.sleep(QUIET_S)
        before, now = now, bytes_on_disk(directory)
    return now
