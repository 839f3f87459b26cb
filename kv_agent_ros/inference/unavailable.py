"""The engine `none`: no model at all. Every call says so, and the planner falls back to its rules."""

from kv_agent_ros.deadline import Deadline
from kv_agent_ros.errors import ModelUnavailableError
from kv_agent_ros.inference.base import EngineStats, Generation, GenerationRequest, TokenListener, ignore_tokens


class UnavailableBackend:
    """An InferenceBackend that never answers."""

    def generate(
        self, request: GenerationRequest, deadline: Deadline, on_text: TokenListener = ignore_tokens
    ) -> Generation:
        raise ModelUnavailableError('engine none: no language model is configured; set the parameter engine')

    def stats(self) -> EngineStats:
        return EngineStats(engine='none', model='')

    def close(self) -> None:
        """Nothing to free."""
