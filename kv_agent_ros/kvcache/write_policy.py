"""When a tier gets the blocks of the tier above it, and how full memory may become before blocks leave it."""

from dataclasses import dataclass
from enum import Enum

from kv_agent_ros.errors import ConfigError


class WritePolicy(Enum):
    """What makes a block go down to a tier."""

    WRITE_THROUGH = 'write_through'
    """Being committed: it survives the end of the process. What could not be written then is when it leaves."""
    SELECTIVE = 'selective'
    """Being used a second time: what is used once never costs a write, and is lost with its memory."""
    WRITE_BACK = 'write_back'
    """Leaving the tier above, or an orderly end."""

    @property
    def saves_leavers(self) -> bool:
        """Whether a block that is in no lower tier is copied before it leaves the tier above."""
        return self is not WritePolicy.SELECTIVE


@dataclass(frozen=True, kw_only=True, slots=True)
class Watermarks:
    """Fractions of memory: fuller than `high`, blocks leave until it is no fuller than `low`; 1: only when full."""

    high: float = 1.0
    low: float = 1.0

    def __post_init__(self) -> None:
        if not 0.0 < self.low <= self.high <= 1.0:
            raise ConfigError(f'watermarks: expected 0 < low <= high <= 1, got low {self.low}, high {self.high}')


WHEN_FULL = Watermarks()
