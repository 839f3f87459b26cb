"""Writes a tiny Llama with random weights as a Hugging Face directory: the whole local path without a download.

Its text means nothing, but its tokens, keys, values and grammars are as real as a large model's.
"""

from dataclasses import dataclass
import json
from pathlib import Path

import numpy as np
import numpy.typing as npt
from safetensors.numpy import save_file
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

CONTROL_TOKENS = ('<|endoftext|>', '<|im_start|>', '<|im_end|>')


@dataclass(frozen=True, kw_only=True, slots=True)
class TinyShape:
    """The size of the network."""

    hidden_size: int = 64
    intermediate_size: int = 96
    num_layers: int = 3
    num_heads: int = 4
    num_kv_heads: int = 2
    head_dim: int = 16
    max_tokens: int = 1024


def write_tiny_llama(directory: Path, seed: int, shape: TinyShape) -> Path:
    """Write config.json, model.safetensors and a byte tokenizer with ChatML's control tokens; returns `directory`."""
    directory.mkdir(parents=True, exist_ok=True)
    tokenizer = _byte_tokenizer()
    tokenizer.save(str(directory / 'tokenizer.json'))
    vocab_size = tokenizer.get_vocab_size()
    config = {
        'architectures': ['LlamaForCausalLM'],
        'model_type': 'llama',
        'hidden_act': 'silu',
        'hidden_size': shape.hidden_size,
        'intermediate_size': shape.intermediate_size,
        'num_hidden_layers': shape.num_layers,
        'num_attention_heads': shape.num_heads,
        'num_key_value_heads': shape.num_kv_heads,
        'head_dim': shape.head_dim,
        'max_position_embeddings': shape.max_tokens,
        'rms_norm_eps': 1e-5,
        'rope_theta': 10_000.0,
        'vocab_size': vocab_size,
        'tie_word_embeddings': False,
        'eos_token_id': tokenizer.token_to_id('<|im_end|>'),
        'torch_dtype': 'float32',
    }
    (directory / 'config.json').write_text(json.dumps(config, indent=1))
    save_file(_weights(shape, vocab_size, seed), directory / 'model.safetensors', metadata={'format': 'pt'})
    return directory


def _byte_tokenizer() -> Tokenizer:
    """One token per byte, one for `th`, plus control tokens."""
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    words = [*CONTROL_TOKENS, *letters, 'th']
    tokenizer = Tokenizer(models.BPE(vocab={word: index for index, word in enumerate(words)}, merges=[('t', 'h')]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(word, special=True, normalized=False) for word in CONTROL_TOKENS])
    return tokenizer


def _weights(shape: TinyShape, vocab_size: int, seed: int) -> dict[str, npt.NDArray[np.float32]]:
    random = np.random.default_rng(seed)

    def matrix(rows: int, columns: int) -> npt.NDArray[np.float32]:
        return random.normal(0.0, columns**-0.5, (rows, columns)).astype(np.float32)

    def norm() -> npt.NDArray[np.float32]:
        return random.uniform(0.5, 1.5, shape.hidden_size).astype(np.float32)

    hidden, inner = shape.hidden_size, shape.intermediate_size
    queries, keys = shape.num_heads * shape.head_dim, shape.num_kv_heads * shape.head_dim
    weights = {
        'model.embed_tokens.weight': random.standard_normal((vocab_size, hidden)).astype(np.float32),
        'model.norm.weight': norm(),
        'lm_head.weight': matrix(vocab_size, hidden),
    }
    for index in range(shape.num_layers):
        layer = f'model.layers.{index}'
        weights |= {
            f'{layer}.input_layernorm.weight': norm(),
            f'{layer}.self_attn.q_proj.weight': matrix(queries, hidden),
            f'{layer}.self_attn.k_proj.weight': matrix(keys, hidden),
            f'{layer}.self_attn.v_proj.weight': matrix(keys, hidden),
            f'{layer}.self_attn.o_proj.weight': matrix(hidden, queries),
            f'{layer}.post_attention_layernorm.weight': norm(),
            f'{layer}.mlp.gate_proj.weight': matrix(inner, hidden),
            f'{layer}.mlp.up_proj.weight': matrix(inner, hidden),
            f'{layer}.mlp.down_proj.weight': matrix(hidden, inner),
        }
    return weights
