"""Fewer bits: how small, how wrong, how fast; on synthetic keys with outlier channels and on a real model's.

Ratios are of 16-bit elements to every stored byte. Errors are relative mean square errors of attention's output, sinks
and the recent window exact for everybody. KIVI is the peer as published; the quantised cache of transformers joins
where its quanto backend is installed.
"""

import argparse
from dataclasses import dataclass
import math
from pathlib import Path
import statistics
import sys
import tempfile

from matplotlib.axes import Axes
import numpy as np
import torch

from benchmarks._attention import document, prefill, record
from benchmarks._quantization_peers import Coded, hf_absence, hf_quantized_cache, kivi
from benchmarks._quantization_speed import disk_rows, speed_rows
from benchmarks._reporting import Row, print_json, print_table, save_plot
from kv_agent_ros.config import CACHE_DIR, expand
from kv_agent_ros.inference.local_llama import KVBuffer, Part
from kv_agent_ros.inference.local_model import BUNDLED, LocalModel, load_local_model
from kv_agent_ros.kvcache.arithmetic import best_arithmetic
from kv_agent_ros.kvcache.block import BlockLayout
from kv_agent_ros.kvcache.canary import attention_error
from kv_agent_ros.kvcache.codec_policy import CodecPolicy, codec_for
from kv_agent_ros.kvcache.rotation import Floats

POLICY = CodecPolicy(sink_tokens=4, recent_tokens=128)
BLOCK_TOKENS = (16, 128)
NUM_QUERIES = 64


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Tensors:
    """Keys, values and the queries that look at them, float32."""

    name: str
    blocks: Floats  # (2, layers, kv_heads, tokens, channels)
    queries: Floats  # (layers, kv_heads, queries, channels)

    @property
    def num_tokens(self) -> int:
        return int(self.blocks.shape[3])


def synthetic(seed: int = 0, num_heads: int = 8, num_tokens: int = 4096, channels: int = 128) -> Tensors:
    """Gaussian, 6 outlier channels a head, keys rotated by their positions."""
    random = np.random.default_rng(seed)
    blocks = random.standard_normal((2, 1, num_heads, num_tokens, channels), np.float32)
    for head in range(num_heads):
        outliers = random.choice(channels, 6, replace=False)
        blocks[0, 0, head][:, outliers] += random.choice((-1, 1), 6) * random.uniform(6, 12, 6)
    angles = np.arange(num_tokens)[:, None] * 10_000.0 ** (-np.arange(0, channels, 2) / channels)
    first, second = np.split(blocks[0].copy(), 2, axis=-1)
    cos, sin = np.cos(angles), np.sin(angles)
    blocks[0] = np.concatenate((first * cos - second * sin, second * cos + first * sin), axis=-1)
    return Tensors(
        name='synthetic', blocks=blocks, queries=random.standard_normal((1, num_heads, 64, channels), np.float32)
    )


def real(model: LocalModel, num_tokens: int) -> Tensors:
    """A model over a document of this repository, looked at by the queries of the words that follow."""
    recording = record(model, document(model, 'README.md', num_tokens, NUM_QUERIES))
    num_layers, num_kv_heads = recording.keys.shape[:2]
    channels = recording.keys.shape[3]
    queries = recording.queries[:, :, num_tokens:].reshape(num_layers, num_kv_heads, -1, channels)
    blocks = np.stack((recording.keys, recording.values))[:, :, :, :num_tokens]
    return Tensors(name='smollm2', blocks=blocks, queries=queries)


