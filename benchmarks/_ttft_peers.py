"""Other engines that answer the same token ids as ours in benchmarks/ttft, each on one thread of this machine.

SGLang and vLLM are real servers, started and ended by scripts/sglang and scripts/vllm where those are set up; llama.cpp
runs in a process of its own where the package xllamacpp is installed, with the model as its GGUF file has it (4 bits).
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
import json
import os
from pathlib import Path
import signal
import socket
import subprocess
import sys
import tempfile
import time
from typing import Any

import httpx
import psutil

from benchmarks._sglang import NoSglangError
from benchmarks._sglang_server import ANSWER_S, SglangServer, running

SCRIPTS = Path(__file__).resolve().parent.parent / 'scripts'
LLAMA_CPP = Path(__file__).resolve().parent / '_llama_cpp.py'
VLLM_START_S = 600.0
CONTEXT_TOKENS = 4096
END_S = 30.0


class NoPeerError(Exception):
    """The peer is not set up here, or does not start; the message says what to do."""


@dataclass(frozen=True, kw_only=True, slots=True)
class FirstToken:
    """When the first token of an answer came, and how many tokens of its prompt were cached."""

    ttft_s: float
    cached_tokens: int


JsonObject = dict[str, Any]  # a stranger's
Ask = Callable[[Sequence[int]], FirstToken]
Peer = Callable[[], AbstractContextManager[Ask]]
Clock = Callable[[], float]
MakeClock = Callable[[int], Clock]  # of a process


def wall_clock(pid: int) -> Clock:
    """Whatever the process does."""
    return time.monotonic


def cpu_clock(pid: int) -> Clock:
    """CPU seconds of the process and all below it."""

    def now_s() -> float:
        process = psutil.Process(pid)
        times = [each.cpu_times() for each in (process, *process.children(recursive=True))]
        return sum(each.user + each.system for each in times)

    return now_s


def peers(model_dir: Path, gguf: Path, make_clock: MakeClock) -> Mapping[str, Peer]:
    """All that could be asked, by name. Entering one raises NoPeerError."""
    return {
        'SGLang stock': lambda: sglang({'SGLANG_PLUGINS': 'none'}, make_clock),
        'SGLang, extend fixed': lambda: sglang({}, make_clock),
        'vLLM': lambda: vllm(model_dir, make_clock),
        'llama.cpp Q4_1': lambda: llama_cpp(gguf, make_clock),
    }


@contextmanager
def sglang(settings: dict[str, str], make_clock: MakeClock) -> Iterator[Ask]:
    """SGLang's server with the bundled model."""
    with tempfile.TemporaryDirectory(prefix='kv_agent_ros-ttft-') as state_dir:
        found = subprocess.run([SCRIPTS / 'sglang', 'env'], capture_output=True, text=True)
        if found.returncode:
            raise NoPeerError('not set up: scripts/sglang setup')
        try:
            with running(SglangServer(Path(state_dir), (), (), settings)) as server:
                clock = make_clock(server.pid)
                yield lambda tokens: _ask_sglang(server.url, tokens, clock)
        except NoSglangError as error:
            raise NoPeerError(str(error)) from error


def _ask_sglang(url: str, tokens: Sequence[int], clock: Clock) -> FirstToken:
    sampling = {'temperature': 0.0, 'max_new_tokens': 1, 'ignore_eos': True}
    body = {'input_ids': list(tokens), 'sampling_params': sampling, 'stream': True}
    ttft_s, events = _stream(f'{url}/generate', body, clock)
    return FirstToken(ttft_s=ttft_s, cached_tokens=events[-1]['meta_info']['cached_tokens'])


@contextmanager
def vllm(model_dir: Path, make_clock: MakeClock) -> Iterator[Ask]:
    """vLLM's server."""
    if subprocess.run([SCRIPTS / 'vllm', 'env'], capture_output=True).returncode:
        raise NoPeerError('not set up: scripts/vllm setup')
    with socket.socket() as probe:
        probe.bind(('127.0.0.1', 0))
        port = str(probe.getsockname()[1])
    url = f'http://127.0.0.1:{port}'
    command = [SCRIPTS / 'vllm', 'serve', '--model', model_dir, '--port', port, '--', '--served-model-name', 'm']
    command += ['--max-model-len', str(CONTEXT_TOKENS)]
    with tempfile.TemporaryFile('w+') as log:
        process = subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True)
        try:
            if not _answers(f'{url}/health', process):
                log.seek(0)
                raise NoPeerError(f'does not start: {log.read()[-1000:]}')
            clock = make_clock(process.pid)
            yield lambda tokens: _ask_vllm(url, tokens, clock)
        finally:
            _end_group(process)


def _ask_vllm(url: str, tokens: Sequence[int], clock: Clock) -> FirstToken:
    options = {'temperature': 0.0, 'max_tokens': 1, 'ignore_eos': True, 'stream': True}
    body = {'model': 'm', 'prompt': list(tokens), 'stream_options': {'include_usage': True}} | options
    ttft_s, events = _stream(f'{url}/v1/completions', body, clock)
    details = events[-1]['usage'].get('prompt_tokens_details') or {}
    return FirstToken(ttft_s=ttft_s, cached_tokens=details.get('cached_tokens') or 0)


@contextmanager
def llama_cpp(gguf: Path, make_clock: MakeClock) -> Iterator[Ask]:
    """llama.cpp's server loop inside a process of this interpreter."""
    command = [sys.executable, '-P', LLAMA_CPP, gguf, str(CONTEXT_TOKENS)]
    process = subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    )
    assert process.stdin is not None
    assert process.stdout is not None
    stdin, stdout = process.stdin, process.stdout

    clock = make_clock(process.pid)

    def ask(tokens: Sequence[int]) -> FirstToken:
        begun_s = clock()
        print(json.dumps(list(tokens)), file=stdin, flush=True)
        cached_tokens = int(stdout.readline())
        return FirstToken(ttft_s=clock() - begun_s, cached_tokens=cached_tokens)

    try:
        if stdout.readline().strip() != 'ready':
            raise NoPeerError('not installed: pip install -r requirements/llama_cpp.txt into this environment')
        yield ask
    finally:
        stdin.close()
        process.wait(END_S)


def _stream(url: str, body: dict[str, object], clock: Clock) -> tuple[float, list[JsonObject]]:
    """Seconds to the first event of a streamed answer, and all events."""
    begun_s, ttft_s, events = clock(), 0.0, []
    with httpx.stream('POST', url, json=body, timeout=ANSWER_S) as reply:
        reply.raise_for_status()
        for line in reply.iter_lines():
            if line.startswith('data: {'):
                ttft_s = ttft_s or clock() - begun_s
                events.append(json.loads(line.removeprefix('data: ')))
    return ttft_s, events


def _answers(url: str, process: subprocess.Popen[bytes]) -> bool:
    ends_s = time.monotonic() + VLLM_START_S
    while process.poll() is None and time.monotonic() < ends_s:
        try:
            if httpx.get(url, timeout=2.0).status_code == 200:
                return True
        except httpx.HTTPError:
            pass
        time.sleep(0.5)
    return False


def _end_group(process: subprocess.Popen[bytes]) -> None:
    for sign in (signal.SIGINT, signal.SIGKILL):
        try:
            os.killpg(process.pid, sign)
            process.wait(END_S)
        except (ProcessLookupError, subprocess.TimeoutExpired):
            continue
