"""Driver for SGLang's environment: its trees and ours in turns, in one interpreter. JSON in, one JSON line out."""

from array import array
from collections.abc import Sequence
import json
import sys

from sglang.srt.mem_cache.base_prefix_cache import InsertParams, MatchPrefixParams
from sglang.srt.mem_cache.cache_init_params import CacheInitParams
from sglang.srt.mem_cache.radix_cache import RadixCache, RadixKey
from sglang.srt.mem_cache.unified_cache.components import ComponentType
from sglang.srt.mem_cache.unified_radix_cache import UnifiedRadixCache
import torch

from benchmarks._tree_workload import OurTree, Tokens, run_rounds

NUM_SLOTS = 40_000_000


class CountingAllocator:
    """The cheapest there can be: SGLang's own concatenates a list of all free slots, which is not what is measured."""

    device = torch.device('cpu')
    dtype = torch.float32

    def __init__(self, page_size: int) -> None:
        self.size = self.size_full = NUM_SLOTS
        self.page_size = page_size

    def available_size(self) -> int:
        return self.size

    def free(self, indices: torch.Tensor) -> None:
        pass

    def free_segment(self, indices: torch.Tensor, start_pos: int = 0) -> None:
        pass

    def free_group_begin(self) -> None:
        pass

    def free_group_end(self) -> None:
        pass

    def get_kvcache(self) -> None:
        return None


class SglangTree:
    """Sequences are ready as arrays of the kind that SGLang's keys want; every request makes its key."""

    def __init__(self, items: Sequence[Tokens], block_tokens: int, core: str) -> None:
        self._sequences = [array('q', tokens.astype('<i8').tobytes()) for tokens in items]
        self._slots = torch.arange(max(map(len, items)) // block_tokens * block_tokens)
        parameters = CacheInitParams(
            disable=False,
            req_to_token_pool=None,
            token_to_kv_pool_allocator=CountingAllocator(block_tokens),
            page_size=block_tokens,
            eviction_policy='lru',
            tree_components=(ComponentType.FULL,),
            tree_core_backend=None if core == 'radix' else core,
        )
        self._tree = RadixCache(parameters) if core == 'radix' else UnifiedRadixCache(parameters)

    def insert(self, index: int) -> int:
        key = RadixKey(self._sequences[index])
        return self._tree.insert(InsertParams(key=key, value=self._slots)).prefix_len

    def match(self, index: int) -> int:
        key = RadixKey(self._sequences[index])
        return self._tree.match_prefix(MatchPrefixParams(key=key)).device_prefix_len


def radix(items: Sequence[Tokens], block_tokens: int) -> SglangTree:
    """SGLang's RadixCache, in Python."""
    return SglangTree(items, block_tokens, 'radix')


def rust(items: Sequence[Tokens], block_tokens: int) -> SglangTree:
    """SGLang's unified tree with its Rust core, its default."""
    return SglangTree(items, block_tokens, 'rust')


def main() -> None:
    """Rounds of every tree at every block size, one after the other."""
    request = json.load(sys.stdin)
    torch.set_num_threads(1)
    runs = run_rounds({'ours': OurTree, 'python': radix, 'rust': rust}, request)
    print(json.dumps({'runs': runs}))


if __name__ == '__main__':
    main()
