"""What other caches do with fewer bits, on the same arrays: KIVI as published, and transformers' quantised cache."""

from dataclasses import dataclass
from importlib.util import find_spec

import numpy as np
import torch
from transformers import LlamaConfig
from transformers.cache_utils import QuantizedCache

from kv_agent_ros.kvcache.rotation import Floats

GROUP = 32
HF_GROUP = 64


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Coded:
    """Keys and values as they come back, and the bits that an element took."""

    keys: Floats  # (rows, tokens, channels)
    values: Floats
    bits: float


def kivi(keys: Floats, values: Floats, bits: int, key_axis: int = 1) -> Coded:
    """Liu et al. 2024: groups of 32, keys along tokens, values along channels, scale and minimum in float16."""
    return Coded(keys=_grouped(keys, bits, key_axis), values=_grouped(values, bits, 2), bits=bits + 2 * 16 / GROUP)


def hf_quantized_cache(keys: Floats, values: Floats, bits: int) -> Coded | None:
    """transformers' QuantizedCache with its quanto backend and its own defaults; None where quanto is not installed."""
    if find_spec('optimum') is None:
        return None
    rows, _, channels = keys.shape
    config = LlamaConfig(num_hidden_layers=1, num_attention_heads=rows, num_key_value_heads=rows, head_dim=channels)
    cache = QuantizedCache('quanto', config, nbits=bits, q_group_size=HF_GROUP, residual_length=1)
    cache.update(torch.from_numpy(keys)[None], torch.from_numpy(values)[None], 0)
    layer = cache.layers[0]
    found = [layer._dequantize(coded)[0].float().numpy() for coded in (layer._quantized_keys, layer._quantized_values)]
    return Coded(keys=found[0], values=found[1], bits=bits + 2 * 16 / HF_GROUP)


def _grouped(vectors: Floats, bits: int, axis: int) -> Floats:
    moved = np.moveaxis(vectors, axis, 2)
    groups = moved.reshape(*moved.shape[:2], -1, GROUP)
    low = groups.min(3, keepdims=True).astype(np.float16).astype(np.float32)
    scale = ((groups.max(3, keepdims=True) - low) / ((1 << bits) - 1)).astype(np.float16).astype(np.float32)
    codes = np.clip(np.rint((groups - low) / np.where(scale > 0, scale, 1)), 0, (1 << bits) - 1)
    return np.ascontiguousarray(np.moveaxis((low + codes * scale).reshape(moved.shape), 2, axis))
