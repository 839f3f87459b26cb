"""What a Hugging Face config.json says about a Llama network, and whether we can run it.

Refuses what the network here does not do (biases, sliding windows, other activations) instead of computing it wrongly.
"""

from dataclasses import dataclass
import json
import math
from pathlib import Path
from typing import Any  # a stranger's JSON

from kv_agent_ros.errors import ModelUnavailableError

DEFAULT_THETA = 10_000.0


@dataclass(frozen=True, kw_only=True, slots=True)
class RopeScaling:
    """Llama 3's stretched rotary positions; `factor` 1 means plain RoPE."""

    factor: float = 1.0
    low_frequency_factor: float = 1.0
    high_frequency_factor: float = 4.0
    original_tokens: int = 8192


@dataclass(frozen=True, kw_only=True, slots=True)
class LlamaConfig:
    """The shape of the network."""

    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    rms_norm_eps: float
    rope_theta: float
    rope_scaling: RopeScaling
    max_tokens: int
    stop_ids: tuple[int, ...]


def read_llama_config(directory: Path) -> LlamaConfig:
    """The config of a model directory; raises ModelUnavailableError when it is missing, unreadable or not for us."""
    path = directory / 'config.json'
    try:
        values = json.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise ModelUnavailableError(f'{path}: expected the config.json of a Hugging Face model, got {error}') from error
    if not isinstance(values, dict):
        raise ModelUnavailableError(f'{path}: expected a JSON object, got {type(values).__name__}')
    _refuse_unknown(path, values)
    try:
        return _config(path, values)
    except (KeyError, TypeError, ValueError, ZeroDivisionError) as error:
        raise ModelUnavailableError(f'{path}: expected the sizes of a Llama model, got {error!r}') from error


def _config(path: Path, values: dict[str, Any]) -> LlamaConfig:
    num_heads = int(values['num_attention_heads'])
    rope = values.get('rope_parameters') or values.get('rope_scaling') or {}
    eos = values.get('eos_token_id', [])
    return LlamaConfig(
        vocab_size=int(values['vocab_size']),
        hidden_size=int(values['hidden_size']),
        intermediate_size=int(values['intermediate_size']),
        num_layers=int(values['num_hidden_layers']),
        num_heads=num_heads,
        num_kv_heads=int(values.get('num_key_value_heads') or num_heads),
        head_dim=int(values.get('head_dim') or values['hidden_size'] // num_heads),
        rms_norm_eps=float(values.get('rms_norm_eps', 1e-6)),
        rope_theta=float(rope.get('rope_theta') or values.get('rope_theta') or DEFAULT_THETA),
        rope_scaling=_rope_scaling(path, rope),
        max_tokens=int(values['max_position_embeddings']),
        stop_ids=tuple(eos) if isinstance(eos, list) else (int(eos),),
    )


def rotary_frequencies(config: LlamaConfig) -> list[float]:
    """Radians per token of each of the head_dim / 2 rotary pairs."""
    pairs = range(0, config.head_dim, 2)
    return [_scaled(config.rope_theta ** -(pair / config.head_dim), config.rope_scaling) for pair in pairs]


def _scaled(frequency: float, scaling: RopeScaling) -> float:
    """Llama 3's rule: slow pairs are stretched by `factor`, fast ones kept, those between are blended."""
    if scaling.factor == 1.0:
        return frequency
    turns = scaling.original_tokens * frequency / (2 * math.pi)
    span = scaling.high_frequency_factor - scaling.low_frequency_factor
    kept = min(1.0, max(0.0, (turns - scaling.low_frequency_factor) / span))
    return (1 - kept) * frequency / scaling.factor + kept * frequency


def _rope_scaling(path: Path, rope: dict[str, Any]) -> RopeScaling:
    kind = rope.get('rope_type') or rope.get('type') or 'default'
    if kind == 'default':
        return RopeScaling()
    if kind != 'llama3':
        raise ModelUnavailableError(f'{path}: expected rope_type default or llama3, got {kind}; choose another model')
    return RopeScaling(
        factor=float(rope['factor']),
        low_frequency_factor=float(rope['low_freq_factor']),
        high_frequency_factor=float(rope['high_freq_factor']),
        original_tokens=int(rope['original_max_position_embeddings']),
    )


def _refuse_unknown(path: Path, values: dict[str, object]) -> None:
    expected: dict[str, tuple[object, ...]] = {
        'model_type': ('llama', 'mistral'),
        'hidden_act': ('silu',),
        'attention_bias': (False, None),
        'mlp_bias': (False, None),
        'sliding_window': (None,),
    }
    for name, allowed in expected.items():
        got = values.get(name)
        if got not in allowed:
            raise ModelUnavailableError(
                f'{path}: expected {name} to be one of {allowed}, got {got!r}; serve this model with another backend'
            )
