"""How few bits a local model's stored KV blocks may keep: measured once per model on a short text, then remembered."""

from collections.abc import Callable
from dataclasses import replace
import json
import logging
from pathlib import Path

import numpy as np
import torch

from kv_agent_ros.inference.local_llama import KVBuffer
from kv_agent_ros.inference.local_model import LocalModel
from kv_agent_ros.kvcache.block import KVNamespace
from kv_agent_ros.kvcache.canary import WIDTHS, Canary, CanarySample
from kv_agent_ros.kvcache.codec_policy import CodecPolicy
from kv_agent_ros.kvcache.rotation import Floats

_log = logging.getLogger(__name__)

_RECENT_TOKENS = 32  # exact at the end of the sample, so that a short text is enough
_QUERY_TOKENS = 16
_TEXT = """The robot leaves its dock at seven in the morning and drives along the hallway to the kitchen. On the counter
there are three cups: a blue one that is full of tea, a white one that is half empty, and a small glass with water. The
instruction says: bring the blue cup to the table in the living room, but do not carry it while a person stands in the
way. First it looks at the counter and reads fill level 0.97 with confidence 0.92; then it compares the position
(x: 2.41, y: -0.35) with the map. {"plan": [{"skill": "navigate", "to": "counter"}, {"skill": "pick", "object": "cup1"},
{"skill": "place", "on": "table"}, {"skill": "dock"}]} The gate allows the first step and refuses the second, because
the cup is too full to be carried at this speed.
机器人先去厨房，检查杯子是否已满；如果满了，就倒掉一半，然后返回充电桩。
So it pours out half of the tea, checks the level again, and only then moves on. At the end of the day its battery is at
31 percent, and it has done eleven of twelve tasks."""


def fitting_bits(model: LocalModel, wanted: KVNamespace, cache_dir: Path) -> KVNamespace:
    """`wanted` with as many bits as its model needs, never fewer than asked for.

    The measurement takes one prefill of a short text; what it found is kept in `cache_dir`, by namespace.
    """
    if wanted.bits == WIDTHS[-1]:
        return wanted
    path = cache_dir / 'canary' / f'{wanted.digest.hex()[:32]}.json'
    found = _recall(path, lambda: _measure(model, wanted))
    if found > wanted.bits:
        _log.warning('KV of %s needs %d bits in lower tiers, not %d', wanted.model, found, wanted.bits)
    return replace(wanted, bits=found)


def canary_sample(model: LocalModel) -> CanarySample:
    """Keys, values and queries of the model over the text."""
    tokens = np.array(model.tokenizer.encode(_TEXT, add_special_tokens=False).ids, np.int32)
    config = model.llama.config
    buffer = KVBuffer(config)
    buffer.ensure(len(tokens), 0)
    queries: list[Floats] = []

    def note(layer: int, rotated: torch.Tensor) -> None:
        last = rotated[:, -_QUERY_TOKENS:].reshape(config.num_kv_heads, -1, config.head_dim)
        queries.append(last.numpy().astype(np.float32))

    model.llama.forward(tokens, buffer, 0, note)
    blocks = buffer.values[:, :, :, : len(tokens)].numpy().astype(np.float32)
    return CanarySample(blocks=blocks, queries=np.stack(queries))


def _measure(model: LocalModel, wanted: KVNamespace) -> int:
    canary = Canary(policy=CodecPolicy(recent_tokens=_RECENT_TOKENS))
    return canary.measure(wanted, canary_sample(model)).namespace.bits


def _recall(path: Path, measure: Callable[[], int]) -> int:
    """What was measured before; a file that cannot be read or written costs only the time to measure again."""
    try:
        bits = json.loads(path.read_text(encoding='utf-8'))['bits']
        if bits in WIDTHS:
            return int(bits)
    except (OSError, ValueError, KeyError, TypeError):
        pass
    bits = measure()
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps({'bits': bits}), encoding='utf-8')
    except OSError as error:
        _log.warning('the canary of this model is measured again at the next start: %s', error)
    return bits
