"""Driver for SGLang's environment: its unified tree on traces with sessions, references on or off and nothing else.

Both times the Python core, LRU, one token per block; a session is open from its first request to its last. JSON in:
traces with requests, sessions, capacities; one JSON line out: hit rates with and without by trace and capacity.
"""

from array import array
from dataclasses import dataclass
import json
import sys

from sglang.srt.mem_cache.base_prefix_cache import EvictParams, InsertParams, MatchPrefixParams
from sglang.srt.mem_cache.cache_init_params import CacheInitParams
from sglang.srt.mem_cache.radix_cache import RadixKey
from sglang.srt.mem_cache.unified_cache.components import ComponentType
from sglang.srt.mem_cache.unified_radix_cache import UnifiedRadixCache
import torch

from benchmarks._sglang_tree import CountingAllocator


@dataclass(kw_only=True, slots=True)
class FinishedRequest:
    """What SGLang's session references look at in a request."""

    session_id: str
    session_generation: int
    session: None = None


def hit_rate(requests: list[list[int]], sessions: list[str], capacity: int, is_with_references: bool) -> float:
    """Every request is matched, locked, made room for and inserted, as far as it fits."""
    tree = UnifiedRadixCache(
        CacheInitParams(
            disable=False,
            req_to_token_pool=None,
            token_to_kv_pool_allocator=CountingAllocator(1),
            page_size=1,
            eviction_policy='lru',
            tree_components=(ComponentType.FULL,),
            tree_core_backend='python',
            enable_session_radix_cache=is_with_references,
        )
    )
    slots = torch.arange(max(map(len, requests)))
    last_request = {session: number for number, session in enumerate(sessions)}
    num_hits = 0
    for number, (request, session) in enumerate(zip(requests, sessions, strict=True)):
        if request:
            num_hits += serve(tree, request, session, capacity, slots)
        if session and last_request[session] == number:
            tree.release_radix_session(session)
    return num_hits / max(1, sum(map(len, requests)))


def serve(tree: UnifiedRadixCache, request: list[int], session: str, capacity: int, slots: torch.Tensor) -> int:
    """One request; its blocks that were there."""
    generation = tree.ensure_session_generation(session) if session else 0
    found = tree.match_prefix(MatchPrefixParams(key=RadixKey(array('q', request))))
    num_matched = found.device_prefix_len
    lock = tree.lock(found.last_device_node)
    missing = min(len(request), capacity) - num_matched
    room = capacity - tree.full_evictable_size() - tree.full_protected_size()
    if missing > room:
        tree.evict(EvictParams(num_tokens=missing - room))
        room = capacity - tree.full_evictable_size() - tree.full_protected_size()
    head = request[: num_matched + max(0, min(missing, room))]
    result = tree.insert(InsertParams(key=RadixKey(array('q', head)), value=slots[: len(head)])) if head else None
    tree.unlock(lock)
    if session and result is not None and result.last_device_node is not None:
        finished = FinishedRequest(session_id=session, session_generation=generation)
        tree.session_refs.register_session_ref(finished, result.last_device_node)
    return num_matched


def main() -> None:
    """All traces at all their capacities."""
    wanted = json.load(sys.stdin)
    torch.set_num_threads(1)
    rates = {}
    for name, trace in wanted.items():
        for capacity in trace['capacities']:
            print(f'SGLang, {name}, {capacity} blocks …', file=sys.stderr, flush=True)
            pair = [hit_rate(trace['requests'], trace['sessions'], capacity, on) for on in (True, False)]
            rates[f'{name} {capacity}'] = pair
    print(json.dumps({'rates': rates}))


if __name__ == '__main__':
    main()