def ours(tensors: Tensors, bits: int, block_tokens: int) -> Coded:
    """Every block through the codec of this width."""
    _, num_layers, num_heads, num_tokens, channels = tensors.blocks.shape
    layout = BlockLayout(shape=(2, num_layers, num_heads, block_tokens, channels), dtype='float32', bits=bits)
    codec, found, num_bytes = codec_for(layout), np.empty_like(tensors.blocks), 0
    for start in range(0, num_tokens, block_tokens):
        span = slice(start, start + block_tokens)
        raw = np.ascontiguousarray(tensors.blocks[:, :, :, span]).reshape(-1).view(np.uint8)
        stored, out = codec.encode(raw, layout), np.empty_like(raw)
        codec.decode(stored, layout, out)
        found[:, :, :, span] = out.view(np.float32).reshape(layout.shape)
        num_bytes += len(stored)
    rows = (2, -1, num_tokens, channels)
    return Coded(keys=found.reshape(rows)[0], values=found.reshape(rows)[1], bits=8 * num_bytes / found.size)


def layer_errors(tensors: Tensors, coded: Coded) -> list[float]:
    """Of each layer, sinks and the recent window exact."""
    found = np.stack((coded.keys, coded.values)).reshape(tensors.blocks.shape)
    for exact in (slice(0, POLICY.sink_tokens), slice(tensors.num_tokens - POLICY.recent_tokens, None)):
        found[:, :, :, exact] = tensors.blocks[:, :, :, exact]
    layers = range(len(tensors.queries))
    return [attention_error(tensors.queries[i], tensors.blocks[:, i], found[:, i]) for i in layers]


def with_exact(num_tokens: int, bits: float) -> float:
    """The ratio at this length, sinks and the recent window in 16 bits."""
    num_exact = POLICY.sink_tokens + POLICY.recent_tokens
    return 16 * num_tokens / (bits * (num_tokens - num_exact) + 16 * num_exact)


def larger_is_better(name: str, value: float, peer: float, peer_name: str, limit: float, unit: str, n: int) -> Row:
    return Row(name=name, ours=value, peer=peer, peer_name=peer_name, limit=limit, ratio=value / peer, unit=unit, n=n)


def smaller_is_better(name: str, value: float, peer: float, peer_name: str, limit: float, unit: str, n: int) -> Row:
    ratio = peer / value if value > 0 else math.inf
    return Row(name=name, ours=value, peer=peer, peer_name=peer_name, limit=limit, ratio=ratio, unit=unit, n=n)


def size_and_error_rows(tensors: Tensors) -> list[Row]:
    """2 and 4 bits in short and in long blocks against KIVI g32, and keys along the wrong axis."""
    rows: list[Row] = []
    flat = tensors.blocks.reshape(2, -1, *tensors.blocks.shape[3:])
    for bits in (2, 4):
        peer, peer_name = kivi(*flat, bits), f'KIVI-{bits} g32'
        peer_errors = layer_errors(tensors, peer)
        hf = hf_quantized_cache(*flat, bits)
        for block_tokens in BLOCK_TOKENS:
            print(f'{tensors.name}: {bits} bits, blocks of {block_tokens} …', file=sys.stderr, flush=True)
            coded, case = ours(tensors, bits, block_tokens), f'{bits}bit_blocks{block_tokens}_{tensors.name}'
            errors, n = layer_errors(tensors, coded), len(peer_errors)
            exact_ratio, peer_exact = (with_exact(tensors.num_tokens, one.bits) for one in (coded, peer))
            exact_name = f'ratio_with_exact_tokens_of_{tensors.num_tokens}_{case}'
            mean, peer_mean = statistics.fmean(errors), statistics.fmean(peer_errors)
            rows += [
                larger_is_better(f'ratio_{case}', 16 / coded.bits, 16 / peer.bits, peer_name, 16 / bits, 'x', n),
                larger_is_better(exact_name, exact_ratio, peer_exact, peer_name, 16 / bits, 'x', n),
                smaller_is_better(f'attention_error_{case}', mean, peer_mean, peer_name, 0, 'rel. MSE', n),
                smaller_is_better(
                    f'attention_error_worst_layer_{case}', max(errors), max(peer_errors), peer_name, 0, 'rel. MSE', n
                ),
            ]
            if hf is not None:
                hf_error = statistics.fmean(layer_errors(tensors, hf))
                hf_name = f'HF QuantizedCache, {16 / hf.bits:.2f}x'
                rows.append(smaller_is_better(f'attention_error_{case}_hf', mean, hf_error, hf_name, 0, 'rel. MSE', n))
    wrong = statistics.fmean(layer_errors(tensors, kivi(*flat, 2, key_axis=2)))
    short = statistics.fmean(layer_errors(tensors, ours(tensors, 2, BLOCK_TOKENS[0])))
    name = f'attention_error_2bit_wrong_axis_{tensors.name}'
    return [*rows, smaller_is_better(name, short, wrong, 'keys in groups along channels', 0, 'rel. MSE', 1)]


