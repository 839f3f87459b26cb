"""Tries SGLang's prefix trees and our stand-ins once, so that a set-up that cannot work says so at once."""

from array import array
from importlib.metadata import version

from sglang.srt.layers.attention import torch_native_backend
from sglang.srt.mem_cache.base_prefix_cache import InsertParams, MatchPrefixParams
from sglang.srt.mem_cache.cache_init_params import CacheInitParams
from sglang.srt.mem_cache.radix_cache import RadixCache, RadixKey
from sglang.srt.mem_cache.unified_cache.components import ComponentType
from sglang.srt.mem_cache.unified_radix_cache import UnifiedRadixCache
from sglang.srt.plugins import load_plugins
import torch

NUM_CACHED, NUM_ADDED, NUM_HEADS, NUM_KV_HEADS, HEAD_DIM = 37, 5, 6, 2, 16


class Allocator:
    """A pool without memory."""

    size = size_full = 1000
    page_size = 1
    device = torch.device('cpu')
    dtype = torch.float32

    def get_kvcache(self) -> None:
        return None


def tree(core: str) -> RadixCache | UnifiedRadixCache:
    params = CacheInitParams(
        disable=False,
        req_to_token_pool=None,
        token_to_kv_pool_allocator=Allocator(),
        page_size=1,
        tree_components=(ComponentType.FULL,),
        tree_core_backend=None if core == 'radix' else core,
    )
    return RadixCache(params) if core == 'radix' else UnifiedRadixCache(params)


def try_tree(core: str) -> None:
    cache = tree(core)
    cache.insert(InsertParams(key=RadixKey(array('q', range(100))), value=torch.arange(100)))
    probe = RadixKey(array('q', [*range(60), 7, 8]))
    matched = cache.match_prefix(MatchPrefixParams(key=probe)).device_prefix_len
    if matched != 60:
        raise SystemExit(f'tree {core}: expected 60 matched tokens, got {matched}')
    print(f'sglang {version("sglang")}: tree {core} works')


def extended() -> torch.Tensor:
    """The attention of two requests that extend what is cached, by whatever implementation is installed now."""
    generator = torch.Generator().manual_seed(1)
    num_rows = 2 * (NUM_CACHED + NUM_ADDED)
    query = torch.randn(2 * NUM_ADDED, NUM_HEADS, HEAD_DIM, generator=generator)
    keys, values = torch.randn(2, num_rows, NUM_KV_HEADS, HEAD_DIM, generator=generator)
    return torch_native_backend.TorchNativeAttnBackend._run_sdpa_forward_extend(
        None,
        query,
        torch.empty_like(query),
        keys,
        values,
        torch.randperm(num_rows, generator=generator).reshape(2, -1),
        torch.tensor([1, 0]),
        torch.tensor([NUM_CACHED + NUM_ADDED, NUM_ADDED]),
        torch.tensor([NUM_CACHED, 0]),
        torch.tensor([NUM_ADDED, NUM_ADDED]),
        enable_gqa=True,
        causal=True,
    )


def try_stand_ins() -> None:
    stock_extend = torch_native_backend.TorchNativeAttnBackend._run_sdpa_forward_extend
    stock = extended()
    load_plugins()
    difference = float((extended() - stock).abs().max())
    is_replaced = stock_extend is not torch_native_backend.TorchNativeAttnBackend._run_sdpa_forward_extend
    if not is_replaced or not difference < 1e-5:
        raise SystemExit(f'attention over a prefix: expected what the stock one gives, got {difference} beside it')
    print(f'attention over a prefix: {difference:.1e} beside the stock one')


if __name__ == '__main__':
    for name in ('radix', 'python', 'rust'):
        try_tree(name)
    if not torch.cuda.is_available():
        try_stand_ins()
