"""Makes each of SGLang's prefix trees once, so that a set-up that cannot work says so at once."""

from array import array
from importlib.metadata import version

from sglang.srt.mem_cache.base_prefix_cache import InsertParams, MatchPrefixParams
from sglang.srt.mem_cache.cache_init_params import CacheInitParams
from sglang.srt.mem_cache.radix_cache import RadixCache, RadixKey
from sglang.srt.mem_cache.unified_cache.components import ComponentType
from sglang.srt.mem_cache.unified_radix_cache import UnifiedRadixCache
import torch


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


def main() -> None:
    for core in ('radix', 'python', 'rust'):
        cache = tree(core)
        cache.insert(InsertParams(key=RadixKey(array('q', range(100))), value=torch.arange(100)))
        probe = RadixKey(array('q', [*range(60), 7, 8]))
        matched = cache.match_prefix(MatchPrefixParams(key=probe)).device_prefix_len
        if matched != 60:
            raise SystemExit(f'tree {core}: expected 60 matched tokens, got {matched}')
        print(f'sglang {version("sglang")}: tree {core} works')


if __name__ == '__main__':
    main()
