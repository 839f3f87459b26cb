from kv_agent_ros.errors import UnreachableError
from kv_agent_ros.inference.base import EngineStats
from kv_agent_ros.inference.engine_mirror import MirrorState, MirrorStats
from kv_agent_ros.inspector.inspector import InfraInspector, Level
from kv_agent_ros.inspector.metrics import (
    Metric,
    Source,
    cache_metrics,
    engine_metrics,
    mirror_metrics,
    prometheus_text,
)
from kv_agent_ros.kvcache.block import CacheStats, Tier, TierUsage


def source(name, **values):
    return Source(name=name, read=lambda: [Metric(name=key, value=value) for key, value in values.items()])


def silent():
    raise UnreachableError('inference_node: expected an answer, got none')


def test_healthy_books_give_no_findings():
    report = InfraInspector([source('inference_node', requests=10, token_hit_rate=0.9, saved_prefill_s=3.0)]).inspect()
    assert report.findings == ()
    assert {metric.name for metric in report.samples['inference_node']} == {
        'requests',
        'token_hit_rate',
        'saved_prefill_s',
    }


def test_a_silent_node_is_an_error_finding_and_the_others_are_still_read():
    report = InfraInspector([Source(name='inference_node', read=silent), source('memory_node', records=3)]).inspect()
    assert [finding.level for finding in report.findings] == [Level.ERROR]
    assert 'memory_node' in report.samples


def test_low_hit_rate_is_a_warning_only_after_a_few_requests():
    assert InfraInspector([source('e', requests=3, token_hit_rate=0.0)]).inspect().findings == ()
    assert InfraInspector([source('e', requests=4, token_hit_rate=0.1)]).inspect().findings[0].level is Level.WARN


def test_a_hit_that_costs_more_than_it_saves_is_reported():
    report = InfraInspector([source('e', cached_tokens=100, saved_prefill_s=-0.5)]).inspect()
    assert 'longer than computing' in report.findings[0].message


def test_findings_come_worst_first():
    report = InfraInspector([source('a', failures=1, requests=2), source('b', checksum_failures=2)]).inspect()
    assert [finding.level for finding in report.findings] == [Level.ERROR, Level.WARN]


def test_a_latched_stop_is_an_error():
    assert InfraInspector([source('harness_node', is_estopped=1.0)]).inspect().findings[0].level is Level.ERROR


def test_saved_prefill_time_is_cached_tokens_at_the_measured_rate_less_loading():
    stats = EngineStats(
        engine='local',
        model='m',
        cached_tokens=1000,
        prompt_tokens=1500,
        prefill_s=2.0,
        prefilled_tokens=500,
        load_s=0.1,
    )
    values = {metric.name: metric.value for metric in engine_metrics(stats)}
    assert values['saved_prefill_s'] == 3.9
    assert values['token_hit_rate'] == 1000 / 1500


def test_each_tier_has_its_own_prefix_and_a_full_tier_that_evicts_is_mentioned():
    tier = TierUsage(
        tier=Tier.DRAM,
        capacity_bytes=100,
        used_bytes=99,
        evictable_bytes=9,
        num_blocks=3,
        num_hits=1,
        num_evictions=5,
        num_errors=0,
    )
    stats = CacheStats(
        tiers=(tier,),
        sessions=(),
        num_blocks=3,
        num_leases=0,
        num_expired_leases=0,
        prompt_tokens=10,
        cached_tokens=5,
        num_checksum_failures=0,
    )
    metrics = cache_metrics(stats)
    assert {metric.name: metric.value for metric in metrics}['dram_usage'] == 0.99
    finding = InfraInspector([Source(name='kv_cache_node', read=lambda: metrics)]).inspect().findings[0]
    assert finding.component == 'kv_cache_node/dram'
    assert finding.level is Level.OK


def test_a_tier_that_hangs_is_mentioned_before_what_it_counted():
    metrics = [Metric(name='ssd_is_degraded', value=1.0), Metric(name='ssd_errors', value=3.0)]
    findings = InfraInspector([Source(name='kv_cache_node', read=lambda: metrics)]).inspect().findings
    assert [finding.component for finding in findings] == ['kv_cache_node/ssd', 'kv_cache_node/ssd']
    assert 'hangs now' in findings[0].message


def test_prometheus_text_has_one_line_a_metric_with_the_node_as_label():
    text = prometheus_text({'inference_node': [Metric(name='last_ttft_s', value=0.25, unit='s')]})
    assert text == 'kv_agent_last_ttft_s{node="inference_node"} 0.25\n'


def test_a_mirror_that_misses_events_or_heard_none_is_a_warning_and_a_synced_one_is_not():
    def findings(state):
        stats = MirrorStats(
            state=state,
            num_blocks=3,
            num_orphans=1,
            blocks_by_tier={Tier.HBM: 2, Tier.DRAM: 1},
            num_events=7,
            num_resyncs=2,
            names_sessions=False,
            blocks_by_session={},
        )
        metrics = mirror_metrics((stats,))
        assert sum(metric.value for metric in metrics if metric.name == f'mirror_{state.value}') == 1.0
        return InfraInspector([Source(name='kv_cache_node', read=lambda: metrics)]).inspect().findings

    assert findings(MirrorState.SYNCED) == ()
    for state, start in ((MirrorState.DEGRADED, 'DEGRADED'), (MirrorState.WAITING, 'nothing was heard')):
        (finding,) = findings(state)
        assert (finding.level, finding.component) == (Level.WARN, 'kv_cache_node/mirror')
        assert finding.message.startswith(start)
