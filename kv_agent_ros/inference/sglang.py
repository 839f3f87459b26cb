"""An SGLang server as an engine: OpenAI's protocol plus whose turn it is, how urgent, and whose cache it may share.

The KV tensors stay in the server; the counts of cached tokens are what it reports (--enable-cache-report). A server
that goes and comes back is used again; a request that has said nothing yet is repeated.
"""

import asyncio
from collections.abc import Callable
from dataclasses import replace
import time
import uuid

from kv_agent_ros.deadline import Deadline
from kv_agent_ros.errors import ModelUnavailableError
from kv_agent_ros.inference.base import (
    EngineStats,
    FinishReason,
    Generation,
    GenerationRequest,
    TokenListener,
    ignore_tokens,
)
from kv_agent_ros.inference.openai_http import (
    ChatExchange,
    ExtraFields,
    HttpSettings,
    OpenAiHttpBackend,
    Runner,
)
from kv_agent_ros.inference.openai_wire import JsonObject
from kv_agent_ros.inference.returning import ReturningBackend
from kv_agent_ros.inference.session_name import session_name
from kv_agent_ros.inference.sglang_prompts import PromptFields, prompt_as_text, prompt_fields
from kv_agent_ros.inference.sglang_server import (
    PriorityOrder,
    SglangServer,
    close_session,
    post_sglang,
    probe_sglang,
    require_adapter,
)
from kv_agent_ros.kvcache.block import SessionKey

ABORT_S = 2.0  # an aborted request must have ended within

MakeId = Callable[[], str]


def random_id() -> str:
    """A request id that no other client uses."""
    return uuid.uuid4().hex


class SglangBackend:
    """An InferenceBackend over one SGLang server that was probed. `cache_salt` '' shares the cache with everybody."""

    def __init__(
        self,
        settings: HttpSettings,
        server: SglangServer,
        *,
        cache_salt: str,
        prompt_fields: PromptFields = prompt_as_text,
        clock: Callable[[], float] = time.monotonic,
        make_id: MakeId = random_id,
    ) -> None:
        self.server = server
        self._settings = replace(settings, model=server.model)
        http = OpenAiHttpBackend(
            self._settings,
            extra_fields=sglang_fields(server.priority, cache_salt, prompt_fields, make_id, adapter=settings.adapter),
            run=abort_when_cancelled(self._settings),
            clock=clock,
        )
        self._server = ReturningBackend(http, self._check_same)

    def generate(
        self, request: GenerationRequest, deadline: Deadline, on_text: TokenListener = ignore_tokens
    ) -> Generation:
        """See InferenceBackend. A lost server is asked again, until it has said something or for some seconds."""
        return self._server.generate(request, deadline, on_text)

    def close_session(self, session: SessionKey, deadline: Deadline) -> None:
        """The session needs no cache any more; raises ModelUnavailableError, CanceledError or DeadlineError."""
        if self.server.has_session_references:
            close_session(self._settings, session_name(session), deadline)

    def stats(self) -> EngineStats:
        """The books; each repetition counts as a request."""
        return self._server.stats()

    def close(self) -> None:
        """Refuse further requests; the server goes on. Idempotent."""
        self._server.close()

    def _check_same(self, deadline: Deadline) -> None:
        """A server that was lost may have come back as another one."""
        server = probe_sglang(self._settings, deadline)
        if server.model_path != self.server.model_path:
            raise ModelUnavailableError(
                f'{self._settings.base_url}: expected the model {self.server.model_path} again, '
                f'got {server.model_path}; configure this engine anew'
            )


def connect_sglang(settings: HttpSettings, *, cache_salt: str, deadline: Deadline) -> SglangBackend:
    """A backend for a server that answers now, named by the model it serves; raises ModelUnavailableError if none."""
    server = probe_sglang(settings, deadline)
    if not server.is_generation:
        raise ModelUnavailableError(
            f'{settings.base_url}: expected a model that generates, got the embedding model {server.model_path}'
        )
    if settings.adapter:
        require_adapter(settings, deadline)
    return SglangBackend(
        settings, server, cache_salt=cache_salt, prompt_fields=prompt_fields(settings, server, deadline)
    )


def sglang_fields(
    priority: PriorityOrder, cache_salt: str, prompt_fields: PromptFields, make_id: MakeId, *, adapter: str = ''
) -> ExtraFields:
    """The body fields beyond OpenAI's: prompt, session, priority, adapter, and the salt that keeps tenants apart."""
    fixed: JsonObject = {'return_cached_tokens_details': True, 'return_output_ids_in_sglext': True}
    if cache_salt:
        fixed['cache_salt'] = cache_salt
    if adapter:
        fixed['lora_path'] = adapter
    sign = -1 if priority is PriorityOrder.LOWER_FIRST else 1

    def fields(request: GenerationRequest) -> JsonObject:
        own: JsonObject = {'rid': make_id(), 'session_id': session_name(request.session)}
        if priority is not PriorityOrder.REFUSED:
            own['priority'] = sign * request.priority
        return fixed | own | prompt_fields(request)

    return fields


def abort_when_cancelled(settings: HttpSettings) -> Runner:
    """A Runner that does not just hang up: it tells the server to stop, and waits until it has."""

    async def run(exchange: ChatExchange, body: JsonObject) -> None:
        reading = asyncio.ensure_future(exchange.run(body))
        try:
            await asyncio.shield(reading)
        except asyncio.CancelledError:
            await _abort(settings, body['rid'], reading)
            is_confirmed = FinishReason.CANCELED in exchange.reply.finish_reasons
            exchange.remark = '; the server has stopped' if is_confirmed else '; the server did not say that it stopped'
            raise

    return run


async def _abort(settings: HttpSettings, request_id: object, reading: asyncio.Future[None]) -> None:
    """At most ABORT_S; the connection is closed in any case."""
    asking: asyncio.Future[None] = asyncio.ensure_future(_ask_to_stop(settings, request_id))
    try:
        await asyncio.wait({asking, reading}, timeout=ABORT_S)
    finally:
        asking.cancel()
        reading.cancel()
        await asyncio.gather(asking, reading, return_exceptions=True)


async def _ask_to_stop(settings: HttpSettings, request_id: object) -> None:
    await post_sglang(settings, '/abort_request', {'rid': request_id})
