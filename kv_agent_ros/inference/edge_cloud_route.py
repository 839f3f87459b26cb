"""Which of two engines a request goes to first, and whether the other one may help: small on the robot, larger away.

By what is private, by the network, by the time that is left, by how hard the request looks, and by which engine has
its session warm. Pure but for the clocks of what it asks.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum

from kv_agent_ros.inference.base import GenerationRequest
from kv_agent_ros.inference.link_health import LinkHealth
from kv_agent_ros.inference.privacy import IsPrivate
from kv_agent_ros.inference.side_books import SideBooks, prompt_chars

MUCH_FASTER = 2.0


class Side(Enum):
    """Where an engine runs."""

    EDGE = 'edge'
    """On the robot."""
    CLOUD = 'cloud'
    """Behind a network."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Difficulty:
    """What a small model is not trusted with: purposes, and prompts above a length."""

    hard_purposes: frozenset[str] = frozenset({'plan', 'repair'})
    hard_prompt_chars: int = 16_000

    def is_hard(self, request: GenerationRequest) -> bool:
        """Whether the larger model should answer."""
        return request.purpose in self.hard_purposes or prompt_chars(request.messages) > self.hard_prompt_chars


class EdgeCloudRoute:
    """The order in which the sides are asked. Thread-safe."""

    def __init__(
        self, *, is_private: IsPrivate, difficulty: Difficulty, health: LinkHealth, books: Mapping[Side, SideBooks]
    ) -> None:
        self._is_private = is_private
        self._difficulty = difficulty
        self._health = health
        self._books = books

    def order(self, request: GenerationRequest, remaining_s: float) -> tuple[Side, ...]:
        """The side to ask and then those that may take over; a private request knows only the robot."""
        if self._is_private(request):
            return (Side.EDGE,)
        if not self._health.is_usable:
            return (Side.EDGE, Side.CLOUD)
        edge_s, cloud_s = (self._books[side].expected_s(request) for side in (Side.EDGE, Side.CLOUD))
        if self._prefers_cloud(request, remaining_s, edge_s, cloud_s):
            return (Side.CLOUD, Side.EDGE)
        return (Side.EDGE, Side.CLOUD)

    def _prefers_cloud(self, request: GenerationRequest, remaining_s: float, edge_s: float, cloud_s: float) -> bool:
        fits_edge, fits_cloud = edge_s < remaining_s, cloud_s < remaining_s
        if fits_edge != fits_cloud:
            return fits_cloud
        if not fits_edge or request.priority > 0:
            return 0.0 < cloud_s < edge_s  # what is urgent, or late already, goes where it is known to end first
        return self._difficulty.is_hard(request) or 0.0 < cloud_s * MUCH_FASTER < edge_s
