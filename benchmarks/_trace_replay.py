"""Replays a trace through RadixPrefixCache: lock, make room, insert, unlock for every request, one token per block."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
import time

import numpy as np

from benchmarks._traces import NO_SESSION, Trace
from kv_agent_ros.kvcache.block import SessionKey
from kv_agent_ros.kvcache.eviction import EvictionPolicy, LruPolicy, SessionsLast, UseObserver
from kv_agent_ros.kvcache.hit_density import HitDensityPolicy
from kv_agent_ros.kvcache.path import TokenPath
from kv_agent_ros.kvcache.radix_tree import RadixPrefixCache
from kv_agent_ros.kvcache.session_index import SessionIndex

GHOSTS_PER_BLOCK = 4


@dataclass(frozen=True, kw_only=True, slots=True)
class Variant:
    """One way to run our tree."""

    policy: EvictionPolicy
    num_ghosts: int = 0
    observers: Sequence[UseObserver] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class Replay:
    """What came out; `cpu_s` is the time of all requests."""

    hit_rate: float
    cpu_s: float


def _lru(capacity: int, sessions: SessionIndex) -> Variant:
    return Variant(policy=LruPolicy())


def _density(capacity: int, sessions: SessionIndex) -> Variant:
    policy = HitDensityPolicy()
    return Variant(policy=policy, num_ghosts=GHOSTS_PER_BLOCK * capacity, observers=(policy,))


def _no_ghosts(capacity: int, sessions: SessionIndex) -> Variant:
    policy = HitDensityPolicy()
    return Variant(policy=policy, observers=(policy,))


def _density_sessions(capacity: int, sessions: SessionIndex) -> Variant:
    plain = _density(capacity, sessions)
    policy = SessionsLast(sessions.num_references, plain.policy)
    return Variant(policy=policy, num_ghosts=plain.num_ghosts, observers=plain.observers)


def _lru_sessions(capacity: int, sessions: SessionIndex) -> Variant:
    return Variant(policy=SessionsLast(sessions.num_references, LruPolicy()))


VARIANTS: dict[str, Callable[[int, SessionIndex], Variant]] = {
    'ours': _density,
    'our tree, LRU': _lru,
    'without ghosts': _no_ghosts,
}
SESSION_VARIANTS: dict[str, Callable[[int, SessionIndex], Variant]] = {
    'ours with session references': _density_sessions,
    'LRU with session references': _lru_sessions,
}


def replay(trace: Trace, capacity: int, variant_name: str) -> Replay:
    """Hit rate over all blocks of all requests. A session is open from its first request to its last."""
    sessions = SessionIndex(max_sessions=len(trace.requests) + 1)
    is_with_sessions = variant_name in SESSION_VARIANTS
    variant = (VARIANTS | SESSION_VARIANTS)[variant_name](capacity, sessions)
    tree = RadixPrefixCache(variant.policy, variant.num_ghosts, variant.observers)
    last_request = {session: number for number, session in enumerate(trace.sessions)}
    num_hits = 0
    start_s = time.process_time()
    for number, (blocks, session) in enumerate(zip(trace.requests, trace.sessions, strict=True)):
        path = TokenPath(root=b'trace', tokens=np.array(blocks, '<i4').tobytes())
        found, kept, evicted = _serve(tree, path, capacity)
        num_hits += found
        if is_with_sessions and session != NO_SESSION:
            _refer(sessions, session, path.head(kept), evicted)
            if last_request[session] == number:
                sessions.end(_key(session))
                tree.reorder()
    return Replay(hit_rate=num_hits / max(1, trace.num_blocks), cpu_s=time.process_time() - start_s)


def _serve(tree: RadixPrefixCache, path: TokenPath, capacity: int) -> tuple[int, int, list[bytes]]:
    """One request: blocks found, blocks of it in the tree afterwards, keys that left for it."""
    lock = tree.lock(path)
    missing = min(path.num_blocks, capacity) - lock.num_blocks
    evicted = tree.evict(max(0, missing - (capacity - tree.num_blocks)))
    kept = lock.num_blocks + min(missing, capacity - tree.num_blocks)
    tree.insert(path.head(kept))
    tree.unlock(lock)
    return lock.num_blocks, kept, evicted


def _refer(sessions: SessionIndex, session: str, path: TokenPath, evicted: Sequence[bytes]) -> None:
    sessions.forget_blocks(evicted)
    sessions.refer(_key(session), sessions.begin(_key(session)), path, path.keys())


def _key(session: str) -> SessionKey:
    return SessionKey(robot_id='trace', session_id=session)
