"""A real SGLang server of this test run: started, hung, killed and started again by scripts/sglang."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
import os
from pathlib import Path
import signal
import socket
import subprocess

import httpx

from kv_agent_ros.inference.kv_events import EventFollower, ZmqReplay

SCRIPT = Path(__file__).resolve().parents[2] / 'scripts' / 'sglang'
EVENT_PORTS = (1000, 2000)  # above the server's own
SETUP_S, START_S, STOP_S = 900.0, 600.0, 60.0


class NoSglangError(Exception):
    """The environment cannot be made here; the message says why."""


@dataclass(frozen=True, kw_only=True)
class SglangProcess:
    """The server at `url`; it keeps its ports over restarts."""

    port: int
    state_dir: Path
    flags: Sequence[str]  # of SGLang's launcher

    @property
    def url(self) -> str:
        return f'http://127.0.0.1:{self.port}'

    @property
    def event_endpoints(self) -> tuple[str, str]:
        """Of the stream and of its replay, as the script chooses them."""
        first, second = (f'tcp://127.0.0.1:{self.port + distance}' for distance in EVENT_PORTS)
        return first, second

    @property
    def l3_dir(self) -> Path:
        """For those that start it with a store."""
        return self.state_dir / 'l3'

    def events(self) -> EventFollower:
        """A follower of its cache events."""
        endpoint, replay_endpoint = self.event_endpoints
        return EventFollower.open(endpoint=endpoint, replay=ZmqReplay(replay_endpoint, 5.0))

    def start(self, *options: str, flags: Sequence[str] = ()) -> None:
        """Start it with options of the script and further flags; wait until it answers."""
        place = ['--port', str(self.port), '--state-dir', str(self.state_dir), '--timeout', str(int(START_S))]
        run('start', *place, *options, '--', *self.flags, *flags, timeout_s=START_S + STOP_S)

    def kill(self) -> None:
        """kill -9 of all its processes, as a crash would."""
        self.send(signal.SIGKILL)
        self.stop()

    def log(self) -> str:
        """What it has printed since its last start."""
        return (self.state_dir / f'{self.port}.log').read_text(errors='replace')

    def stop(self) -> None:
        """End it; idempotent."""
        run('stop', '--port', str(self.port), '--state-dir', str(self.state_dir), timeout_s=STOP_S)

    def send(self, number: signal.Signals) -> None:
        """Send a signal to all its processes."""
        os.killpg(int((self.state_dir / f'{self.port}.pid').read_text()), number)

    @contextmanager
    def hung(self) -> Iterator[None]:
        """Within the block it accepts connections and does nothing."""
        self.send(signal.SIGSTOP)
        try:
            yield
        finally:
            self.send(signal.SIGCONT)

    def num_requests(self) -> int:
        """Requests that it works on or that wait in it."""
        load = httpx.get(f'{self.url}/v1/loads', timeout=20.0).json()['loads'][0]
        return int(load['num_running_reqs'] + load['num_waiting_reqs'])

    def flush(self) -> None:
        """Forget what is on the device and in host memory; its storage stays."""
        assert httpx.post(f'{self.url}/flush_cache', timeout=20.0).status_code == httpx.codes.OK


def run(command: str, *arguments: str, timeout_s: float) -> None:
    """One command of scripts/sglang; fails with what it said."""
    done = subprocess.run([SCRIPT, command, *arguments], capture_output=True, text=True, timeout=timeout_s)
    assert done.returncode == 0, done.stdout + done.stderr


def make_environment() -> None:
    """SGLang's environment, made now if it is not there; raises NoSglangError where that fails."""
    if subprocess.run([SCRIPT, 'env'], capture_output=True).returncode == 0:
        return
    made = subprocess.run([SCRIPT, 'setup'], capture_output=True, text=True, timeout=SETUP_S)
    if made.returncode:
        raise NoSglangError(f'scripts/sglang setup failed: {(made.stdout + made.stderr)[-500:]}')


def free_port() -> int:
    """A port of this machine that nobody listens on, nor on those that its events take."""
    while True:
        with socket.socket() as probe:
            probe.bind(('127.0.0.1', 0))
            port = int(probe.getsockname()[1])
        if all(_is_free(port + distance) for distance in EVENT_PORTS):
            return port


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        try:
            probe.bind(('127.0.0.1', port))
        except OSError:
            return False
    return True