@dataclass(frozen=True, kw_only=True, slots=True)
class Reading:
    """How a model reads on, given a cache."""

    perplexity: float
    choices: tuple[int, ...]  # the likeliest token at every place


def read_on(model: LocalModel, caches: list[Floats], first: int, tokens: np.ndarray) -> list[Reading]:
    """The model over `tokens`, one by one, after caches of the tokens before them; `first` is the one after those.

    All caches advance together, so that the weights are read once a token.
    """
    num_cached, buffers = caches[0].shape[3], [KVBuffer(model.llama.config) for _ in caches]
    for buffer, cached in zip(buffers, caches, strict=True):
        buffer.ensure(num_cached + len(tokens) + 1, 0)
        buffer.values[:, :, :, :num_cached] = torch.from_numpy(cached)
    losses, choices, previous = [], [], np.array([first], np.int32)
    for place, token in enumerate(tokens):
        parts = [Part(tokens=previous, buffer=buffer, start=num_cached + place) for buffer in buffers]
        logits = model.llama.forward_batch(parts).astype(np.float64)
        peak = logits.max(1)
        losses.append(peak + np.log(np.exp(logits - peak[:, None]).sum(1)) - logits[:, token])
        choices.append(logits.argmax(1))
        previous = np.array([token], np.int32)
    perplexities = np.exp(np.mean(losses, 0))
    return [
        Reading(perplexity=float(perplexity), choices=tuple(map(int, chosen)))
        for perplexity, chosen in zip(perplexities, np.transpose(choices), strict=True)
    ]


def reading_rows(model: LocalModel, num_context: int, num_read: int) -> list[Row]:
    """Perplexity and next-token agreement with the exact cache."""
    text = document(model, 'README.md', num_context, num_read + 1)
    buffer = KVBuffer(model.llama.config)
    prefill(model, text.context, buffer)
    exact = buffer.values[:, :, :, :num_context].numpy().copy()
    tensors = Tensors(name='smollm2', blocks=exact, queries=np.empty(0, np.float32))
    flat = exact.reshape(2, -1, *exact.shape[3:])
    caches = [exact]
    for bits in (4, 2):
        caches += [mixed(tensors, coded) for coded in (ours(tensors, bits, BLOCK_TOKENS[0]), kivi(*flat, bits))]
    print(f'the model reads {num_read} tokens on with {len(caches)} caches …', file=sys.stderr, flush=True)
    tokens = text.future[1:]
    reference, *readings = read_on(model, caches, int(text.future[0]), tokens)
    rows = []
    for bits, pair in ((4, readings[:2]), (2, readings[2:])):
        agreements = [statistics.fmean(a == b for a, b in zip(r.choices, reference.choices, strict=True)) for r in pair]
        peer_name, n = f'KIVI-{bits} g32', len(tokens)
        rows += [
            larger_is_better(f'next_token_agreement_{bits}bit', *agreements, peer_name, 1.0, 'share', n),
            smaller_is_better(
                f'perplexity_{bits}bit', *(r.perplexity for r in pair), peer_name, reference.perplexity, 'ppl', n
            ),
        ]
    return rows


