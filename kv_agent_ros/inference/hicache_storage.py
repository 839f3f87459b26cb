"""SGLang's third cache tier in one of our stores: a `dynamic` backend of its HiCache, see scripts/sglang start --l3.

Runs inside SGLang 0.5.23's own processes and adapts its interface to `PageStore`: host pools in torch to blocks, page
hashes to keys. No call raises: whatever fails is a miss, counted and logged, because an exception would end SGLang's
transfer threads.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
import logging
from pathlib import Path
from typing import Any, TypeVar  # Any: SGLang's interface has it

from sglang.srt.mem_cache.hicache_storage import (
    HiCacheStorage,
    HiCacheStorageConfig,
    HiCacheStorageExtraInfo,
    PoolHitPolicy,
    PoolTransfer,
    PoolTransferResult,
)
from sglang.srt.mem_cache.pool_host.base import HostKVCache
from sglang.srt.observability.metrics_collector import StorageMetrics
import torch

from kv_agent_ros.errors import ConfigError
from kv_agent_ros.inference.hicache_pages import HostPages
from kv_agent_ros.inference.page_store import BITS, PageKey, PageStats, PageStore, model_revision
from kv_agent_ros.kvcache.block import KVNamespace, block_key
from kv_agent_ros.kvcache.storage.guarded import GuardedStore
from kv_agent_ros.kvcache.storage.remote import RemoteStore

_log = logging.getLogger(__name__)

T = TypeVar('T')
KV = 'kv'
DEFAULT_BITS = 4
DEFAULT_BYTES = 8 << 30


@dataclass(frozen=True, kw_only=True, slots=True)
class StoreSettings:
    """The `--hicache-storage-backend-extra-config` of this backend; `interface_v1` and
    `hicache_storage_pass_prefix_keys` must be on, they are SGLang's own."""

    directory: Path
    capacity_bytes: int
    bits: int
    model: str  # directory of the weights; without it models are told apart by their served name alone
    tenant: str

    @classmethod
    def read(cls, given: dict[str, Any]) -> 'StoreSettings':
        """Raises ConfigError for what cannot be meant."""
        if not given.get('directory') or given.get('bits', DEFAULT_BITS) not in BITS or not given.get('interface_v1'):
            raise ConfigError(
                f'L3 store: expected a directory, bits out of {BITS} and "interface_v1": 1, got {given}; '
                'scripts/sglang start --l3 DIR writes them'
            )
        return cls(
            directory=Path(given['directory']).expanduser(),
            capacity_bytes=int(given.get('capacity_bytes', DEFAULT_BYTES)),
            bits=int(given.get('bits', DEFAULT_BITS)),
            model=str(given.get('model', '')),
            tenant=str(given.get('tenant', '')),
        )


