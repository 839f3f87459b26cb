"""An SGLang server as an engine: OpenAI's protocol plus whose turn it is, how urgent, and whose cache it may share.

The KV tensors stay in the server; the counts of cached tokens are what it reports (--enable-cache-report).
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
import time
from urllib.parse import quote

import httpx

from kv_agent_ros.deadline import Deadline
from kv_agent_ros.errors import ModelUnavailableError
from kv_agent_ros.inference.base import EngineStats, Generation, GenerationRequest, TokenListener, ignore_tokens
from kv_agent_ros.inference.http_deadline import run_within
from kv_agent_ros.inference.openai_http import ExtraFields, HttpSettings, OpenAiHttpBackend
from kv_agent_ros.inference.openai_wire import JsonObject, parse_object, quoted
from kv_agent_ros.kvcache.block import SessionKey

MODEL_PATHS = ('/model_info', '/get_model_info')  # the later name first


@dataclass(frozen=True, kw_only=True, slots=True)
class SglangModel:
    """What a server says of itself."""

    model_path: str
    is_generation: bool


class SglangBackend:
    """An InferenceBackend over one SGLang server. `cache_salt` '' shares the cache with everybody on that server."""

    def __init__(self, settings: HttpSettings, *, cache_salt: str, clock: Callable[[], float] = time.monotonic) -> None:
        self._server = OpenAiHttpBackend(settings, extra_fields=sglang_fields(cache_salt), clock=clock)

    def generate(
        self, request: GenerationRequest, deadline: Deadline, on_text: TokenListener = ignore_tokens
    ) -> Generation:
        """See InferenceBackend."""
        return self._server.generate(request, deadline, on_text)

    def stats(self) -> EngineStats:
        """The books."""
        return self._server.stats()

    def close(self) -> None:
        """Refuse further requests; the server goes on. Idempotent."""
        self._server.close()


def connect_sglang(settings: HttpSettings, *, cache_salt: str, deadline: Deadline) -> SglangBackend:
    """A backend for a server that answers now, named by the model it serves; raises ModelUnavailableError if none."""
    model = probe_sglang(settings, deadline)
    if not model.is_generation:
        raise ModelUnavailableError(
            f'{settings.base_url}: expected a model that generates, got the embedding model {model.model_path}'
        )
    return SglangBackend(replace(settings, model=model.model_path), cache_salt=cache_salt)


def probe_sglang(settings: HttpSettings, deadline: Deadline) -> SglangModel:
    """Ask the server which model it serves; raises ModelUnavailableError, CanceledError or DeadlineError."""
    facts = run_within(deadline, _get_model(settings))
    path = facts.get('model_path')
    if not isinstance(path, str) or not path:
        raise ModelUnavailableError(f'{settings.base_url}: expected an SGLang server, got {quoted(str(facts))}')
    return SglangModel(model_path=path, is_generation=facts.get('is_generation') is not False)


def sglang_fields(cache_salt: str) -> ExtraFields:
    """The body fields beyond OpenAI's: session, priority and the salt that keeps tenants' prefixes apart."""
    salt: JsonObject = {'cache_salt': cache_salt} if cache_salt else {}

    def fields(request: GenerationRequest) -> JsonObject:
        return {'session_id': session_name(request.session), 'priority': request.priority} | salt

    return fields


def session_name(session: SessionKey) -> str:
    """Robot and session as one string; no two sessions share one, whatever characters they hold."""
    return f'{quote(session.robot_id, safe="")}/{quote(session.session_id, safe="")}'


async def _get_model(settings: HttpSettings) -> JsonObject:
    root = settings.base_url.rstrip('/')
    try:
        async with httpx.AsyncClient(timeout=None, trust_env=False, headers=settings.headers) as client:
            for path in MODEL_PATHS:
                response = await client.get(root + path)
                if response.status_code != httpx.codes.NOT_FOUND:
                    break
    except httpx.HTTPError as error:
        raise ModelUnavailableError(
            f'{root}: expected an SGLang server, got {type(error).__name__} ({error})'
        ) from error
    if response.status_code != httpx.codes.OK:
        raise ModelUnavailableError(f'{response.url}: expected status 200, got {response.status_code}')
    return parse_object(response.text)
