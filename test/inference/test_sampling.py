import numpy as np
import pytest

from kv_agent_ros.errors import BadRequestError
from kv_agent_ros.inference.sampling import sampler_of

LOGITS = np.log(np.array([0.1, 0.6, 0.3, 1e-30], dtype=np.float32))


def test_temperature_zero_takes_the_likeliest_token() -> None:
    assert [sampler_of(0.0, seed).pick(LOGITS) for seed in range(3)] == [1, 1, 1]


def test_equal_seeds_draw_equally() -> None:
    first, second = sampler_of(1.0, 5), sampler_of(1.0, 5)
    assert [first.pick(LOGITS) for _ in range(50)] == [second.pick(LOGITS) for _ in range(50)]


def test_draws_follow_the_softmax() -> None:
    sampler = sampler_of(1.0, 0)
    shares = np.bincount([sampler.pick(LOGITS) for _ in range(4000)], minlength=4) / 4000
    assert np.allclose(shares, [0.1, 0.6, 0.3, 0.0], atol=0.03)


def test_low_temperature_sharpens() -> None:
    sampler = sampler_of(0.1, 0)
    assert sum(sampler.pick(LOGITS) == 1 for _ in range(500)) > 490


def test_forbidden_token_is_never_drawn() -> None:
    logits = np.array([float('-inf'), 0.0, float('-inf')], dtype=np.float32)
    sampler = sampler_of(100.0, 0)
    assert {sampler.pick(logits) for _ in range(200)} == {1}


@pytest.mark.parametrize('temperature', [-0.1, float('nan'), float('inf')])
def test_impossible_temperature_is_a_bad_request(temperature: float) -> None:
    with pytest.raises(BadRequestError, match='temperature'):
        sampler_of(temperature, 0)
