"""Which requests must not leave the robot. Nothing may, unless it is named: a policy that forgets something is safe.

A predicate over requests; what it calls private is never sent, whatever else fails.
"""

from collections.abc import Callable
from dataclasses import dataclass

from kv_agent_ros.inference.base import GenerationRequest

IsPrivate = Callable[[GenerationRequest], bool]
EVERY_PURPOSE = '*'


@dataclass(frozen=True, kw_only=True, slots=True)
class PrivacyPolicy:
    """An IsPrivate. `shared_purposes` may leave (`*`: all), but for private robots and marked messages."""

    shared_purposes: frozenset[str] = frozenset()
    private_robots: frozenset[str] = frozenset()
    private_marks: tuple[str, ...] = ()  # texts; a message that holds one, in any case of letters, stays here

    def __call__(self, request: GenerationRequest) -> bool:
        if EVERY_PURPOSE not in self.shared_purposes and request.purpose not in self.shared_purposes:
            return True
        if request.session.robot_id in self.private_robots:
            return True
        marks = [mark.casefold() for mark in self.private_marks]
        texts = [message.content.casefold() for message in request.messages] if marks else []
        return any(mark in text for mark in marks for text in texts)
