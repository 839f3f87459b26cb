"""The books of the parts as named numbers with units: one vocabulary for the inspector, diagnostics and Prometheus."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from kv_agent_ros.inference.base import EngineStats
from kv_agent_ros.inference.engine_mirror import MirrorState, MirrorStats
from kv_agent_ros.kvcache.block import CacheStats, Tier, TierUsage


@dataclass(frozen=True, kw_only=True, slots=True)
class Metric:
    """One number. `unit`: SI symbol, tokens, bytes, or 1 for ratios and counts."""

    name: str
    value: float
    unit: str = '1'


@dataclass(frozen=True, kw_only=True, slots=True)
class Source:
    """A node whose books can be read; `read` raises UnreachableError."""

    name: str
    read: Callable[[], Sequence[Metric]]


def engine_metrics(stats: EngineStats) -> list[Metric]:
    """An engine's books. `saved_prefill_s` = cached tokens at the measured prefill rate, less the time to load them."""
    rate = stats.prefill_s / stats.prefilled_tokens if stats.prefilled_tokens else 0.0
    return [
        Metric(name='requests', value=stats.num_requests),
        Metric(name='failures', value=stats.num_failures),
        Metric(name='prompt_tokens', value=stats.prompt_tokens, unit='tokens'),
        Metric(name='cached_tokens', value=stats.cached_tokens, unit='tokens'),
        Metric(name='generated_tokens', value=stats.generated_tokens, unit='tokens'),
        Metric(name='token_hit_rate', value=ratio(stats.cached_tokens, stats.prompt_tokens)),
        Metric(name='prefill_s', value=stats.prefill_s, unit='s'),
        Metric(name='cache_load_s', value=stats.load_s, unit='s'),
        Metric(name='saved_prefill_s', value=stats.cached_tokens * rate - stats.load_s, unit='s'),
        Metric(name='last_ttft_s', value=stats.last_ttft_s, unit='s'),
    ]


def cache_metrics(stats: CacheStats) -> list[Metric]:
    """The KV cache's books, with each tier's under its own prefix."""
    metrics = [
        Metric(name='blocks', value=stats.num_blocks),
        Metric(name='leases', value=stats.num_leases),
        Metric(name='expired_leases', value=stats.num_expired_leases),
        Metric(name='sessions', value=len(stats.sessions)),
        Metric(name='prompt_tokens', value=stats.prompt_tokens, unit='tokens'),
        Metric(name='cached_tokens', value=stats.cached_tokens, unit='tokens'),
        Metric(name='token_hit_rate', value=ratio(stats.cached_tokens, stats.prompt_tokens)),
        Metric(name='checksum_failures', value=stats.num_checksum_failures),
        Metric(name='prefetched_blocks', value=stats.num_prefetched_blocks),
        Metric(name='saved_compute_s', value=stats.saved_compute_s, unit='s'),
        Metric(name='load_s', value=stats.load_s, unit='s'),
    ]
    return metrics + [metric for tier in stats.tiers for metric in _tier_metrics(tier)]


def mirror_metrics(mirrors: Sequence[MirrorStats]) -> list[Metric]:
    """The books of a server's cache as its events tell it, if it has any; exactly one of the three states is 1."""
    return [metric for stats in mirrors for metric in _mirror_metrics(stats)]


def _mirror_metrics(stats: MirrorStats) -> list[Metric]:
    tiers = [(tier, stats.blocks_by_tier.get(tier, 0)) for tier in Tier]
    return [
        *(Metric(name=f'mirror_{state.value}', value=float(stats.state is state)) for state in MirrorState),
        Metric(name='mirror_resyncs', value=stats.num_resyncs),
        Metric(name='mirror_events', value=stats.num_events),
        Metric(name='mirror_blocks', value=stats.num_blocks),
        Metric(name='mirror_orphan_blocks', value=stats.num_orphans),
        *(Metric(name=f'mirror_{tier.value}_blocks', value=number) for tier, number in tiers),
    ]


def _tier_metrics(tier: TierUsage) -> list[Metric]:
    prefix = tier.tier.value
    return [
        Metric(name=f'{prefix}_capacity_bytes', value=tier.capacity_bytes, unit='bytes'),
        Metric(name=f'{prefix}_used_bytes', value=tier.used_bytes, unit='bytes'),
        Metric(name=f'{prefix}_usage', value=ratio(tier.used_bytes, tier.capacity_bytes)),
        Metric(name=f'{prefix}_blocks', value=tier.num_blocks),
        Metric(name=f'{prefix}_hits', value=tier.num_hits),
        Metric(name=f'{prefix}_evictions', value=tier.num_evictions),
        Metric(name=f'{prefix}_errors', value=tier.num_errors),
        Metric(name=f'{prefix}_read_bytes', value=tier.read_bytes, unit='bytes'),
        Metric(name=f'{prefix}_written_bytes', value=tier.written_bytes, unit='bytes'),
        Metric(name=f'{prefix}_is_degraded', value=float(tier.is_degraded)),
    ]


def ratio(part: float, whole: float) -> float:
    """part / whole, 0 when there is no whole."""
    return part / whole if whole else 0.0


def prometheus_text(samples: dict[str, Sequence[Metric]]) -> str:
    """The text exposition format (prometheus.io, version 0.0.4), one gauge a metric, the node as label."""
    lines = []
    for node, metrics in samples.items():
        lines += [f'kv_agent_{metric.name}{{node="{node}"}} {metric.value:.9g}' for metric in metrics]
    return '\n'.join(lines) + '\n'
