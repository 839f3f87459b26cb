import json
from pathlib import Path

from gguf import GGUFWriter, TokenType
import numpy as np
import pytest
from safetensors.numpy import load_file
from tokenizers import Tokenizer

from kv_agent_ros.errors import ModelUnavailableError
from kv_agent_ros.inference.gguf_convert import LAYER_TENSORS, TOP_TENSORS, converted_directory
from kv_agent_ros.inference.local_model import LocalModel, load_local_model
from kv_agent_ros.inference.tiny_model import TinyShape

SHAPE = TinyShape()


def interleaved(weight: np.ndarray, num_heads: int) -> np.ndarray:
    """llama.cpp's order of the rotary rows."""
    halves = weight.reshape(num_heads, 2, weight.shape[0] // num_heads // 2, weight.shape[1])
    return np.ascontiguousarray(halves.swapaxes(1, 2).reshape(weight.shape))


def write_gguf(path: Path, directory: Path, architecture: str = 'llama', flavour: str = 'smollm') -> Path:
    """The model of a Hugging Face directory as float32 GGUF, the way llama.cpp writes it."""
    writer = GGUFWriter(path, architecture)
    writer.add_name('tiny')
    writer.add_block_count(SHAPE.num_layers)
    writer.add_context_length(SHAPE.max_tokens)
    writer.add_embedding_length(SHAPE.hidden_size)
    writer.add_feed_forward_length(SHAPE.intermediate_size)
    writer.add_head_count(SHAPE.num_heads)
    writer.add_head_count_kv(SHAPE.num_kv_heads)
    writer.add_rope_freq_base(10_000.0)
    writer.add_layer_norm_rms_eps(1e-5)
    vocabulary = json.loads((directory / 'tokenizer.json').read_text())['model']['vocab']
    writer.add_vocab_size(len(vocabulary))
    writer.add_tokenizer_model('gpt2')
    writer.add_tokenizer_pre(flavour)
    writer.add_token_list(list(vocabulary))
    writer.add_token_types([TokenType.CONTROL if word.startswith('<|') else TokenType.NORMAL for word in vocabulary])
    writer.add_token_merges(['t h'])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_chat_template('chatml')
    for name, weight in load_file(directory / 'model.safetensors').items():
        writer.add_tensor(*gguf_tensor(name, weight))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def gguf_tensor(name: str, weight: np.ndarray) -> tuple[str, np.ndarray]:
    tops = {theirs: ours for ours, theirs in TOP_TENSORS.items()}
    layers = {theirs: ours for ours, theirs in LAYER_TENSORS.items()}
    stem = name.removesuffix('.weight')
    if stem in tops:
        return f'{tops[stem]}.weight', weight
    _, _, index, part = stem.split('.', 3)
    if part == 'self_attn.q_proj':
        weight = interleaved(weight, SHAPE.num_heads)
    elif part == 'self_attn.k_proj':
        weight = interleaved(weight, SHAPE.num_kv_heads)
    return f'blk.{index}.{layers[part]}.weight', weight


def test_converted_model_is_the_one_that_was_written(
    tiny_model: LocalModel, tiny_directory: Path, tmp_path: Path
) -> None:
    directory = converted_directory(write_gguf(tmp_path / 'tiny.gguf', tiny_directory), tmp_path / 'cache', print)
    expected, got = (load_file(place / 'model.safetensors') for place in (tiny_directory, directory))
    assert expected.keys() == got.keys()
    assert all(np.array_equal(expected[name], got[name]) for name in expected)
    converted = load_local_model(str(directory), tmp_path)
    assert converted.llama.config.rope_theta == tiny_model.llama.config.rope_theta
    assert converted.stop_ids == tiny_model.stop_ids


def test_digits_stay_single_tokens(tiny_directory: Path, tmp_path: Path) -> None:
    directory = converted_directory(write_gguf(tmp_path / 'tiny.gguf', tiny_directory), tmp_path / 'cache', print)
    tokenizer = Tokenizer.from_file(str(directory / 'tokenizer.json'))
    assert tokenizer.encode('12').tokens == ['1', '2']
    assert tokenizer.decode(tokenizer.encode('é 12 漢').ids) == 'é 12 漢'


def test_equal_files_are_converted_once(tiny_directory: Path, tmp_path: Path) -> None:
    said: list[str] = []
    first = write_gguf(tmp_path / 'a.gguf', tiny_directory)
    second = tmp_path / 'b.gguf'
    second.write_bytes(first.read_bytes())
    places = [converted_directory(path, tmp_path / 'cache', said.append) for path in (first, second)]
    assert places[0] == places[1]
    assert sum(text.startswith('converting') for text in said) == 1
    assert len(list((tmp_path / 'cache').iterdir())) == 1


@pytest.mark.parametrize(('architecture', 'flavour'), [('gemma', 'smollm'), ('llama', 'qwen2')])
def test_other_architectures_and_tokenizers_are_refused(
    tiny_directory: Path, tmp_path: Path, architecture: str, flavour: str
) -> None:
    path = write_gguf(tmp_path / 'tiny.gguf', tiny_directory, architecture, flavour)
    with pytest.raises(ModelUnavailableError, match='expected'):
        converted_directory(path, tmp_path / 'cache', print)
    assert list((tmp_path / 'cache').iterdir()) == []


def test_truncated_file_is_refused(tiny_directory: Path, tmp_path: Path) -> None:
    path = write_gguf(tmp_path / 'tiny.gguf', tiny_directory)
    whole = path.read_bytes()
    for size in (3, 100, len(whole) // 2):
        path.write_bytes(whole[:size])
        with pytest.raises(ModelUnavailableError):
            converted_directory(path, tmp_path / 'cache', print)
