"""What other caches do with fewer bits, on the same arrays: KIVI as published, and transformers' quantised cache."""

from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from pathlib import Path
import subprocess
import sys
import tempfile

import numpy as np

from kv_agent_ros.kvcache.rotation import Floats

GROUP = 32
HF_GROUP = 64
HF_LIMIT_S = 60.0
HF_COMPILE_LIMIT_S = 400.0  # its kernels are compiled at first use
HF_SCRIPT = Path(__file__).with_name('_quantization_hf.py')


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Coded:
    """Keys and values as they come back, and the bits that an element took."""

    keys: Floats  # (rows, tokens, channels)
    values: Floats
    bits: float


def kivi(keys: Floats, values: Floats, bits: int, key_axis: int = 1) -> Coded:
    """Liu et al. 2024: groups of 32, keys along tokens, values along channels, scale and minimum in float16."""
    return Coded(keys=_grouped(keys, bits, key_axis), values=_grouped(values, bits, 2), bits=bits + 2 * 16 / GROUP)


@cache
def hf_absence() -> str:
    """Why transformers' quantised cache cannot be a peer here; empty where it can. Asked first, it has it compiled."""
    if not (find_spec('optimum') and find_spec('optimum.quanto')):
        return 'not run: optimum-quanto is not installed; pip install optimum-quanto'
    vectors = np.ones((1, HF_GROUP, HF_GROUP), np.float32)
    try:
        _hf_coded(vectors, vectors, 4, HF_COMPILE_LIMIT_S)
    except (subprocess.CalledProcessError, subprocess.TimeoutExpired) as error:
        return f'not run: {error}'
    return ''


def hf_quantized_cache(keys: Floats, values: Floats, bits: int) -> Coded | None:
    """transformers' QuantizedCache with its quanto backend; None where it is not installed, fails or takes too long."""
    if hf_absence():
        return None
    try:
        return _hf_coded(keys, values, bits, HF_LIMIT_S)
    except (subprocess.CalledProcessError, subprocess.TimeoutExpired) as error:
        print(f'no QuantizedCache of transformers: {error}', file=sys.stderr)
        return None


def _hf_coded(keys: Floats, values: Floats, bits: int, limit_s: float) -> Coded:
    with tempfile.TemporaryDirectory(prefix='kv_agent_ros-') as directory:
        source, target = Path(directory, 'exact.npz'), Path(directory, 'found.npz')
        np.savez(source, keys=keys, values=values)
        command = [sys.executable, '-P', str(HF_SCRIPT), str(source), str(target), str(bits)]
        subprocess.run(command, check=True, timeout=limit_s, stdout=sys.stderr)
        found = np.load(target)
        return Coded(keys=found['keys'], values=found['values'], bits=bits + 2 * 16 / HF_GROUP)


def _grouped(vectors: Floats, bits: int, axis: int) -> Floats:
    moved = np.moveaxis(vectors, axis, 2)
    groups = moved.reshape(*moved.shape[:2], -1, GROUP)
    low = groups.min(3, keepdims=True).astype(np.float16).astype(np.float32)
    scale = ((groups.max(3, keepdims=True) - low) / ((1 << bits) - 1)).astype(np.float16).astype(np.float32)
    codes = np.clip(np.rint((groups - low) / np.where(scale > 0, scale, 1)), 0, (1 << bits) - 1)
    return np.ascontiguousarray(np.moveaxis((low + codes * scale).reshape(moved.shape), 2, axis))
