"""The canary: what fewer bits do to a model's attention decides how many bits its blocks keep."""

from dataclasses import replace

import numpy as np
import pytest

from kv_agent_ros.errors import BadRequestError, StoreError
from kv_agent_ros.kvcache.block import KVNamespace
from kv_agent_ros.kvcache.canary import Canary, CanarySample, attention_error, degrade
from kv_agent_ros.kvcache.codec_policy import CodecPolicy

NAMESPACE = KVNamespace(
    model='m', revision='1', dtype='float32', num_layers=2, num_kv_heads=2, head_dim=64, block_tokens=16, bits=2
)
POLICY = CodecPolicy(recent_tokens=32)


def sample(num_tokens: int = 160, outlier: float = 0.0) -> CanarySample:
    random = np.random.default_rng(0)
    blocks = random.standard_normal((2, 2, 2, num_tokens, 64), np.float32)
    blocks[0, :, :, ::3, 7] += outlier  # comes and goes: no mean takes it off
    return CanarySample(blocks=blocks, queries=random.standard_normal((2, 2, 8, 64), np.float32))


def test_a_generous_bound_keeps_the_bits_that_were_asked_for():
    report = Canary(policy=POLICY, max_error=1.0).measure(NAMESPACE, sample())

    assert report.namespace == NAMESPACE
    assert [width.bits for width in report.widths] == [2]


def test_a_broken_bound_falls_back_to_the_next_width_that_keeps_it():
    report = Canary(policy=POLICY, max_error=0.05).measure(NAMESPACE, sample())

    assert report.namespace == replace(NAMESPACE, bits=4)
    assert [width.bits for width in report.widths] == [2, 4]
    assert report.widths[0].worst_error > 0.05 >= report.widths[1].worst_error


def test_sixteen_bits_are_the_end_of_the_fall():
    report = Canary(policy=POLICY, max_error=1e-12).measure(NAMESPACE, sample())

    assert report.namespace.bits == 16
    assert report.widths[-1].worst_error == 0.0


def test_keys_that_are_harder_to_quantise_get_more_bits():
    canary = Canary(policy=POLICY, max_error=0.05)

    easy, hard = (canary.measure(NAMESPACE, sample(outlier=outlier)).namespace.bits for outlier in (0.0, 400.0))

    assert easy < hard


def test_errors_fall_with_every_bit():
    widths = Canary(policy=POLICY, max_error=1e-12).measure(NAMESPACE, sample()).widths
    errors = [width.mean_error for width in widths]

    assert [width.bits for width in widths] == [2, 4, 8, 16]
    assert errors == sorted(errors, reverse=True)
    assert all(width.mean_error <= width.worst_error for width in widths)


def test_the_same_sample_gives_the_same_report():
    reports = [Canary(policy=POLICY).measure(NAMESPACE, sample()) for _ in range(2)]

    assert reports[0] == reports[1]


def test_a_model_that_was_never_measured_is_refused_below_sixteen_bits():
    canary = Canary(policy=POLICY, max_error=1.0)
    measured = canary.measure(NAMESPACE, sample())

    assert canary.report(NAMESPACE) == measured
    assert canary.report(replace(NAMESPACE, revision='2', bits=16)).widths == ()
    with pytest.raises(BadRequestError, match='expected a measurement of m with 2 bits'):
        canary.report(replace(NAMESPACE, revision='2'))


def test_a_text_that_stays_exact_as_a_whole_proves_nothing():
    with pytest.raises(BadRequestError, match='longer than its sinks and recent window, got 48 tokens'):
        Canary(policy=POLICY).measure(NAMESPACE, sample(num_tokens=48))


def test_a_sample_of_another_model_is_refused():
    with pytest.raises(BadRequestError, match='expected blocks like'):
        Canary(policy=POLICY).measure(replace(NAMESPACE, num_layers=3), sample())
    with pytest.raises(BadRequestError, match='expected queries for'):
        Canary(policy=POLICY).measure(NAMESPACE, replace(sample(), queries=np.zeros((2, 1, 8, 64), np.float32)))


def test_a_sample_with_nan_is_refused():
    bad = sample()
    bad.blocks[1, 0, 0, 50, 3] = np.nan

    with pytest.raises(StoreError, match='finite'):
        Canary(policy=POLICY).measure(NAMESPACE, bad)


@pytest.mark.parametrize('bound', [0.0, -1.0, float('inf'), float('nan')])
def test_a_bound_that_bounds_nothing_is_refused(bound: float):
    with pytest.raises(BadRequestError, match='positive finite max_error'):
        Canary(policy=POLICY, max_error=bound)


@pytest.mark.parametrize('num_tokens', [48, 64, 80, 160])
def test_sinks_and_the_recent_window_come_back_bit_by_bit(num_tokens: int):
    exact = sample(num_tokens).blocks

    found = degrade(NAMESPACE, POLICY, exact)

    assert found[:, :, :, :4].tobytes() == exact[:, :, :, :4].tobytes()
    assert found[:, :, :, -32:].tobytes() == exact[:, :, :, -32:].tobytes()
    assert (num_tokens <= 48) == (found.tobytes() == exact.tobytes())


def test_the_error_of_what_is_exact_is_nothing():
    exact = sample()

    assert attention_error(exact.queries[0], exact.blocks[:, 0], exact.blocks[:, 0]) == 0.0
    assert attention_error(exact.queries[0], exact.blocks[:, 0], 0 * exact.blocks[:, 0]) == pytest.approx(1.0)
