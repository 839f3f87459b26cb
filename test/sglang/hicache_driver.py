"""Runs in SGLang's environment: the backend class against SGLang's real host pool. One JSON line out."""

from collections.abc import Callable
import hashlib
import json
from pathlib import Path
import sys
from typing import Any

from sglang.srt.mem_cache.hicache_storage import (
    HiCacheStorageConfig,
    HiCacheStorageExtraInfo,
    PoolHitPolicy,
    PoolName,
    PoolTransfer,
)
from sglang.srt.mem_cache.pool_host.mha import MHATokenToKVPoolHost
from sglang.srt.mem_cache.storage import StorageBackendFactory
import torch

from kv_agent_ros.inference.hicache_pages import HostPages

NUM_PAGES, PAGE, LAYERS, HEADS, WIDTH = 8, 16, 2, 3, 64
NATIVE = {
    'layer_first': (2, LAYERS, NUM_PAGES * PAGE, HEADS, WIDTH),
    'page_first': (2, NUM_PAGES * PAGE, LAYERS, HEADS, WIDTH),
    'page_first_direct': (2, NUM_PAGES, LAYERS, PAGE, HEADS, WIDTH),
    'page_head': (2, NUM_PAGES, HEADS, PAGE, LAYERS, WIDTH),
}
HASHES = [hashlib.sha256(bytes([number])).hexdigest() for number in range(NUM_PAGES)]
INDICES = torch.arange(NUM_PAGES * PAGE)


def host_pool(layout: str, dtype: torch.dtype, seed: int) -> MHATokenToKVPoolHost:
    """SGLang's pool with everything that pages need; its constructor wants a device pool."""
    pool = MHATokenToKVPoolHost.__new__(MHATokenToKVPoolHost)
    pool.layout, pool.dtype, pool.page_size, pool.device, pool.pin_memory = layout, dtype, PAGE, 'cpu', False
    pool.layer_num, pool.head_num, pool.head_dim, pool.v_head_dim = LAYERS, HEADS, WIDTH, WIDTH
    made = torch.randn(NATIVE[layout], generator=torch.Generator().manual_seed(seed))
    pool.kv_buffer = made.to(dtype) if seed else torch.zeros(NATIVE[layout], dtype=dtype)
    return pool


def backend(directory: Path, pool: MHATokenToKVPoolHost, **changes: Any) -> Any:
    """As SGLang makes it from its flags."""
    place = {'module_path': 'kv_agent_ros.inference.hicache_storage', 'class_name': 'KvAgentStorage'}
    options = {'backend_name': 'kv_agent', 'interface_v1': 1, 'directory': str(directory), 'capacity_bytes': 64 << 20}
    config = HiCacheStorageConfig(
        tp_rank=changes.pop('tp_rank', 0),
        tp_size=changes.pop('tp_size', 1),
        pp_rank=0,
        pp_size=1,
        attn_cp_rank=0,
        attn_cp_size=1,
        is_mla_model=False,
        enable_storage_metrics=True,
        is_page_first_layout=False,
        model_name=changes.pop('model_name', 'smol'),
        extra_config=place | options | changes,
    )
    made = StorageBackendFactory.create_backend('dynamic', config, pool)
    made.register_mem_pool_host(pool)
    return made


def pages(pool: MHATokenToKVPoolHost) -> torch.Tensor:
    """(page, 2, layer, token, head, channel), whatever the pool's layout is."""
    buffer = pool.kv_buffer.to(torch.float32)
    if pool.layout == 'layer_first':
        return buffer.reshape(2, LAYERS, NUM_PAGES, PAGE, HEADS, WIDTH).permute(2, 0, 1, 3, 4, 5)
    if pool.layout == 'page_first':
        return buffer.reshape(2, NUM_PAGES, PAGE, LAYERS, HEADS, WIDTH).permute(1, 0, 3, 2, 4, 5)
    if pool.layout == 'page_first_direct':
        return buffer.permute(1, 0, 2, 3, 4, 5)
    return buffer.permute(1, 0, 4, 3, 2, 5)


def error(found: MHATokenToKVPoolHost, sent: MHATokenToKVPoolHost) -> float:
    return float((pages(found) - pages(sent)).square().sum() / pages(sent).square().sum())


def round_trips(directory: Path) -> dict[str, float]:
    """Relative error from one layout to another, by precision; all pages must be found and read."""
    errors = {}
    kinds = (4, torch.float32), (4, torch.float16), (4, torch.bfloat16), (16, torch.bfloat16), (32, torch.float32)
    for bits, dtype in kinds:
        sent = host_pool('layer_first', dtype, 1)
        place = directory / f'{bits}{dtype}'
        assert all(backend(place, sent, bits=bits).batch_set_v1(HASHES, INDICES))
        for layout in NATIVE:
            got = host_pool(layout, dtype, 0)
            reader = backend(place, got, bits=bits)
            assert reader.batch_exists(HASHES) == NUM_PAGES
            assert all(reader.batch_get_v1(HASHES, INDICES))
            errors[f'{bits} {str(dtype)[6:]} {layout}'] = error(got, sent)
    return errors