def mixed(tensors: Tensors, coded: Coded) -> Floats:
    """The coded blocks with sinks and the recent window exact."""
    found = np.stack((coded.keys, coded.values)).reshape(tensors.blocks.shape)
    found[:, :, :, : POLICY.sink_tokens] = tensors.blocks[:, :, :, : POLICY.sink_tokens]
    found[:, :, :, -POLICY.recent_tokens :] = tensors.blocks[:, :, :, -POLICY.recent_tokens :]
    return found


def draw(axes: Axes, rows: list[Row]) -> None:
    """Error over ratio: lower right is better."""
    by_name = {row.name: row for row in rows}
    for tensors, marker in (('synthetic', 'o'), ('smollm2', 's')):
        cases = [f'{bits}bit_blocks{tokens}_{tensors}' for bits in (2, 4) for tokens in BLOCK_TOKENS]
        sizes, errors = ([by_name[f'{kind}_{case}'] for case in cases] for kind in ('ratio', 'attention_error'))
        for side, colour in (('ours', 'tab:blue'), ('peer', 'tab:orange')):
            points = [[vars_of(row)[side] for row in group] for group in (sizes, errors)]
            axes.scatter(
                *points, marker=marker, color=colour, label=f'{"ours" if side == "ours" else "KIVI g32"}, {tensors}'
            )
    axes.set(yscale='log', xlabel='16-bit bytes / stored bytes', ylabel="relative error of attention's output")
    axes.grid(True, which='both', alpha=0.3)
    axes.legend()


def vars_of(row: Row) -> dict[str, float]:
    return {'ours': row.ours, 'peer': row.peer}


def main() -> None:
    """Measure, then print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument('--context', type=int, default=1024, help="tokens of the real model's cache, a multiple of 128")
    parser.add_argument('--read', type=int, default=64, help='tokens that the real model reads on')
    parser.add_argument('--synthetic-tokens', type=int, default=4096, help='tokens of the synthetic cache')
    parser.add_argument('--n', type=int, default=5, help='repetitions of what is timed')
    parser.add_argument('--model', default=BUNDLED, help='bundled, a .gguf file or a Hugging Face directory')
    parser.add_argument('--cache-dir', type=Path, default=expand(CACHE_DIR) / 'models')
    parser.add_argument(
        '--directory', type=Path, default=Path(tempfile.gettempdir()), help='on the disk to be measured'
    )
    parser.add_argument('--json', action='store_true', help='one JSON object as the last line')
    arguments = parser.parse_args()
    rows: list[Row] = []
    rows += size_and_error_rows(synthetic(num_tokens=arguments.synthetic_tokens))
    model = load_local_model(arguments.model, arguments.cache_dir, 1, lambda line: print(line, file=sys.stderr))
    rows += size_and_error_rows(real(model, arguments.context))
    rows += reading_rows(model, arguments.context, arguments.read)
    for dtype, tokens in (('float32', BLOCK_TOKENS[0]), ('float32', BLOCK_TOKENS[1]), ('float16', BLOCK_TOKENS[0])):
        rows += speed_rows(4, tokens, dtype, arguments.n)
    rows += speed_rows(2, BLOCK_TOKENS[0], 'float32', arguments.n)
    for tokens in BLOCK_TOKENS:
        with tempfile.TemporaryDirectory(prefix='kv_agent_ros-', dir=arguments.directory) as directory:
            rows += disk_rows(4, tokens, Path(directory), arguments.n)
    facts = {
        'model': model.name,
        'arithmetic': type(best_arithmetic()).__name__,
        'context_tokens': arguments.context,
        'hf_quantized_cache': hf_absence() or 'rows that end in _hf, where it kept its time limit',
    }
    if arguments.json:
        print_json(rows, facts)
        return
    print_table(f'KV blocks with fewer bits, {model.name} and synthetic outliers', rows)
    print(save_plot('quantization', lambda axes: draw(axes, rows)))


if __name__ == '__main__':
    main()
