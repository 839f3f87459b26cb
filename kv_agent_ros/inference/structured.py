"""Keeps generated tokens inside a JSON schema, and knows the tokens that the schema leaves no choice about.

Compact JSON: no whitespace between tokens of the grammar. Uses llguidance; masks are numpy.
"""

from collections.abc import Sequence
from functools import lru_cache
from typing import Protocol

from llguidance import LLMatcher, LLTokenizer
import numpy as np
from tokenizers import Tokenizer

from kv_agent_ros.errors import BadRequestError, ModelUnavailableError
from kv_agent_ros.inference.sampling import Logits

NUM_REMEMBERED_SCHEMAS = 64


class TokenConstraint(Protocol):
    """What one answer may still say."""

    def forced(self) -> list[int]:
        """Tokens that must come next, already accepted; empty when there is a choice or nothing is left."""
        ...

    def restrict(self, logits: Logits) -> Logits:
        """Logits with -inf for every token that may not come next."""
        ...

    def accept(self, token: int) -> None:
        """Tell the token that was chosen."""
        ...

    @property
    def is_complete(self) -> bool:
        """Whether only the end of the answer may follow."""
        ...


class FreeText:
    """No constraint."""

    is_complete = False

    def forced(self) -> list[int]:
        return []

    def restrict(self, logits: Logits) -> Logits:
        return logits

    def accept(self, token: int) -> None:
        pass


class JsonConstraint:
    """One answer inside a compiled schema."""

    def __init__(self, matcher: LLMatcher) -> None:
        self._matcher = matcher

    @property
    def is_complete(self) -> bool:
        return self._matcher.is_stopped()

    def forced(self) -> list[int]:
        tokens = self._matcher.compute_ff_tokens()
        if tokens:
            self._consume(tokens)
        return tokens

    def restrict(self, logits: Logits) -> Logits:
        allowed = np.frombuffer(self._matcher.compute_bitmask(), dtype=np.uint8)
        is_allowed = np.unpackbits(allowed, count=len(logits), bitorder='little').view(np.bool_)
        return np.where(is_allowed, logits, np.float32('-inf'))

    def accept(self, token: int) -> None:
        self._consume([token])

    def _consume(self, tokens: list[int]) -> None:
        if not self._matcher.consume_tokens(tokens):
            raise ModelUnavailableError(
                f'grammar: expected to accept the tokens {tokens}, got {self._matcher.get_error()}'
            )


class GrammarCompiler:
    """Compiles schemas for one vocabulary and remembers them. Thread-safe."""

    def __init__(self, vocabulary: LLTokenizer) -> None:
        self._vocabulary = vocabulary
        self._compiled = lru_cache(maxsize=NUM_REMEMBERED_SCHEMAS)(self._compile)

    def constraint(self, json_schema: str) -> TokenConstraint:
        """The constraint of one answer; '' is free text. Raises BadRequestError for a schema nobody can follow."""
        if not json_schema:
            return FreeText()
        return JsonConstraint(self._compiled(json_schema).deep_copy())

    def _compile(self, json_schema: str) -> LLMatcher:
        try:
            grammar = LLMatcher.grammar_from_json_schema(json_schema, overrides={'whitespace_flexible': False})
        except ValueError as error:
            raise BadRequestError(f'json_schema: expected a JSON object, got {error}') from error
        matcher = LLMatcher(self._vocabulary, grammar, log_level=0)
        if matcher.is_error():
            raise BadRequestError(f'json_schema: expected a schema that can be followed, got {matcher.get_error()}')
        return matcher


def grammar_compiler(tokenizer: Tokenizer, vocab_size: int, stop_ids: Sequence[int]) -> GrammarCompiler:
    """A compiler for logits of `vocab_size` (takes some 0.4 s to prepare)."""
    return GrammarCompiler(LLTokenizer(tokenizer.to_str(), n_vocab=vocab_size, eos_token=sorted(stop_ids), slices=None))
