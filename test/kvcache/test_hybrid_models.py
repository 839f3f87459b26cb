"""Real hybrid models whose prefixes come back through the unified cache and shared memory: logits as in a cold run.

Bits are compared with a run in the same steps. One pass over the whole prompt differs by rounding, for other matrix
sizes add up in another order; that difference belongs to the model, with or without reuse.
"""

from collections.abc import Callable, Iterator
from pathlib import Path

from hybrid_models import MODELS, HybridEngine, HybridModel
import numpy as np
import pytest
import torch

from kv_agent_ros.kvcache.components import Component
from kv_agent_ros.kvcache.eviction import LruPolicy
from kv_agent_ros.kvcache.hybrid_backing import HybridBacking
from kv_agent_ros.kvcache.storage.disk import DiskStore

PLENTY = {'full': 64, 'swa': 64, 'mamba': 64}
_RNG = np.random.default_rng(11)
HEAD, TAIL_A, TAIL_B = ([int(token) for token in _RNG.integers(0, 64, size)] for size in (22, 15, 13))
PROMPT_A, PROMPT_B = HEAD + TAIL_A, HEAD + TAIL_B  # the first 5 blocks are equal

MakeEngine = Callable[..., HybridEngine]


@pytest.fixture(scope='module', autouse=True)
def _one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope='module', params=MODELS)
def model(request: pytest.FixtureRequest) -> HybridModel:
    return HybridModel(request.param)


@pytest.fixture
def open_engine(model: HybridModel) -> Iterator[MakeEngine]:
    opened: list[HybridEngine] = []

    def make(max_parts: dict[str, int] = PLENTY) -> HybridEngine:
        opened.append(HybridEngine(model, max_parts))
        return opened[-1]

    yield make
    for engine in opened:
        engine.tier.close()


@pytest.fixture
def engine(open_engine: MakeEngine) -> HybridEngine:
    return open_engine()


def partial(engine: HybridEngine) -> list[Component]:
    return [component for component in engine.model.components if component.name != 'full']


def check(engine: HybridEngine, prompt: list[int], cached_tokens: int) -> None:
    run = engine.run(prompt)
    assert run.cached_tokens == cached_tokens
    assert np.array_equal(run.logits, engine.model.cold(prompt)[cached_tokens:])


def test_reused_prefix_gives_the_logits_of_a_cold_run_bit_by_bit(engine: HybridEngine) -> None:
    check(engine, PROMPT_A, 0)
    check(engine, PROMPT_B, 20)
    check(engine, PROMPT_B, 32)
    check(engine, PROMPT_B + TAIL_A, 32)


def test_reused_prefix_gives_the_logits_of_one_pass_up_to_rounding(engine: HybridEngine) -> None:
    engine.run(PROMPT_A)
    one_pass = engine.model.forward(PROMPT_B, engine.model.empty())
    np.testing.assert_allclose(engine.run(PROMPT_B).logits, one_pass[20:], rtol=0, atol=5e-5)


def test_every_component_shows_in_the_logits(engine: HybridEngine) -> None:
    """So that the comparisons above and below would see a wrong one."""
    engine.run(PROMPT_A)
    lock = engine.tier.lock(engine.path(PROMPT_B))
    parts = {c.name: [engine.read(part) for part in lock.parts(c)] for c in engine.model.components}
    engine.tier.unlock(lock)
    right = engine.model.forward(PROMPT_B[20:], engine.model.unpack(5, parts))
    for name in parts:
        zeroed = parts | {name: [np.zeros_like(values) for values in parts[name]]}
        wrong = engine.model.forward(PROMPT_B[20:], engine.model.unpack(5, zeroed))
        assert np.abs(wrong - right).max() > 0.05


def test_hit_whose_window_or_state_is_gone_is_shorter_and_never_wrong(open_engine: MakeEngine) -> None:
    for number in range(len(partial(open_engine()))):
        engine = open_engine()
        engine.run(PROMPT_A)
        component = partial(engine)[number]
        engine.tier.evict(component, engine.tier.cache.num_parts(component) - len(component.needed(9)))
        hold = engine.tier.cache.hold(engine.path(PROMPT_B))
        assert hold.num_blocks == 5  # full attention alone would have claimed them
        engine.tier.unlock(hold)
        check(engine, PROMPT_B, 0)
        check(engine, PROMPT_A + TAIL_B, 36)


def test_branch_point_before_the_hole_is_still_a_hit(engine: HybridEngine) -> None:
    engine.run(PROMPT_A)
    engine.run(HEAD[:13] + TAIL_A)  # 3 equal blocks, 7 in all
    for component in partial(engine):
        num_live = 3 * len(component.needed(3))  # of two ends and a branch point
        engine.tier.evict(component, engine.tier.cache.num_parts(component) - num_live)
    check(engine, PROMPT_B, 12)