def lines(directory: Path) -> dict[str, bool]:
    """Which pools get their pages straight from the files, by type and layout."""
    return {
        f'{str(dtype)[6:]} {layout}': HostPages(host_pool(layout, dtype, 0), 4).has_lines
        for dtype in (torch.float32, torch.float16, torch.bfloat16)
        for layout in NATIVE
    }


def scattered(directory: Path) -> float:
    """Relative error of pages that come back to other places, the last one first."""
    sent, got = (host_pool('layer_first', torch.float32, seed) for seed in (1, 0))
    assert all(backend(directory, sent, bits=4).batch_set_v1(HASHES, INDICES))
    places = INDICES.reshape(NUM_PAGES, PAGE).flip(0).reshape(-1)
    assert all(backend(directory, got, bits=4).batch_get_v1(HASHES, places))
    return float((pages(got).flip(0) - pages(sent)).square().sum() / pages(sent).square().sum())


def chains(directory: Path) -> dict[str, int]:
    """Pages that are written and read in pieces, as SGLang does it."""
    pool = host_pool('layer_first', torch.float32, 1)
    store = backend(directory, pool)
    after = HiCacheStorageExtraInfo(prefix_keys=HASHES[:3])
    assert all(store.batch_set_v1(HASHES[:3], INDICES[: 3 * PAGE]))
    assert all(store.batch_set_v1(HASHES[3:], INDICES[3 * PAGE :], after))
    elsewhere = HiCacheStorageExtraInfo(prefix_keys=HASHES[1:3])
    return {
        'whole': store.batch_exists(HASHES),
        'after_prefix': store.batch_exists(HASHES[3:], after),
        'after_another_prefix': store.batch_exists(HASHES[3:], elsewhere),
        'backup_pages': sum(store.get_stats().backup_pgs),
        'told_again': len(store.get_stats().backup_pgs),
    }


def strangers(directory: Path) -> dict[str, int]:
    """What engines that differ in one thing find."""
    float32 = host_pool('layer_first', torch.float32, 1)
    backend(directory, float32).batch_set_v1(HASHES, INDICES)
    return {
        'same': backend(directory, float32).batch_exists(HASHES),
        'model': backend(directory, float32, model_name='other').batch_exists(HASHES),
        'rank': backend(directory, float32, tp_rank=1, tp_size=2).batch_exists(HASHES),
        'bits': backend(directory, float32, bits=16).batch_exists(HASHES),
        'tenant': backend(directory, float32, tenant='neighbour').batch_exists(HASHES),
        'dtype': backend(directory, host_pool('layer_first', torch.float16, 1)).batch_exists(HASHES),
    }


def side_pools(directory: Path) -> dict[str, object]:
    """States beside keys and values."""
    pool, states = host_pool('layer_first', torch.float32, 1), host_pool('page_first', torch.float32, 2)
    store = backend(directory, pool)
    store.register_mem_host_pool_v2(states, PoolName.MAMBA)
    assert all(store.batch_set_v1(HASHES, INDICES))
    after = HiCacheStorageExtraInfo(prefix_keys=HASHES[:4])
    sent = PoolTransfer(name=PoolName.MAMBA, keys=HASHES[4:6], host_indices=INDICES[4 * PAGE : 6 * PAGE])
    assert store.batch_set_v2([sent], after) == {PoolName.MAMBA: [True, True]}
    trailing = PoolTransfer(name=PoolName.MAMBA, keys=HASHES[:1], hit_policy=PoolHitPolicy.TRAILING_PAGES)
    found = store.batch_exists_v2(HASHES, [trailing])
    everywhere = store.batch_exists_v2(HASHES, [PoolTransfer(name=PoolName.MAMBA)])
    back = host_pool('page_first', torch.float32, 0)
    store.register_mem_host_pool_v2(back, PoolName.MAMBA)
    read = store.batch_get_v2([sent], after)[PoolName.MAMBA]
    return {
        'trailing': [found.kv_hit_pages, found.restorable_prefix_pages],
        'all_pages': everywhere.kv_hit_pages,
        'read': read,
        'equal': bool(torch.equal(pages(back)[4:6], pages(states)[4:6])),
    }


def failures(directory: Path) -> dict[str, object]:
    """Calls that cannot work are misses, in the thread that asks."""
    pool = host_pool('layer_first', torch.float32, 1)
    store = backend(directory, pool)
    (directory / 'blocks').rename(directory / 'away')
    refused = store.batch_set_v1(HASHES, INDICES)
    missed = store.batch_get_v1(HASHES, INDICES)
    broken = store.batch_get_v1(HASHES, None), store.batch_set_v1([None], INDICES), store.batch_exists([object()])
    return {'refused': any(refused), 'missed': any(missed), 'broken': broken, 'counted': store.num_failures}


PARTS: tuple[Callable[[Path], object], ...] = (round_trips, lines, scattered, chains, strangers, side_pools, failures)


def main() -> None:
    """Every part in a folder of its own."""
    root = Path(sys.argv[1])
    torch.set_num_threads(1)
    print(json.dumps({part.__name__: part(root / part.__name__) for part in PARTS}))


if __name__ == '__main__':
    main()
