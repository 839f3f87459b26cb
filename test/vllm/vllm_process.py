"""A real vLLM server of this test run, started by scripts/vllm."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
import json
import os
from pathlib import Path
import re
import signal
import socket
import subprocess

import httpx

from kv_agent_ros.deadline import Deadline
from kv_agent_ros.inference.kv_events import EventFollower, ZmqReplay

SCRIPT = Path(__file__).resolve().parents[2] / 'scripts' / 'vllm'
SETUP_S, START_S, STOP_S = 1200.0, 600.0, 30.0


class NoVllmError(Exception):
    """The environment cannot be made here; the message says why."""


@dataclass(frozen=True, kw_only=True)
class VllmProcess:
    """The server at `url`. Its events come over sockets in `state_dir`: it binds no TCP port of loopback only."""

    port: int
    state_dir: Path
    process: subprocess.Popen[bytes]

    @property
    def url(self) -> str:
        return f'http://127.0.0.1:{self.port}'

    def events(self) -> EventFollower:
        """A follower of its cache events."""
        endpoint, replay = (f'ipc://{self.state_dir}/{name}' for name in ('events', 'replay'))
        return EventFollower.open(endpoint=endpoint, replay=ZmqReplay(replay, 5.0))

    def num_requests(self) -> int:
        """Requests that it works on or that wait in it."""
        text = httpx.get(f'{self.url}/metrics', timeout=20.0).text
        found = re.findall(r'^vllm:num_requests_(?:running|waiting)\{.*\} ([\d.]+)$', text, re.MULTILINE)
        return int(sum(float(value) for value in found))

    def send(self, number: signal.Signals) -> None:
        """Send a signal to all its processes."""
        os.killpg(self.process.pid, number)

    @contextmanager
    def hung(self) -> Iterator[None]:
        """Within the block it accepts connections and does nothing."""
        self.send(signal.SIGSTOP)
        try:
            yield
        finally:
            self.send(signal.SIGCONT)


@contextmanager
def serving_vllm(model: Path, state_dir: Path) -> Iterator[VllmProcess]:
    """A server that answers, ended with everything that it started."""
    port = free_port()
    events = {'enable_kv_cache_events': True, 'publisher': 'zmq', 'topic': ''}
    events |= {'endpoint': f'ipc://{state_dir}/events', 'replay_endpoint': f'ipc://{state_dir}/replay'}
    flags = ['--served-model-name', 'SmolLM2-135M-Instruct', '--max-num-seqs', '2', '--max-model-len', '8192']
    command = [SCRIPT, 'serve', '--model', str(model), '--port', str(port), '--', *flags]
    with (state_dir / 'log').open('wb') as log:
        process = subprocess.Popen(
            [*command, '--kv-events-config', json.dumps(events)], stdout=log, stderr=log, start_new_session=True
        )
    server = VllmProcess(port=port, state_dir=state_dir, process=process)
    try:
        wait_until_it_answers(server)
        yield server
    finally:
        server.send(signal.SIGKILL)
        process.wait(STOP_S)


def wait_until_it_answers(server: VllmProcess) -> None:
    """Fails with the end of its log when it does not."""
    deadline = Deadline(START_S)
    while not deadline.wait(0.5):
        try:
            if httpx.get(f'{server.url}/health', timeout=5.0).status_code == httpx.codes.OK:
                return
        except httpx.HTTPError:
            pass
        if server.process.poll() is not None:
            break
    raise AssertionError((server.state_dir / 'log').read_text()[-2000:])


def make_environment() -> None:
    """vLLM's environment, made now if it is not there; raises NoVllmError where that fails."""
    if subprocess.run([SCRIPT, 'env'], capture_output=True).returncode == 0:
        return
    made = subprocess.run([SCRIPT, 'setup'], capture_output=True, text=True, timeout=SETUP_S)
    if made.returncode:
        raise NoVllmError(f'scripts/vllm setup failed: {(made.stdout + made.stderr)[-500:]}')


def free_port() -> int:
    """A port of this machine that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(('127.0.0.1', 0))
        return int(probe.getsockname()[1])