def test_window_comes_back_at_its_absolute_position() -> None:
    """Shown on Gemma, which rotates by absolute position; Inkling's window knows distances alone."""
    engine = HybridEngine(HybridModel('gemma3'), PLENTY)
    engine.run(PROMPT_A)
    cache = engine.load(engine.tier.lock(engine.path(PROMPT_B)))
    assert [cache.get_seq_length(index) for index in range(2)] == [20, 20]
    cache.layers[0].cumulative_length = 9  # as long as the window itself
    shifted = engine.model.forward(PROMPT_B[20:], cache)
    assert np.abs(shifted - engine.model.cold(PROMPT_B)[20:]).max() > 0.05
    engine.tier.close()


def test_blocks_without_all_their_parts_are_not_published(engine: HybridEngine) -> None:
    path = engine.path(PROMPT_A)
    write = engine.tier.reserve(path, {component.name: range(9) for component in engine.model.components})
    cache = engine.model.empty()
    checksums = engine.write_blocks(write, PROMPT_A, 0, cache)[1]
    last = partial(engine)[-1]
    landed = {part: digest for part, digest in checksums.items() if part.component is not last or part.index < 4}
    assert engine.tier.publish(write, landed) == 4
    engine.tier.check_integrity()
    check(engine, PROMPT_A, 16)


def test_engine_that_goes_on_from_a_state_leaves_the_snapshot_as_it_was(engine: HybridEngine) -> None:
    engine.run(PROMPT_A)
    lock = engine.tier.lock(engine.path(PROMPT_B))
    before = [engine.read(part).tobytes() for c in engine.model.components for part in lock.parts(c)]
    first = engine.model.forward(PROMPT_B[20:], engine.load(lock))
    second = engine.model.forward(PROMPT_B[20:], engine.load(lock))
    after = [engine.read(part).tobytes() for c in engine.model.components for part in lock.parts(c)]
    engine.tier.unlock(lock)
    assert before == after
    assert np.array_equal(first, second)


def test_part_with_a_wrong_byte_is_found_and_its_block_forgotten(engine: HybridEngine) -> None:
    for component in engine.model.components:
        engine.run(PROMPT_A)
        lock = engine.tier.lock(engine.path(PROMPT_A))
        part = lock.parts(component)[-1]
        engine.damage(part)
        out = np.empty(component.layout.num_bytes, np.uint8)
        assert not engine.tier.read(part, out)
        engine.tier.cut(engine.path(PROMPT_A), part.index)
        engine.tier.unlock(lock)
        assert engine.tier.cache.match(engine.path(PROMPT_A)) == part.index
        check(engine, PROMPT_A, 32)


def test_equal_blocks_at_other_positions_are_not_a_hit(engine: HybridEngine) -> None:
    engine.run(HEAD[:8] * 3)
    check(engine, HEAD[4:8] + HEAD[:8] * 2, 0)
    check(engine, HEAD[:8] * 4, 24)


def test_prefix_from_the_disk_of_an_earlier_process_gives_cold_logits(open_engine: MakeEngine, tmp_path: Path) -> None:
    first, second = open_engine(), open_engine()
    components, policy = first.model.components, LruPolicy()
    first.run(PROMPT_A)
    first.run(PROMPT_B)
    disk = DiskStore.open(tmp_path, 1 << 22)
    backing = HybridBacking.open(components=components, store=disk, policy=policy)
    assert [backing.save(first.path(prompt), first.tier) for prompt in (PROMPT_A, PROMPT_B)] == [9, 8]
    disk.close()
    disk = DiskStore.open(tmp_path, 1 << 22)
    backing = HybridBacking.open(components=components, store=disk, policy=policy)
    assert backing.load(second.path(PROMPT_B + TAIL_A), second.tier) == 8
    check(second, PROMPT_B + TAIL_A, 32)
    disk.delete(next(part for part in backing.cache.parts(partial(second)[-1]) if part.index == 8).key)
    assert backing.load(second.path(PROMPT_A), second.tier) == 0
    check(second, PROMPT_A, 0)
    disk.close()


def test_any_order_of_prompts_and_evictions_under_pressure_gives_cold_logits(open_engine: MakeEngine) -> None:
    engine = open_engine({'full': 24, 'swa': 13, 'mamba': 7})
    rng = np.random.default_rng(5)
    prompts = [PROMPT_A, PROMPT_B, PROMPT_A + TAIL_B, TAIL_A + TAIL_B, HEAD[:13]]
    num_cached = 0
    for number in rng.integers(0, len(prompts), 12):
        run = engine.run(prompts[number])
        assert np.array_equal(run.logits, engine.model.cold(prompts[number])[run.cached_tokens :])
        num_cached += run.cached_tokens
        component = engine.model.components[rng.integers(len(engine.model.components))]
        engine.tier.evict(component, int(rng.integers(0, 4)))
        engine.tier.check_integrity()
    assert num_cached > 100
    assert engine.tier.cache.num_locks == 0
