"""Small hybrid models of transformers with random weights, and an engine that reuses their prefixes through a tier.

The models are real ones in all but size: Gemma 3 (full attention and sliding windows), Granite 4 (full attention and
Mamba-2 states) and Inkling (full attention, sliding windows and convolution states).
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
import math

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from transformers import (
    DynamicCache,
    Gemma3ForCausalLM,
    Gemma3TextConfig,
    GraniteMoeHybridConfig,
    GraniteMoeHybridForCausalLM,
    PreTrainedModel,
)
from transformers.cache_utils import DynamicLayer, DynamicSlidingWindowLayer, LinearAttentionLayer
from transformers.models.inkling.configuration_inkling import InklingTextConfig
from transformers.models.inkling.modeling_inkling import InklingForCausalLM

from kv_agent_ros.kvcache.block import BlockLayout, KVNamespace
from kv_agent_ros.kvcache.components import Component, Part, full_attention, sliding_window, state_snapshot
from kv_agent_ros.kvcache.eviction import LruPolicy
from kv_agent_ros.kvcache.hybrid_tier import HybridTier, HybridWrite
from kv_agent_ros.kvcache.path import TokenPath, token_path
from kv_agent_ros.kvcache.storage.base import checksum
from kv_agent_ros.kvcache.storage.host import HostStore, SharedArena
from kv_agent_ros.kvcache.unified import ComponentLock

Logits = npt.NDArray[np.float32]  # (num_tokens, vocab)
Floats = npt.NDArray[np.float32]

BLOCK_TOKENS = 4
WINDOW_TOKENS = 10  # the 9 tokens before: three blocks
NUM_KV_HEADS, HEAD_DIM = 2, 8

_SIZES = {
    'vocab_size': 64,
    'hidden_size': 32,
    'intermediate_size': 48,
    'num_attention_heads': 4,
    'num_key_value_heads': NUM_KV_HEADS,
    'max_position_embeddings': 512,
}


def gemma() -> PreTrainedModel:
    types = ['sliding_attention', 'full_attention']
    config = Gemma3TextConfig(
        **_SIZES, num_hidden_layers=2, head_dim=HEAD_DIM, sliding_window=WINDOW_TOKENS, layer_types=types
    )
    return Gemma3ForCausalLM(config)


def granite() -> PreTrainedModel:
    config = GraniteMoeHybridConfig(
        **_SIZES,
        num_hidden_layers=2,
        layer_types=['mamba', 'attention'],
        mamba_n_heads=4,
        mamba_d_head=16,
        mamba_d_state=8,
        mamba_n_groups=1,
        mamba_chunk_size=16,
        num_local_experts=2,
        num_experts_per_tok=1,
        shared_intermediate_size=32,
    )
    return GraniteMoeHybridForCausalLM(config)


def inkling() -> PreTrainedModel:
    config = InklingTextConfig(
        **_SIZES,
        num_hidden_layers=2,
        head_dim=HEAD_DIM,
        swa_num_attention_heads=4,
        swa_num_key_value_heads=NUM_KV_HEADS,
        swa_head_dim=HEAD_DIM,
        sliding_window_size=WINDOW_TOKENS,
        d_rel=4,
        rel_extent=32,
        layer_types=['hybrid_sliding', 'hybrid'],
        mlp_layer_types=['dense', 'sparse'],
        moe_intermediate_size=16,
        n_routed_experts=4,
        num_experts_per_tok=2,
        n_shared_experts=1,
        logits_mup_width_multiplier=1.0,
    )
    return InklingForCausalLM(config)


MODELS = {'gemma3': gemma, 'granite4': granite, 'inkling': inkling}


@dataclass(frozen=True, kw_only=True, slots=True)
class State:
    """One tensor that a layer carries from token to token."""

    layer: int
    number: int
    kind: str
    shape: tuple[int, ...] = ()

    def tensor(self, cache: DynamicCache) -> Tensor | None:
        layer = cache.layers[self.layer]
        return (layer.conv_states if self.kind == 'conv' else layer.recurrent_states)[self.number]

    def restore(self, cache: DynamicCache, values: Tensor) -> None:
        layer = cache.layers[self.layer]
        update = layer.update_conv_state if self.kind == 'conv' else layer.update_recurrent_state
        update(values, self.number)


class HybridModel:
    """A model, the components of its layers, and how their parts become and come from its own cache object."""

    def __init__(self, name: str) -> None:
        torch.manual_seed(7)
        self._cold: dict[tuple[int, ...], Logits] = {}
        self._model = MODELS[name]().eval()
        for weight in self._model.parameters():
            if weight.ndim > 1:  # large enough for every part of the past to be seen in the logits
                torch.nn.init.normal_(weight, std=weight.shape[-1] ** -0.5)
        layers = self.empty().layers
        self._sliding = [i for i, layer in enumerate(layers) if isinstance(layer, DynamicSlidingWindowLayer)]
        self._full = [i for i, layer in enumerate(layers) if isinstance(layer, DynamicLayer) and i not in self._sliding]
        self._linear = [i for i, layer in enumerate(layers) if isinstance(layer, LinearAttentionLayer)]
        self._states = self._probe_states()
        self.components = self._components()
        self.namespace = KVNamespace(
            model=name,
            revision='random-7',
            dtype='float32',
            num_layers=len(self._full),
            num_kv_heads=NUM_KV_HEADS,
            head_dim=HEAD_DIM,
            block_tokens=BLOCK_TOKENS,
        )

    def empty(self) -> DynamicCache:
        return DynamicCache(config=self._model.config)

    def forward(self, tokens: Sequence[int], cache: DynamicCache) -> Logits:
        """Logits of these tokens, which join the cache."""
        with torch.inference_mode():
            logits = self._model(input_ids=torch.tensor([tokens]), cache=cache, use_cache=True).logits
        return logits[0].numpy()

    def cold(self, tokens: Sequence[int]) -> Logits:
        """What the model says to a prompt without any cache from elsewhere, in steps of a block."""
        if tuple(tokens) not in self._cold:
            cache = self.empty()
            steps = range(0, len(tokens), BLOCK_TOKENS)
            logits = [self.forward(tokens[step : step + BLOCK_TOKENS], cache) for step in steps]
            self._cold[tuple(tokens)] = np.concatenate(logits)
        return self._cold[tuple(tokens)]

    def pack(self, cache: DynamicCache, component: Component) -> Floats:
        """The part of the block whose tokens came last."""
        if component.name == 'mamba':
            return np.concatenate([state.tensor(cache).numpy().ravel() for state in self._states])
        rows = [cache.layers[i] for i in (self._full if component.name == 'full' else self._sliding)]
        pairs = [torch.stack((row.keys[0], row.values[0])) for row in rows]
        return torch.stack(pairs, dim=1)[..., -BLOCK_TOKENS:, :].numpy().ravel()

    def unpack(self, num_blocks: int, parts: dict[str, list[Floats]]) -> DynamicCache:
        """The model's cache as it was after `num_blocks` blocks."""
        cache = self.empty()
        if not num_blocks:
            return cache
        for name, indexes in (('full', self._full), ('swa', self._sliding)):
            for row, index in enumerate(indexes):
                shape = (2, len(indexes), NUM_KV_HEADS, BLOCK_TOKENS, HEAD_DIM)
                blocks = [torch.from_numpy(part.reshape(shape)[:, row]) for part in parts[name]]
                keys, values = torch.cat(blocks, dim=2)[:, None]
                cache.layers[index].update(keys, values)
                if name == 'swa':
                    cache.layers[index].cumulative_length = num_blocks * BLOCK_TOKENS
        start = 0
        for state in self._states:
            values = parts['mamba'][0][start : start + math.prod(state.shape)].reshape(state.shape)
            state.restore(cache, torch.from_numpy(values))
            start += values.size
        return cache

    def _probe_states(self) -> list['State']:
        cache = self.empty()
        self.forward([1, 2, 3, 4], cache)
        found = [
            State(layer=index, number=number, kind=kind)
            for index in self._linear
            for number in range(cache.layers[index].number_of_states)
            for kind in ('conv', 'recurrent')
        ]
        return [replace(s, shape=tuple(s.tensor(cache).shape)) for s in found if s.tensor(cache) is not None]

    def _components(self) -> tuple[Component, ...]:
        def layout(num_layers: int) -> BlockLayout:
            return BlockLayout(shape=(2, num_layers, NUM_KV_HEADS, BLOCK_TOKENS, HEAD_DIM), dtype='float32')

        components = [full_attention(layout(len(self._full)))]
        if self._sliding:
            components.append(sliding_window(layout(len(self._sliding)), WINDOW_TOKENS))
        if self._linear:
            components.append(state_snapshot(sum(math.prod(s.shape) for s in self._states), 'float32'))
        return tuple(components)


