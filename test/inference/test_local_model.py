import json
from pathlib import Path
import shutil

import numpy as np
import pytest

from kv_agent_ros.errors import ModelUnavailableError
from kv_agent_ros.inference.gguf_convert import converted_directory
from kv_agent_ros.inference.llama_config import read_llama_config
from kv_agent_ros.inference.local_llama import KVBuffer
from kv_agent_ros.inference.local_model import LocalModel, load_local_model
from kv_agent_ros.inference.tiny_model import TinyShape, write_tiny_llama


def logits_of(model: LocalModel, tokens: np.ndarray, cuts: tuple[int, ...] = ()) -> np.ndarray:
    """Logits of the last token, prefilled in chunks that end at `cuts`."""
    buffer = KVBuffer(model.llama.config)
    logits = np.empty(0)
    for start, end in zip((0, *cuts), (*cuts, len(tokens)), strict=True):
        logits = model.llama.forward(tokens[start:end], buffer, start)
    return logits


def random_tokens(model: LocalModel, num_tokens: int) -> np.ndarray:
    return np.random.default_rng(1).integers(0, model.llama.config.vocab_size, num_tokens).astype(np.int32)


@pytest.mark.parametrize('scaling', [None, 'llama3'])
def test_network_computes_what_transformers_computes(tmp_path: Path, scaling: str | None) -> None:
    transformers = pytest.importorskip('transformers')
    torch = pytest.importorskip('torch')
    directory = write_tiny_llama(tmp_path / 'model', 3, TinyShape())
    config = json.loads((directory / 'config.json').read_text())
    if scaling:
        config['rope_scaling'] = {
            'rope_type': 'llama3',
            'factor': 8.0,
            'low_freq_factor': 1.0,
            'high_freq_factor': 4.0,
            'original_max_position_embeddings': 64,
        }
    (directory / 'config.json').write_text(json.dumps(config))
    model = load_local_model(str(directory), tmp_path)
    tokens = random_tokens(model, 200)
    reference = transformers.LlamaForCausalLM.from_pretrained(directory, dtype=torch.float32)
    with torch.inference_mode():
        expected = reference(torch.from_numpy(tokens)[None].long()).logits[0, -1].numpy()
    assert np.abs(logits_of(model, tokens, (70, 71, 130)) - expected).max() < 1e-4


@pytest.mark.parametrize('cuts', [(1,), (199,), (16, 32, 48), (64, 65, 66, 128)])
def test_chunked_prefill_equals_one_pass(tiny_model: LocalModel, cuts: tuple[int, ...]) -> None:
    tokens = random_tokens(tiny_model, 200)
    assert np.abs(logits_of(tiny_model, tokens, cuts) - logits_of(tiny_model, tokens)).max() < 1e-4


def test_grown_buffer_keeps_what_it_holds(tiny_model: LocalModel) -> None:
    tokens = random_tokens(tiny_model, 700)
    assert np.abs(logits_of(tiny_model, tokens, (500, 690)) - logits_of(tiny_model, tokens)).max() < 1e-4


def test_smollm2_knows_the_capital_of_france(smollm2: LocalModel) -> None:
    tokens = np.array(smollm2.tokenizer.encode('The capital of France is').ids, dtype=np.int32)
    assert smollm2.tokenizer.decode([int(logits_of(smollm2, tokens).argmax())]) == ' Paris'


def test_changed_weights_are_another_revision(tiny_model: LocalModel, tmp_path: Path) -> None:
    other = load_local_model(str(write_tiny_llama(tmp_path / 'tiny', 8, TinyShape())), tmp_path)
    assert other.name == tiny_model.name
    assert other.namespace(16).digest != tiny_model.namespace(16).digest
    assert tiny_model.namespace(16).digest != tiny_model.namespace(16, 'float16').digest


def test_missing_model_says_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(ModelUnavailableError, match='does not exist'):
        load_local_model(str(tmp_path / 'none'), tmp_path)


@pytest.mark.parametrize('name', ['config.json', 'tokenizer.json', 'model.safetensors'])
@pytest.mark.parametrize('damage', ['missing', 'broken'])
def test_incomplete_directory_is_an_unavailable_model(
    tiny_directory: Path, tmp_path: Path, name: str, damage: str
) -> None:
    directory = shutil.copytree(tiny_directory, tmp_path / 'model')
    if damage == 'missing':
        (directory / name).unlink()
    else:
        (directory / name).write_bytes((directory / name).read_bytes()[:100])
    with pytest.raises(ModelUnavailableError):
        load_local_model(str(directory), tmp_path)


@pytest.mark.parametrize(
    ('field', 'value'),
    [
        ('model_type', 'qwen2'),
        ('attention_bias', True),
        ('hidden_act', 'gelu'),
        ('sliding_window', 128),
        ('rope_scaling', {'rope_type': 'yarn', 'factor': 4.0}),
        ('vocab_size', None),
        ('hidden_size', 'many'),
    ],
)
def test_network_that_we_would_compute_wrongly_is_refused(
    tiny_directory: Path, tmp_path: Path, field: str, value: object
) -> None:
    config = json.loads((tiny_directory / 'config.json').read_text())
    (tmp_path / 'config.json').write_text(json.dumps(config | {field: value}))
    with pytest.raises(ModelUnavailableError, match=r'config\.json'):
        read_llama_config(tmp_path)


def test_broken_gguf_leaves_nothing_behind(tmp_path: Path) -> None:
    path = tmp_path / 'model.gguf'
    path.write_bytes(b'GGUF' + b'\0' * 64)
    with pytest.raises(ModelUnavailableError):
        converted_directory(path, tmp_path / 'cache', print)
    assert list((tmp_path / 'cache').iterdir()) == []


def test_second_start_does_not_convert_again(smollm2: LocalModel) -> None:
    said: list[str] = []
    cache_dir = Path.home() / '.cache' / 'kv_agent_ros' / 'models'
    again = load_local_model('bundled', cache_dir, 1, said.append)
    assert said == []
    assert again.revision == smollm2.revision
