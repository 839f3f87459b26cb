"""Driver for SGLang's environment: block hit rates of its RadixCache on a trace, one token per block.

JSON in: requests by trace, policies, capacities; one JSON line out: hit rates by trace and policy, one per capacity.
"""

from array import array
from concurrent.futures import ProcessPoolExecutor
import itertools
import json
import multiprocessing
import os
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


def run(job: tuple[list[list[int]], str, int]) -> float:
    """One replay, in a process of its own."""
    torch.set_num_threads(1)
    return hit_rate(*job)


def main() -> None:
    """All traces under all policies at all capacities, in parallel after one import."""
    wanted = json.load(sys.stdin)
    names = list(itertools.product(wanted['traces'], wanted['policies'], wanted['capacities']))
    jobs = [(wanted['traces'][trace], policy, capacity) for trace, policy, capacity in names]
    rates: dict[str, dict[str, list[float]]] = {trace: {} for trace in wanted['traces']}
    with ProcessPoolExecutor(os.cpu_count(), multiprocessing.get_context('fork')) as pool:
        for (trace, policy, capacity), rate in zip(names, pool.map(run, jobs), strict=True):
            print(f'{trace}, {capacity} blocks, SGLang {policy}: {rate:.4f}', file=sys.stderr, flush=True)
            rates[trace].setdefault(policy, []).append(rate)
    print(json.dumps({'rates': rates}))


if __name__ == '__main__':
    main()
