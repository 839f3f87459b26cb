"""Picks the next token from logits: the likeliest at temperature 0, a seeded draw above it."""

from collections.abc import Sequence
from typing import Protocol

import numpy as np
import numpy.typing as npt

from kv_agent_ros.errors import BadRequestError

Logits = npt.NDArray[np.float32]  # (vocab_size,)


class Sampler(Protocol):
    """One request's way to choose tokens."""

    def pick(self, logits: Logits) -> int:
        """The id of the next token; forbidden ones have logit -inf."""
        ...


class GreedySampler:
    """Always the likeliest token; the lowest id among equals."""

    def pick(self, logits: Logits) -> int:
        return int(np.argmax(logits))


class TemperatureSampler:
    """Draws from softmax(logits / temperature); equal seeds draw equally."""

    def __init__(self, temperature: float, seed: int) -> None:
        self._temperature = temperature
        self._random = np.random.default_rng(seed)

    def pick(self, logits: Logits) -> int:
        # Gumbel-max (Gumbel 1954): the largest perturbed logit is a softmax draw, without normalising anything.
        noise = self._random.gumbel(size=logits.shape)
        return int(np.argmax(logits.astype(np.float64) / self._temperature + noise))


class PromptedSampler:
    """Chooses what it is told, and adds up how likely that was: `log_probability` in nats."""

    def __init__(self, tokens: Sequence[int]) -> None:
        self._left = list(tokens)
        self.log_probability = 0.0

    def pick(self, logits: Logits) -> int:
        token = self._left.pop(0)
        shifted = logits.astype(np.float64) - float(logits.max())
        self.log_probability += float(shifted[token] - np.log(np.exp(shifted).sum()))
        return token


def sampler_of(temperature: float, seed: int) -> Sampler:
    """The sampler of a request; raises BadRequestError for a temperature that is not a finite number from 0 up."""
    if not 0.0 <= temperature < float('inf'):
        raise BadRequestError(f'temperature: expected a finite number >= 0, got {temperature!r}')
    return TemperatureSampler(temperature, abs(seed)) if temperature > 0.0 else GreedySampler()
