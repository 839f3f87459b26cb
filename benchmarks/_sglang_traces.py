"""Driver for SGLang's environment: block hit rates of its RadixCache on a trace, one token per block.

JSON in: requests, policies, capacities; one JSON line out: the hit rate by policy and capacity.
"""

from array import array
import json
import sys

from sglang.srt.mem_cache.base_prefix_cache import EvictParams, InsertParams, MatchPrefixParams
from sglang.srt.mem_cache.cache_init_params import CacheInitParams
from sglang.srt.mem_cache.radix_cache import RadixCache, RadixKey
import torch

from benchmarks._sglang_tree import CountingAllocator


def hit_rate(requests: list[list[int]], policy: str, capacity: int) -> float:
    """Every request is matched, locked, made room for and inserted, as far as it fits."""
    tree = RadixCache(
        CacheInitParams(
            disable=False,
            req_to_token_pool=None,
            token_to_kv_pool_allocator=CountingAllocator(1),
            page_size=1,
            eviction_policy=policy,
        )
    )
    slots = torch.arange(max(map(len, requests)))
    num_hits = num_blocks = 0
    for request in requests:
        found = tree.match_prefix(MatchPrefixParams(key=RadixKey(array('q', request))))
        num_matched, node = found.device_prefix_len, found.last_device_node
        num_hits += num_matched
        num_blocks += len(request)
        tree.inc_lock_ref(node)
        missing = min(len(request) - num_matched, capacity - num_matched)
        room = capacity - tree.evictable_size() - tree.protected_size()
        if missing > room:
            tree.evict(EvictParams(num_tokens=missing - room))
            room = capacity - tree.evictable_size() - tree.protected_size()
        head = request[: num_matched + min(missing, room)]
        if head:
            tree.insert(InsertParams(key=RadixKey(array('q', head)), value=slots[: len(head)]))
        tree.dec_lock_ref(node)
    return num_hits / max(1, num_blocks)


def main() -> None:
    """All policies at all capacities."""
    wanted = json.load(sys.stdin)
    torch.set_num_threads(1)
    rates: dict[str, list[float]] = {}
    for policy in wanted['policies']:
        print(f'SGLang {policy} …', file=sys.stderr, flush=True)
        rates[policy] = [hit_rate(wanted['requests'], policy, capacity) for capacity in wanted['capacities']]
    print(json.dumps({'rates': rates}))


if __name__ == '__main__':
    main()