class KvAgentStorage(HiCacheStorage):
    """SGLang makes one in every scheduler process, registers its host pools, and asks from several threads."""

    def __init__(self, storage_config: HiCacheStorageConfig, options: dict[str, Any]) -> None:
        self._config = storage_config
        self._settings = StoreSettings.read(storage_config.extra_config or {})
        self._pools: dict[str, HostPages] = {}
        self._opened: list[PageStore] = []
        self._reported = PageStats()
        self._num_failures = 0

    @property
    def num_failures(self) -> int:
        """Calls that broke and were answered as misses."""
        return self._num_failures

    def register_mem_pool_host(self, mem_pool_host: HostKVCache) -> None:
        """Opens the store; raises ConfigError or StoreError, which SGLang reports at its start."""
        self.mem_pool_host = mem_pool_host
        pages = HostPages(mem_pool_host, self._settings.bits)
        self._pools[KV] = pages
        store = RemoteStore.open(self._settings.directory, self._settings.capacity_bytes)
        made = PageStore(GuardedStore(store), self._namespace(mem_pool_host).digest)
        made.warm_up(pages.layout)
        self._opened.append(made)
        _log.info('L3 store %s: %d bits, page %s', self._settings.directory, self._settings.bits, pages.layout)

    def register_mem_host_pool_v2(self, host_pool: HostKVCache, host_pool_name: str) -> None:
        """Pools beside keys and values, states of recurrent layers for example, are kept byte by byte."""
        if str(host_pool_name) != KV:
            self._pools[str(host_pool_name)] = HostPages(host_pool, 32)

    def batch_exists(self, keys: list[str], extra_info: HiCacheStorageExtraInfo | None = None) -> int:
        """How many pages are there, up to the first that is not."""
        return self._answer(lambda: self._store.find(self._places(keys, extra_info)), 0)

    def batch_get_v1(
        self, keys: list[str], host_indices: torch.Tensor, extra_info: HiCacheStorageExtraInfo | None = None
    ) -> list[bool]:
        """Fill the pages of the host pool; after the first miss nothing is read."""
        misses = [False] * len(keys)
        return self._answer(lambda: self._load(KV, self._places(keys, extra_info), host_indices), misses)

    def batch_set_v1(
        self, keys: list[str], host_indices: torch.Tensor, extra_info: HiCacheStorageExtraInfo | None = None
    ) -> list[bool]:
        """Keep the pages; after the first that cannot be kept nothing is written."""
        failed = [False] * len(keys)
        return self._answer(lambda: self._save(KV, self._places(keys, extra_info), host_indices), failed)

    def batch_exists_v2(
        self,
        keys: list[str],
        pool_transfers: list[PoolTransfer] | None = None,
        extra_info: HiCacheStorageExtraInfo | None = None,
    ) -> PoolTransferResult:
        """The longest prefix of pages that every pool can restore."""
        return self._answer(
            lambda: self._restorable(self._places(keys, extra_info), pool_transfers or []), PoolTransferResult.empty()
        )

    def batch_get_v2(
        self, transfers: list[PoolTransfer], extra_info: HiCacheStorageExtraInfo | None = None
    ) -> dict[str, list[bool]]:
        """As batch_get_v1, for pools by name."""
        return {each.name: self._moved(each, extra_info, self._load) for each in transfers}

    def batch_set_v2(
        self, transfers: list[PoolTransfer], extra_info: HiCacheStorageExtraInfo | None = None
    ) -> dict[str, list[bool]]:
        """As batch_set_v1, for pools by name."""
        return {each.name: self._moved(each, extra_info, self._save) for each in transfers}

    def get(self, key: str, target_location: Any = None, target_sizes: Any = None) -> None:
        """Never a page: without its prefix and its place in the host pool SGLang's newer interface is used."""

    def batch_get(self, keys: list[str], target_locations: Any = None, target_sizes: Any = None) -> list[None]:
        """See get()."""
        return [None] * len(keys)

    def set(self, key: str, value: Any = None, target_location: Any = None, target_sizes: Any = None) -> bool:
        """See get()."""
        return False

    def batch_set(
        self, keys: list[str], values: Any = None, target_locations: Any = None, target_sizes: Any = None
    ) -> bool:
        """See get()."""
        return False

    def exists(self, key: str) -> bool:
        """Whether this page is there as the first of a prefix."""
        return self.batch_exists([key]) == 1

    def clear(self) -> None:
        """Delete the pages of this model, layout and tenant, for all engines."""
        self._answer(self._store.clear, 0)

    def get_stats(self) -> StorageMetrics:
        """Pages and pages per second since the last call."""
        before, now = self._reported, self._store.stats()
        self._reported = now
        metrics = StorageMetrics()
        if num_read := now.num_read - before.num_read:
            metrics.prefetch_pgs.append(num_read)
            metrics.prefetch_bandwidth.append(self._gigabytes(num_read) / max(now.read_s - before.read_s, 1e-9))
        if num_written := now.num_written - before.num_written:
            metrics.backup_pgs.append(num_written)
            metrics.backup_bandwidth.append(self._gigabytes(num_written) / max(now.write_s - before.write_s, 1e-9))
        return metrics

    def close(self) -> None:
        """Give the store back; its pages stay."""
        for store in self._opened:
            store.close()

    @property
    def _store(self) -> PageStore:
        return self._opened[0]

    def _namespace(self, pool: HostKVCache) -> KVNamespace:
        config, settings = self._config, self._settings
        rank = 0 if config.is_mla_model else config.tp_rank
        parts = f'tp{rank}/{config.tp_size} pp{config.pp_rank}/{config.pp_size}'
        parts += f' cp{config.attn_cp_rank}/{config.attn_cp_size} dcp{config.dcp_rank}/{config.dcp_size}'
        layout = self._pools[KV].layout
        return KVNamespace(
            model=config.model_name or '',
            revision=model_revision(Path(settings.model)) if settings.model else '',
            dtype=str(pool.dtype).removeprefix('torch.'),
            num_layers=layout.shape[1],
            num_kv_heads=layout.shape[2],
            head_dim=layout.shape[4],
            block_tokens=int(pool.page_size),
            bits=settings.bits,
            variant=f'{type(pool).__name__} {parts} {layout.dtype}',
            tenant=settings.tenant,
        )

    def _places(self, keys: Sequence[str], extra: HiCacheStorageExtraInfo | None, pool: str = KV) -> list[PageKey]:
        """Pages of other pools are children of the page of keys and values that they belong to."""
        prefix = (extra.prefix_keys if extra is not None else None) or []
        places = self._store.keys(prefix, keys)
        if pool == KV:
            return places
        return [_beside(place, pool) for place in places]

    def _load(self, pool: str, places: Sequence[PageKey], host_indices: torch.Tensor) -> list[bool]:
        pages = self._pools[pool]
        if pages.has_lines:
            num_done = self._store.read_lines(places, pages.layout, pages.lines(host_indices))
        else:
            starts = host_indices[:: pages.page_tokens].tolist()
            num_done = self._store.read(places, pages.layout, lambda number, block: pages.write(starts[number], block))
        return [number < num_done for number in range(len(places))]

    def _save(self, pool: str, places: Sequence[PageKey], host_indices: torch.Tensor) -> list[bool]:
        pages, num_done = self._pools[pool], self._store.find(places)
        starts = host_indices[:: pages.page_tokens].tolist()
        for number in range(num_done, len(places)):
            block = pages.read(starts[number])
            if not self._store.put(places[number], block, pages.layout):
                break
            num_done += 1
        return [number < num_done for number in range(len(places))]

    def _moved(
        self,
        transfer: PoolTransfer,
        extra: HiCacheStorageExtraInfo | None,
        move: Callable[[str, Sequence[PageKey], torch.Tensor], list[bool]],
    ) -> list[bool]:
        keys, pool = transfer.keys or [], str(transfer.name)
        return self._answer(
            lambda: move(pool, self._places(keys, extra, pool), transfer.host_indices), [False] * len(keys)
        )

    def _restorable(self, places: Sequence[PageKey], transfers: Sequence[PoolTransfer]) -> PoolTransferResult:
        num_kv = self._store.find(places)
        hits = {KV: num_kv} if num_kv else {}
        lengths = set(range(1, num_kv + 1))
        for transfer in transfers:
            here = [self._store.find([_beside(place, str(transfer.name))]) == 1 for place in places[:num_kv]]
            window = num_kv if transfer.hit_policy == PoolHitPolicy.ALL_PAGES else max(1, len(transfer.keys or ()))
            if transfer.hit_policy == PoolHitPolicy.BLOCK_GROUPS:  # never decides, and is not kept here
                continue
            whole = {length for length in range(1, num_kv + 1) if all(here[max(0, length - window) : length])}
            hits |= {str(transfer.name): max(whole)} if whole else {}
            lengths &= whole
        return PoolTransferResult(max(lengths, default=0), hits, sorted(lengths))

    def _gigabytes(self, num_pages: int) -> float:
        return num_pages * self._pools[KV].layout.num_bytes / 1e9

    def _answer(self, act: Callable[[], T], otherwise: T) -> T:
        try:
            return act()
        except Exception:
            self._num_failures += 1
            _log.exception('L3 store: a call broke and is answered as a miss')
            return otherwise


def _beside(place: PageKey, pool: str) -> PageKey:
    tokens = pool.encode()
    return PageKey(key=block_key(place.key, tokens), parent=place.key, tokens=tokens, index=place.index)
