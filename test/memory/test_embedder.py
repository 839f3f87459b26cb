"""Embedders: unit vectors, one space, deterministic."""

from collections.abc import Callable

from hypothesis import given
from hypothesis import strategies as st
import numpy as np
import pytest

from kv_agent_ros.memory.base import Embedder
from kv_agent_ros.memory.embedder import load_e5
from kv_agent_ros.memory.fake import HashingEmbedder

EMBEDDERS: list[Callable[[], Embedder]] = [HashingEmbedder, load_e5]


@pytest.mark.parametrize('make', EMBEDDERS)
def test_every_embedder_returns_unit_rows_that_depend_on_the_text_alone(make: Callable[[], Embedder]) -> None:
    embedder = make()
    texts = ['回去充电', 'return to the charging dock', '']
    rows = embedder.embed(texts)
    assert rows.shape[0] == 3
    assert rows.dtype == np.float32
    assert np.allclose(np.linalg.norm(rows, axis=1), 1.0, atol=1e-3)
    assert np.allclose(rows[1], make().embed([texts[1]])[0], atol=1e-3)
    assert embedder.embed([]).shape == (0, rows.shape[1])
    assert embedder.name == make().name


def test_the_model_knows_that_charging_is_not_pouring() -> None:
    query, dock, water = load_e5().embed(
        ['回去充电', 'return to the charging dock', 'pour out half of the water in the cup']
    )
    assert query @ dock > query @ water + 0.05


@given(st.text(max_size=50))
def test_hashing_gives_a_unit_vector_for_any_text(text: str) -> None:
    row = HashingEmbedder().embed([text])[0]
    assert abs(float(np.linalg.norm(row)) - 1.0) < 1e-5
