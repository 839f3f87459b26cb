import json

from hypothesis import given, settings
from hypothesis import strategies as st
import jsonschema
import numpy as np
import pytest

from kv_agent_ros.errors import BadRequestError
from kv_agent_ros.inference.local_model import LocalModel
from kv_agent_ros.inference.structured import FreeText, TokenConstraint

PLAN = {
    'type': 'object',
    'properties': {
        'steps': {
            'type': 'array',
            'minItems': 1,
            'maxItems': 3,
            'items': {
                'type': 'object',
                'properties': {
                    'skill': {'enum': ['navigate', 'pick', 'place']},
                    'target': {'type': 'string', 'maxLength': 8},
                    'count': {'type': 'integer', 'minimum': 0, 'maximum': 99},
                },
                'required': ['skill', 'target', 'count'],
                'additionalProperties': False,
            },
        }
    },
    'required': ['steps'],
    'additionalProperties': False,
}
FOLLOWABLE = st.recursive(
    st.sampled_from([{'type': 'boolean'}, {'enum': ['a', 'bc']}, {'type': 'integer', 'minimum': 0, 'maximum': 9}]),
    lambda inner: st.builds(
        lambda first, second: {
            'type': 'object',
            'properties': {'x': first, 'y': second},
            'required': ['x', 'y'],
            'additionalProperties': False,
        },
        inner,
        inner,
    ),
    max_leaves=4,
)


def say(model: LocalModel, constraint: TokenConstraint, seed: int) -> tuple[list[int], int]:
    """A random answer inside the constraint, and how many of its tokens were forced."""
    random = np.random.default_rng(seed)
    said = constraint.forced()
    num_forced = len(said)
    while not constraint.is_complete and len(said) < 400:
        logits = random.standard_normal(model.llama.config.vocab_size).astype(np.float32)
        token = int(np.argmax(constraint.restrict(logits)))
        if token in model.stop_ids:
            break
        constraint.accept(token)
        forced = constraint.forced()
        num_forced += len(forced)
        said += [token, *forced]
    return said, num_forced


@settings(max_examples=30, deadline=None)
@given(schema=FOLLOWABLE, seed=st.integers(0, 1000))
def test_every_answer_is_compact_json_of_the_schema(tiny_model: LocalModel, schema: dict, seed: int) -> None:
    said, _ = say(tiny_model, tiny_model.grammars.constraint(json.dumps(schema)), seed)
    text = tiny_model.tokenizer.decode(said)
    answer = json.loads(text)
    jsonschema.validate(answer, schema)
    assert text == json.dumps(answer, separators=(',', ':'))


def test_scaffolding_is_forced_not_chosen(smollm2: LocalModel) -> None:
    constraint = smollm2.grammars.constraint(json.dumps(PLAN))
    assert smollm2.tokenizer.decode(constraint.forced()) == '{"steps":[{"skill":"'
    said, num_forced = say(smollm2, smollm2.grammars.constraint(json.dumps(PLAN)), 1)
    jsonschema.validate(json.loads(smollm2.tokenizer.decode(said)), PLAN)
    assert num_forced > len(said) / 3


def test_constant_schema_is_complete_after_its_forced_tokens(smollm2: LocalModel) -> None:
    constraint = smollm2.grammars.constraint('{"const":{"a":1}}')
    assert smollm2.tokenizer.decode(constraint.forced()) == '{"a":1}'
    assert constraint.is_complete
    assert constraint.forced() == []


def test_two_answers_of_one_schema_do_not_disturb_each_other(tiny_model: LocalModel) -> None:
    schema = json.dumps(PLAN)
    first = tiny_model.grammars.constraint(schema)
    first.forced()
    second = tiny_model.grammars.constraint(schema)
    assert tiny_model.tokenizer.decode(second.forced()) == '{"steps":[{"skill":"'


def test_no_schema_is_free_text(tiny_model: LocalModel) -> None:
    constraint = tiny_model.grammars.constraint('')
    logits = np.array([1.0, 2.0], dtype=np.float32)
    assert isinstance(constraint, FreeText)
    assert constraint.forced() == []
    assert constraint.restrict(logits) is logits


@pytest.mark.parametrize(
    'schema',
    [
        '{',
        '[]',
        'true',
        '"text"',
        '{"type":"nosuch"}',
        '{"type":"object","properties":3}',
        '{"$ref":"#/missing"}',
        '{"type":"string","pattern":"("}',
        '{"type":"object","required":["a"],"properties":{},"additionalProperties":false}',
    ],
)
def test_malformed_schema_is_a_bad_request(tiny_model: LocalModel, schema: str) -> None:
    with pytest.raises(BadRequestError, match='json_schema'):
        tiny_model.grammars.constraint(schema)
