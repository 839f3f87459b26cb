"""Who goes first on an engine that robots share: the one table of GenerationRequest.priority.

Gaps are wide, because who waits is moved up: in the local engine by one every AGEING_S (local_run.py), so that 10 are
20 s. SGLang interrupts an answer under way only for a gap above 10, its default.
"""

from enum import IntEnum


class Priority(IntEnum):
    """Higher goes first."""

    REPLAN = 10
    """A robot stands in mid-task: a step failed, or the gate refused its plan."""
    PLAN = 0
    """A robot waits for its plan."""
    TALK = -10
    """A person waits for a sentence."""
    WARM_UP = -20
    """Nobody waits."""
