"""Turns a Llama GGUF file into a Hugging Face directory (float32 safetensors, tokenizer.json, config.json), once.

Needs no torch and no transformers. The result is keyed by the SHA-256 of the source and appears atomically, so that a
killed conversion leaves nothing that looks finished. Tensors are dequantised exactly.
"""

from collections.abc import Callable
import hashlib
import json
from pathlib import Path
import shutil
import tempfile

from gguf import GGUFReader, quants
import numpy as np
import numpy.typing as npt
from safetensors.numpy import save_file
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from kv_agent_ros.errors import ModelUnavailableError

ProgressListener = Callable[[str], None]
JsonObject = dict[str, object]
Floats = npt.NDArray[np.float32]

FORMAT = 1  # of the directories below; a change of this file's output raises it
CONTROL_TOKEN = 3  # gguf's token type for tokens that are never written by a person

LAYER_TENSORS = {
    'attn_norm': 'input_layernorm',
    'attn_q': 'self_attn.q_proj',
    'attn_k': 'self_attn.k_proj',
    'attn_v': 'self_attn.v_proj',
    'attn_output': 'self_attn.o_proj',
    'ffn_norm': 'post_attention_layernorm',
    'ffn_gate': 'mlp.gate_proj',
    'ffn_up': 'mlp.up_proj',
    'ffn_down': 'mlp.down_proj',
}
TOP_TENSORS = {'token_embd': 'model.embed_tokens', 'output_norm': 'model.norm', 'output': 'lm_head'}
PRE_TOKENIZERS = {
    'smollm': pre_tokenizers.Sequence(
        [
            pre_tokenizers.Digits(individual_digits=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True),
        ]
    ),
    'gpt-2': pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True),
}


def converted_directory(gguf: Path, cache_dir: Path, progress: ProgressListener) -> Path:
    """The Hugging Face directory of `gguf` under `cache_dir`, converted now if it is not there yet (some seconds).

    Raises ModelUnavailableError when the file is not a Llama GGUF with a byte-level BPE tokenizer.
    """
    target = cache_dir / f'{file_sha256(gguf)}-{FORMAT}'
    if target.is_dir():
        return target
    cache_dir.mkdir(parents=True, exist_ok=True)
    partial = Path(tempfile.mkdtemp(prefix='converting-', dir=cache_dir))
    try:
        progress(f'converting {gguf.name} to float32 (once; later starts read {target})')
        _convert(gguf, partial, progress)
        _publish(partial, target)
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    return target


def file_sha256(path: Path) -> str:
    """Hex digest of a file's content."""
    with path.open('rb') as file:
        return hashlib.file_digest(file, 'sha256').hexdigest()


def _publish(partial: Path, target: Path) -> None:
    partial.chmod(0o755)
    try:
        partial.rename(target)
    except OSError:
        if not target.is_dir():  # otherwise another process finished the same conversion first
            raise


def _convert(gguf: Path, target: Path, progress: ProgressListener) -> None:
    try:
        reader = GGUFReader(gguf)
    except ValueError as error:
        raise ModelUnavailableError(f'{gguf}: expected a GGUF file, got {error}') from error
    if _text(reader, 'general.architecture') != 'llama':
        raise ModelUnavailableError(
            f'{gguf}: expected architecture llama, got {_text(reader, "general.architecture")}; choose a Llama model'
        )
    progress('reading the tokenizer')
    _tokenizer(gguf, reader).save(str(target / 'tokenizer.json'))
    progress(f'dequantising {len(reader.tensors)} tensors')
    tensors = _tensors(reader)
    _write_json(target / 'config.json', _config(reader, is_tied='lm_head.weight' not in tensors))
    _write_json(target / 'tokenizer_config.json', _tokenizer_config(reader))
    progress('writing model.safetensors')
    save_file(tensors, target / 'model.safetensors', metadata={'format': 'pt'})


def _tensors(reader: GGUFReader) -> dict[str, Floats]:
    num_heads = _number(reader, 'llama.attention.head_count')
    num_kv_heads = _number(reader, 'llama.attention.head_count_kv')
    tensors = {}
    for tensor in reader.tensors:
        values = np.ascontiguousarray(quants.dequantize(tensor.data, tensor.tensor_type), dtype=np.float32)
        if '.attn_q.' in tensor.name:
            values = _rotary_halves(values, num_heads)
        elif '.attn_k.' in tensor.name:
            values = _rotary_halves(values, num_kv_heads)
        tensors[_tensor_name(tensor.name)] = values
    return tensors


