"""Loads are made when they pay, by what was measured."""

from hypothesis import given
from hypothesis import strategies as st

from kv_agent_ros.kvcache.block import Tier
from kv_agent_ros.kvcache.cost_model import CostModel, LoadLine

MODEL = bytes(32)
SIZES = [1000] * 10


def model(tokens_per_s: float = 100.0) -> CostModel:
    return CostModel(prefill_tokens_per_s=tokens_per_s, clock=lambda: 0.0)


def test_what_is_not_known_yet_is_loaded() -> None:
    assert model(0.0).num_worth_loading(MODEL, Tier.SSD, SIZES, 16) == 10
    assert model().num_worth_loading(MODEL, Tier.SSD, SIZES, 16) == 10


def test_fast_tier_is_used_and_slow_one_is_not() -> None:
    costs = model()
    costs.note_load(Tier.SSD, 1000, 0.01)  # a block takes 0.01 s, and 0.16 s to compute
    costs.note_load(Tier.REMOTE, 1000, 0.5)
    assert costs.num_worth_loading(MODEL, Tier.SSD, SIZES, 16) == 10
    assert costs.num_worth_loading(MODEL, Tier.REMOTE, SIZES, 16) == 0


def test_latency_must_be_earned_by_enough_blocks() -> None:
    costs = model()
    for num_blocks in (1, 10, 1, 10):
        costs.note_load(Tier.REMOTE, num_blocks * 1000, 1.0 + num_blocks * 0.01)
    assert costs.num_worth_loading(MODEL, Tier.REMOTE, SIZES[:6], 16) == 0
    assert costs.num_worth_loading(MODEL, Tier.REMOTE, SIZES, 16) == 10


def test_leading_blocks_are_loaded_as_far_as_each_pays() -> None:
    costs = model()
    costs.note_load(Tier.SSD, 1000, 0.1)
    assert costs.num_worth_loading(MODEL, Tier.SSD, [1000, 1000, 1000, 5000, 1000], 16) == 3


def test_tier_that_was_slow_is_tried_again_later() -> None:
    now_s = [0.0]
    costs = CostModel(prefill_tokens_per_s=100.0, probe_period_s=30.0, clock=lambda: now_s[0])
    costs.note_load(Tier.SSD, 1000, 10.0)
    assert costs.num_worth_loading(MODEL, Tier.SSD, SIZES, 16) == 0
    now_s[0] = 30.0
    assert costs.num_worth_loading(MODEL, Tier.SSD, SIZES, 16) == 4
    for _ in range(20):
        costs.note_load(Tier.SSD, 4000, 0.001)
    assert costs.num_worth_loading(MODEL, Tier.SSD, SIZES, 16) == 10


def test_one_measurement_that_went_wrong_is_forgotten_with_the_next_trial() -> None:
    now_s = [0.0]
    costs = CostModel(prefill_tokens_per_s=100.0, probe_period_s=30.0, clock=lambda: now_s[0])
    for _ in range(10):
        costs.note_load(Tier.SSD, 10_000, 0.01)
    costs.note_load(Tier.SSD, 10_000, 3600.0)  # the machine slept
    assert costs.num_worth_loading(MODEL, Tier.SSD, SIZES, 16) == 0
    now_s[0] = 30.0
    assert costs.num_worth_loading(MODEL, Tier.SSD, SIZES, 16) == 4
    costs.note_load(Tier.SSD, 4000, 0.01)
    assert costs.num_worth_loading(MODEL, Tier.SSD, SIZES, 16) == 10


def test_engine_is_at_least_as_fast_as_it_was_seen() -> None:
    costs = model(0.0)
    costs.note_turn(MODEL, 1000, 1.0)
    costs.note_turn(MODEL, 10, 1.0)  # it also waited, or spoke
    assert costs.compute_s(MODEL, 802) == 1.0
    costs.note_turn(MODEL, 2000, 1.0)
    assert costs.compute_s(MODEL, 2000) == 1.0
    costs.note_turn(MODEL, 5, 0.0)
    assert costs.compute_s(MODEL, 2000) == 1.0
    assert costs.compute_s(b'other', 2000) == 0.0


@given(
    st.floats(0.0, 10.0),
    st.floats(1e-9, 1e-3),
    st.lists(st.integers(1, 10**7), min_size=3, max_size=20, unique=True),
)
def test_line_through_exact_measurements_is_found(latency_s: float, s_per_byte: float, sizes: list[int]) -> None:
    line = LoadLine()
    for size in sizes:
        line.add(size, latency_s + size * s_per_byte, 0.0)
    mean_s = latency_s + line.size * s_per_byte
    assert abs(line.latency_s + line.size * line.s_per_byte - mean_s) <= 1e-6 * mean_s
    assert 0.0 <= line.s_per_byte * line.size <= mean_s * (1 + 1e-6)
