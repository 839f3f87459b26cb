"""Layers of the local network: the same product however they are laid out, and nearly the same in 8 bits."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from kv_agent_ros.build.engine import open_engine
from kv_agent_ros.config import InferenceConfig
from kv_agent_ros.deadline import Deadline
from kv_agent_ros.errors import Outcome
from kv_agent_ros.inference.base import GenerationRequest, Message, Role
from kv_agent_ros.inference.local_linear import ColumnLinear, Int8Linear, RowLinear, Weights
from kv_agent_ros.inference.local_llama import KVBuffer
from kv_agent_ros.inference.local_model import BUNDLED, LocalModel, load_local_model
from kv_agent_ros.kvcache.block import SessionKey
from kv_agent_ros.kvcache.dram_tier import DramTier
from kv_agent_ros.kvcache.eviction import SessionLruPolicy
from kv_agent_ros.kvcache.manager import KVCacheManager
from kv_agent_ros.kvcache.session_index import SessionIndex
from kv_agent_ros.kvcache.storage.host import HostStore, SharedArena

NUM_ROWS = (1, 2, 4, 8, 47, 48, 300)


def matrices(num_rows: int, num_outputs: int, num_inputs: int) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(num_rows)
    return torch.randn(num_rows, num_inputs, generator=generator), torch.randn(
        num_outputs, num_inputs, generator=generator
    )


@pytest.mark.parametrize('num_rows', NUM_ROWS)
@pytest.mark.parametrize('layer', [ColumnLinear, RowLinear])
def test_every_layout_computes_rows_times_the_transposed_matrix(layer: type[ColumnLinear], num_rows: int) -> None:
    rows, weight = matrices(num_rows, 96, 64)
    expected = (rows.double() @ weight.double().t()).float()
    assert (layer(weight)(rows) - expected).abs().max() < 1e-4


def test_a_row_in_int8_is_rounded_as_well_beside_a_much_larger_one() -> None:
    rows, weight = matrices(8, 96, 64)
    rows[3] *= 1000.0
    found, expected = Int8Linear(weight)(rows), rows @ weight.t()
    assert ((found - expected).norm(dim=1) / expected.norm(dim=1)).max() < 0.03


@pytest.mark.parametrize('num_rows', NUM_ROWS)
def test_int8_is_within_three_percent_of_the_product_even_where_outputs_differ_in_size(num_rows: int) -> None:
    rows, weight = matrices(num_rows, 96, 64)
    weight *= torch.logspace(-3, 3, 96)[:, None]
    weight[5] = 0.0
    expected = rows @ weight.t()
    found = Int8Linear(weight)(rows)
    assert found[:, 5].abs().max() == 0.0
    kept = [index for index in range(96) if index != 5]
    error = (found - expected)[:, kept].norm(dim=0) / expected[:, kept].norm(dim=0)
    assert error.median() < 0.03


def test_kv_of_int8_weights_is_never_taken_for_that_of_float32(tiny_directory: Path, tiny_model: LocalModel) -> None:
    int8 = load_local_model(str(tiny_directory), tiny_directory.parent, weights=Weights.INT8)
    assert int8.name == tiny_model.name
    assert int8.namespace(16).digest != tiny_model.namespace(16).digest
    again = load_local_model(str(tiny_directory), tiny_directory.parent)
    assert again.namespace(16).digest == tiny_model.namespace(16).digest


def test_an_engine_with_int8_weights_answers_and_reuses_its_own_kv(tiny_directory: Path) -> None:
    schema = json.dumps({'type': 'object', 'properties': {'ok': {'enum': ['yes', 'no']}}, 'required': ['ok']})
    request = GenerationRequest(
        session=SessionKey(robot_id='robot1', session_id='s'),
        messages=(Message(role=Role.USER, content='is the cup full? ' * 20),),
        max_new_tokens=24,
        json_schema=schema,
    )
    config = InferenceConfig(
        engine='local', model=str(tiny_directory), cache_dir=str(tiny_directory.parent), weights='int8', stored_bits=16
    )
    sessions = SessionIndex()
    dram = DramTier(store=HostStore(SharedArena.create(16 << 20)), policy=SessionLruPolicy(sessions.is_referenced))
    with KVCacheManager(dram=dram, sessions=sessions) as cache:
        backend = open_engine(config, lambda text: None).make(cache)
        cold, warm = (backend.generate(request, Deadline(60.0)) for _ in range(2))
        backend.close()
    assert (cold.outcome, warm.outcome) == (Outcome.SUCCESS, Outcome.SUCCESS)
    assert cold.usage.cached_tokens == 0 and warm.usage.cached_tokens > 300
    assert json.loads(warm.text)['ok'] in ('yes', 'no')


def test_smollm2_in_int8_mostly_goes_on_as_in_float32(smollm2: LocalModel) -> None:
    int8 = load_local_model(BUNDLED, Path.home() / '.cache' / 'kv_agent_ros' / 'models', weights=Weights.INT8)
    text = 'The capital of France is Paris. The capital of Italy is Rome. The capital of Germany is Berlin. One, two,'
    tokens = np.array(smollm2.tokenizer.encode(text + ' three, four, five, six, seven, eight, nine').ids, np.int32)
    buffers = KVBuffer(smollm2.llama.config), KVBuffer(int8.llama.config)
    num_same = 0
    for start in range(len(tokens)):
        exact, rounded = (
            model.llama.forward(tokens[start : start + 1], buffer, start)
            for model, buffer in zip((smollm2, int8), buffers, strict=True)
        )
        num_same += int(exact.argmax()) == int(rounded.argmax())
    assert num_same >= 0.75 * len(tokens), (num_same, len(tokens))