def _rotary_halves(weight: Floats, num_heads: int) -> Floats:
    """Undo GGUF's interleaving of rotary pairs: Hugging Face keeps the two halves of a head apart."""
    pairs = weight.shape[0] // num_heads // 2
    halves = weight.reshape(num_heads, pairs, 2, weight.shape[1]).swapaxes(1, 2)
    return np.ascontiguousarray(halves.reshape(weight.shape))


def _tensor_name(name: str) -> str:
    parts = name.split('.')
    if parts[0] == 'blk':
        return f'model.layers.{parts[1]}.{LAYER_TENSORS[parts[2]]}.{parts[3]}'
    return f'{TOP_TENSORS[parts[0]]}.{parts[1]}'


def _config(reader: GGUFReader, *, is_tied: bool) -> JsonObject:
    num_heads = _number(reader, 'llama.attention.head_count')
    hidden_size = _number(reader, 'llama.embedding_length')
    rope_theta = _real(reader, 'llama.rope.freq_base')
    return {
        'architectures': ['LlamaForCausalLM'],
        'model_type': 'llama',
        'name': _text(reader, 'general.name'),
        'hidden_act': 'silu',
        'hidden_size': hidden_size,
        'intermediate_size': _number(reader, 'llama.feed_forward_length'),
        'num_hidden_layers': _number(reader, 'llama.block_count'),
        'num_attention_heads': num_heads,
        'num_key_value_heads': _number(reader, 'llama.attention.head_count_kv'),
        'head_dim': hidden_size // num_heads,
        'max_position_embeddings': _number(reader, 'llama.context_length'),
        'rms_norm_eps': _real(reader, 'llama.attention.layer_norm_rms_epsilon'),
        'rope_theta': rope_theta,
        'vocab_size': _number(reader, 'llama.vocab_size'),
        'tie_word_embeddings': is_tied,
        'bos_token_id': _number(reader, 'tokenizer.ggml.bos_token_id'),
        'eos_token_id': _number(reader, 'tokenizer.ggml.eos_token_id'),
        'attention_bias': False,
        'mlp_bias': False,
        'torch_dtype': 'float32',
    }


def _tokenizer(gguf: Path, reader: GGUFReader) -> Tokenizer:
    flavour = _text(reader, 'tokenizer.ggml.pre')
    if _text(reader, 'tokenizer.ggml.model') != 'gpt2' or flavour not in PRE_TOKENIZERS:
        raise ModelUnavailableError(
            f'{gguf}: expected a byte-level BPE tokenizer of {sorted(PRE_TOKENIZERS)}, got {flavour}; '
            'give the Hugging Face directory of the model instead'
        )
    words = _texts(reader, 'tokenizer.ggml.tokens')
    merges = [(left, right) for left, _, right in (m.partition(' ') for m in _texts(reader, 'tokenizer.ggml.merges'))]
    try:
        tokenizer = Tokenizer(models.BPE(vocab={word: index for index, word in enumerate(words)}, merges=merges))
    except Exception as error:  # tokenizers raises nothing narrower
        raise ModelUnavailableError(f'{gguf}: expected merges of its own tokens, got {error}') from error
    tokenizer.pre_tokenizer = PRE_TOKENIZERS[flavour]
    tokenizer.decoder = decoders.ByteLevel()
    types = reader.fields['tokenizer.ggml.token_type'].contents()
    special = [word for word, kind in zip(words, types, strict=True) if kind == CONTROL_TOKEN]
    tokenizer.add_special_tokens([AddedToken(word, special=True, normalized=False) for word in special])
    return tokenizer


def _tokenizer_config(reader: GGUFReader) -> JsonObject:
    words = reader.fields['tokenizer.ggml.tokens']
    return {
        'tokenizer_class': 'PreTrainedTokenizerFast',
        'bos_token': words.contents(_number(reader, 'tokenizer.ggml.bos_token_id')),
        'eos_token': words.contents(_number(reader, 'tokenizer.ggml.eos_token_id')),
        'chat_template': _text(reader, 'tokenizer.chat_template'),
        'clean_up_tokenization_spaces': False,
    }


def _write_json(path: Path, values: JsonObject) -> None:
    path.write_text(json.dumps(values, indent=1, sort_keys=True))


def _text(reader: GGUFReader, key: str) -> str:
    return str(_field(reader, key))


def _texts(reader: GGUFReader, key: str) -> list[str]:
    values = _field(reader, key)
    return [str(value) for value in values] if isinstance(values, list) else []


def _number(reader: GGUFReader, key: str) -> int:
    return int(str(_field(reader, key)))


def _real(reader: GGUFReader, key: str) -> float:
    return float(str(_field(reader, key)))


def _field(reader: GGUFReader, key: str) -> object:
    field = reader.get_field(key)
    if field is None:
        raise ModelUnavailableError(f'GGUF file: expected the field {key}, got none; the file is not a whole model')
    return field.contents()
