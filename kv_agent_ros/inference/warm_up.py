"""A robot's prompt is put into an engine's memory before the turn that needs it: from a lower tier, or computed."""

from dataclasses import replace

from kv_agent_ros.deadline import Deadline
from kv_agent_ros.inference.base import Generation, GenerationRequest, InferenceBackend
from kv_agent_ros.inference.priority import Priority


def warm_up(backend: InferenceBackend, request: GenerationRequest, deadline: Deadline) -> Generation:
    """Bring what the request's prompt needs to where the next turn of its session starts.

    Asks for one token, which nobody reads, behind everybody else; the usage says what was there and what was computed.
    Raises what generate() raises.
    """
    first = replace(request, max_new_tokens=1, json_schema='', temperature=0.0)
    return backend.generate(replace(first, priority=Priority.WARM_UP, purpose='warm-up'), deadline)