@dataclass(frozen=True, kw_only=True, slots=True)
class Run:
    """Logits of the tokens after the reused ones."""

    logits: Logits
    cached_tokens: int


class HybridEngine:
    """Prefills prompts block by block; takes what the tier has of them, and gives it what it computes."""

    def __init__(self, model: HybridModel, max_parts: dict[str, int]) -> None:
        self.model = model
        self.stores = {
            component.name: HostStore(SharedArena.create(max_parts[component.name] * _slot_bytes(component)))
            for component in model.components
        }
        self.tier = HybridTier(components=model.components, stores=self.stores, policy=LruPolicy())

    def path(self, tokens: Sequence[int]) -> TokenPath:
        return token_path(self.model.namespace, tokens)

    def run(self, tokens: Sequence[int]) -> Run:
        """Prefill with reuse, and publish the new blocks with all their parts."""
        lock = self.tier.lock(self.path(tokens[:-1]))
        cache = self.load(lock)
        self.tier.unlock(lock)
        return self.finish(tokens, lock.num_blocks, cache)

    def load(self, lock: ComponentLock) -> DynamicCache:
        parts = {c.name: [self.read(part) for part in lock.parts(c)] for c in self.model.components}
        return self.model.unpack(lock.num_blocks, parts)

    def finish(self, tokens: Sequence[int], num_cached: int, cache: DynamicCache) -> Run:
        path = self.path(tokens)
        added = range(num_cached, path.num_blocks)
        write = self.tier.reserve(path, {component.name: added for component in self.model.components})
        logits, checksums = self.write_blocks(write, tokens, num_cached, cache)
        self.tier.publish(write, checksums)
        self.tier.check_integrity()
        return Run(logits=logits, cached_tokens=num_cached * BLOCK_TOKENS)

    def write_blocks(
        self, write: HybridWrite, tokens: Sequence[int], num_cached: int, cache: DynamicCache
    ) -> tuple[Logits, dict[Part, bytes]]:
        """Compute everything after the first `num_cached` blocks and fill the slots."""
        logits = []
        checksums: dict[Part, bytes] = {}
        for start in range(num_cached * BLOCK_TOKENS, len(tokens), BLOCK_TOKENS):
            logits.append(self.model.forward(tokens[start : start + BLOCK_TOKENS], cache))
            for part in [part for part in write.slots if part.index == start // BLOCK_TOKENS]:
                view = self.tier.view(write, part)
                view[:] = self.model.pack(cache, part.component).view(np.uint8)
                checksums[part] = checksum(view)
        return np.concatenate(logits), checksums

    def read(self, part: Part) -> Floats:
        out = np.empty(part.component.layout.num_bytes, np.uint8)
        assert self.tier.read(part, out)
        return out.view(np.float32)

    def damage(self, part: Part) -> None:
        """Flip one bit of a published part."""
        store = self.stores[part.component.name]
        store.view(store.slot(part.key))[-1] ^= 1


def _slot_bytes(component: Component) -> int:
    return -(-component.layout.num_bytes // 64) * 64
