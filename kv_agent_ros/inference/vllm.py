"""A vLLM server as an engine: OpenAI's protocol plus how urgent a request is and whose cache it may share.

The KV tensors stay in the server; cached tokens are counted when it runs with --enable-prompt-tokens-details, urgent
requests overtake with --scheduling-policy priority. A request ends in the server when its connection closes.
"""

from collections.abc import Callable
from dataclasses import replace
import json
import time

from kv_agent_ros.deadline import Deadline
from kv_agent_ros.errors import ModelUnavailableError
from kv_agent_ros.inference.base import EngineStats, Generation, GenerationRequest, TokenListener, ignore_tokens
from kv_agent_ros.inference.openai_http import ExtraFields, HttpSettings, OpenAiHttpBackend
from kv_agent_ros.inference.openai_wire import JsonObject
from kv_agent_ros.inference.returning import ReturningBackend
from kv_agent_ros.inference.session_name import session_name
from kv_agent_ros.inference.vllm_server import VllmServer, probe_vllm

STRUCTURED_OUTPUTS_SINCE = (0, 12)  # before, only OpenAI's response_format is understood by all versions


class VllmBackend:
    """An InferenceBackend over one vLLM server that was probed. `cache_salt` '' shares the cache with everybody."""

    def __init__(
        self,
        settings: HttpSettings,
        server: VllmServer,
        *,
        cache_salt: str,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.server = server
        self._settings = replace(settings, model=server.model)
        http = OpenAiHttpBackend(self._settings, extra_fields=vllm_fields(server, cache_salt), clock=clock)
        self._server = ReturningBackend(http, self._check_same)

    def generate(
        self, request: GenerationRequest, deadline: Deadline, on_text: TokenListener = ignore_tokens
    ) -> Generation:
        """See InferenceBackend. A lost server is asked again, until it has said something or for some seconds."""
        return self._server.generate(request, deadline, on_text)

    def stats(self) -> EngineStats:
        """The books; each repetition counts as a request."""
        return self._server.stats()

    def close(self) -> None:
        """Refuse further requests; the server goes on. Idempotent."""
        self._server.close()

    def _check_same(self, deadline: Deadline) -> None:
        """A server that was lost may have come back with other weights under the same name."""
        server = probe_vllm(self._settings, deadline)
        if server.root != self.server.root:
            raise ModelUnavailableError(
                f'{self._settings.base_url}: expected the model {self.server.root} again, got {server.root}; '
                'configure this engine anew'
            )


def connect_vllm(settings: HttpSettings, *, cache_salt: str, deadline: Deadline) -> VllmBackend:
    """A backend for a server that answers now and serves the model; raises ModelUnavailableError if it does not."""
    return VllmBackend(settings, probe_vllm(settings, deadline), cache_salt=cache_salt)


def vllm_fields(server: VllmServer, cache_salt: str) -> ExtraFields:
    """The body fields beyond OpenAI's: session, priority, schema, and the salt that keeps tenants' prefixes apart."""
    fixed: JsonObject = {'return_token_ids': True}
    if cache_salt:
        fixed['cache_salt'] = cache_salt

    def fields(request: GenerationRequest) -> JsonObject:
        own: JsonObject = {'session_id': session_name(request.session), 'priority': -request.priority}  # lower first
        if request.json_schema and server.release >= STRUCTURED_OUTPUTS_SINCE:
            own |= {'response_format': None, 'structured_outputs': {'json': json.loads(request.json_schema)}}
        return fixed | own

    return fields
