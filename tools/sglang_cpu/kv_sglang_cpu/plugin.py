"""SGLang's plugin: HiCache's copies in plain torch, and attention that does not pay for a cached prefix."""

from sglang.srt.mem_cache.pool_host import mha
from sglang.srt.mem_cache.pool_host.base import HostKVCache
from sglang.srt.plugins.hook_registry import HookRegistry, HookType
import torch

from kv_sglang_cpu.extend_attention import extend_attention

HOST_REGISTER = 'sglang.srt.mem_cache.pool_host.common._cuda_host_register'
HOST_POOL = 'sglang.srt.mem_cache.pool_host.base.HostKVCache.__init__'
EXTEND = 'sglang.srt.layers.attention.torch_native_backend.TorchNativeAttnBackend._run_sdpa_forward_extend'


def register() -> None:
    """SGLang calls this once in each of its processes."""
    HookRegistry.register(HOST_REGISTER, register_nothing, HookType.REPLACE)
    HookRegistry.register(HOST_POOL, unpin, HookType.AFTER)
    HookRegistry.register(EXTEND, extend_attention, HookType.REPLACE)
    mha.transfer_kv_direct = copy_rows


def register_nothing(buffer: torch.Tensor, granularity_bytes: int | None = None) -> None:
    """Memory of a CPU needs no registration with a GPU."""


def unpin(result: None, pool: HostKVCache, *arguments: object, **options: object) -> None:
    """Pages that a pool makes later are not page-locked either."""
    pool.pin_memory = False


def copy_rows(
    *,
    src_layers: list[torch.Tensor],
    dst_layers: list[torch.Tensor],
    src_indices: torch.Tensor,
    dst_indices: torch.Tensor,
    page_size: int,
) -> None:
    """Copy rows of every layer from one pool to the other. Both index tensors are (num_tokens,)."""
    for source, target in zip(src_layers, dst_layers, strict=True):
        target[dst_indices] = source[src_indices]
