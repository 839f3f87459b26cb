"""An engine behind a URL that speaks OpenAI's chat completions (vLLM, llama.cpp, Ollama, SGLang, hosted services).

Always streams, so that text, time to first token and cancellation are real; cancelling closes the connection, which is
how these servers learn of it. Proxies of the environment are not used: the URL is where the tokens go.
"""

from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
import ssl
import time

import httpx

from kv_agent_ros.deadline import Deadline
from kv_agent_ros.errors import (
    BadRequestError,
    CanceledError,
    ConfigError,
    DeadlineError,
    KvAgentError,
    ModelUnavailableError,
    Outcome,
)
from kv_agent_ros.inference.base import (
    EngineStats,
    FinishReason,
    Generation,
    GenerationRequest,
    TokenListener,
    Usage,
    ignore_tokens,
)
from kv_agent_ros.inference.endings import cut_short
from kv_agent_ros.inference.engine_books import EngineBooks
from kv_agent_ros.inference.http_deadline import run_within
from kv_agent_ros.inference.openai_wire import REQUEST_FAULTS, JsonObject, Reply, chat_body, quoted, read_chunk

ExtraFields = Callable[[GenerationRequest], JsonObject]
Runner = Callable[['ChatExchange', JsonObject], Coroutine[object, object, None]]

PASSING_FAULTS = (429, 502, 503, 504)  # overloaded or just starting
END_OF_STREAM = '[DONE]'
MAX_PORT = 65_535


@dataclass(frozen=True, kw_only=True, slots=True)
class HttpSettings:
    """Where the server is. `base_url` without /v1; `headers` may hold a key and are never printed."""

    base_url: str
    model: str
    engine: str = 'openai'
    adapter: str = ''  # LoRA adapter that the server has loaded, where the dialect names it beside the model
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)

    def __post_init__(self) -> None:
        try:
            url = httpx.URL(self.base_url)
        except httpx.InvalidURL as error:
            raise ConfigError(f'base_url: expected a URL, got {self.base_url!r} ({error})') from error
        if url.scheme not in ('http', 'https') or not url.host or not 0 <= (url.port or 0) <= MAX_PORT:
            raise ConfigError(f'base_url: expected http(s)://host[:port], got {self.base_url!r}')


def bearer_headers(api_key_path: Path) -> Mapping[str, str]:
    """The Authorization header from a file that holds only the key; raises ConfigError when it cannot be read."""
    try:
        key = api_key_path.read_text().strip()
    except (OSError, ValueError) as error:
        raise ConfigError(f'api_key_path: expected a readable text file, got {api_key_path}: {error}') from error
    if not key or not key.isprintable() or not key.isascii():
        raise ConfigError(f'api_key_path: expected one line of ASCII in {api_key_path}, got something else')
    return {'Authorization': f'Bearer {key}'}


@cache
def trusted_certificates() -> ssl.SSLContext:
    """Those of httpx; reading them takes longer than many a request."""
    return httpx.create_ssl_context(trust_env=False)


def http_client(settings: HttpSettings) -> httpx.AsyncClient:
    """A client for one exchange; time limits are the caller's."""
    return httpx.AsyncClient(timeout=None, trust_env=False, headers=settings.headers, verify=trusted_certificates())


class ServerLostError(ModelUnavailableError):
    """The server was not there, too busy or gone in mid-answer: the same request can succeed later."""


def no_extra_fields(request: GenerationRequest) -> JsonObject:
    """Plain OpenAI: nothing beyond the standard body."""
    return {}


async def run_exchange(exchange: 'ChatExchange', body: JsonObject) -> None:
    """Plain OpenAI: a cancelled exchange just closes its connection."""
    await exchange.run(body)


class OpenAiHttpBackend:
    """An InferenceBackend. Its usage is what the server reports; a server that reports none counts 0."""

    def __init__(
        self,
        settings: HttpSettings,
        *,
        extra_fields: ExtraFields = no_extra_fields,
        run: Runner = run_exchange,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._settings = settings
        self._extra_fields = extra_fields
        self._run = run
        self._books = EngineBooks(engine=settings.engine, model=settings.model)
        self._clock = clock
        self._is_closed = False

    def generate(
        self, request: GenerationRequest, deadline: Deadline, on_text: TokenListener = ignore_tokens
    ) -> Generation:
        """See InferenceBackend. `token_ids` are those that the server tells; plain OpenAI has only text."""
        if self._is_closed:
            raise ModelUnavailableError(f'engine {self._settings.engine}: expected an open engine, got a closed one')
        body = chat_body(request, self._settings.model) | self._extra_fields(request)
        exchange = ChatExchange(self._settings, on_text, self._clock)
        try:
            deadline.check()
            run_within(deadline, self._run(exchange, body))
            generation = replace(exchange.generation(), finish_reason=exchange.finish_reason())
        except (CanceledError, DeadlineError) as end:
            generation = cut_short(exchange.generation(), end)
            generation = replace(generation, message=generation.message + exchange.remark)
        except KvAgentError:
            self._books.enter_failure()
            raise
        return self._books.enter(generation, prefill_s=generation.usage.ttft_s, load_s=0.0)

    def stats(self) -> EngineStats:
        """The books; `prefill_s` is the time to first token, queue and network included."""
        return self._books.stats

    def close(self) -> None:
        """Refuse further requests. Idempotent."""
        self._is_closed = True


class ChatExchange:
    """One request on the wire. `remark` is added to the message of an answer that was cut short."""

    def __init__(self, settings: HttpSettings, on_text: TokenListener, clock: Callable[[], float]) -> None:
        self._settings = settings
        self._on_text = on_text
        self._clock = clock
        self._called_at_s = clock()
        self._ttft_s = 0.0
        self.reply = Reply()
        self.remark = ''

    def generation(self) -> Generation:
        """What has arrived so far."""
        reply = self.reply
        return Generation(
            outcome=Outcome.SUCCESS,
            text=reply.text,
            token_ids=tuple(reply.token_ids),
            usage=Usage(
                prompt_tokens=reply.prompt_tokens,
                cached_tokens=reply.cached_tokens,
                cached_host_tokens=reply.cached_host_tokens,
                cached_storage_tokens=reply.cached_storage_tokens,
                computed_tokens=reply.prompt_tokens - reply.cached_tokens,
                generated_tokens=reply.generated_tokens,
                ttft_s=self._ttft_s,
                total_s=self._clock() - self._called_at_s,
            ),
            engine=self._settings.engine,
            model=self._settings.model,
        )

    def finish_reason(self) -> FinishReason:
        """Why the whole text ended; raises ServerLostError when the server ended it on its own account."""
        reason = self.reply.finish_reasons[-1]
        if reason is FinishReason.CANCELED:
            raise ServerLostError(f'{self._settings.base_url}: expected a whole answer, got one the server aborted')
        return reason

    async def run(self, body: JsonObject) -> None:
        """Send the body and read the answer to its end."""
        url = f'{self._settings.base_url.rstrip("/")}/v1/chat/completions'
        try:
            async with (
                http_client(self._settings) as client,
                client.stream('POST', url, json=body) as response,
            ):
                await self._read(response)
        except httpx.HTTPError as error:
            raise ServerLostError(
                f'{url}: expected an OpenAI-compatible server, got {type(error).__name__} ({error}); is it running?'
            ) from error
        if not self.reply.is_finished:
            raise ServerLostError(f'{url}: expected a finish_reason at the end of the stream, got none')

    async def _read(self, response: httpx.Response) -> None:
        if response.status_code != httpx.codes.OK:
            await response.aread()
            _refuse(response)
        if response.headers.get('content-type', '').startswith('application/json'):
            await response.aread()
            self._hear(response.text)
            return
        async for line in response.aiter_lines():
            payload = line.removeprefix('data:').strip()
            if payload == END_OF_STREAM:
                return
            if payload and not line.startswith((':', 'event:', 'id:', 'retry:')):
                self._hear(payload)

    def _hear(self, payload: str) -> None:
        piece = read_chunk(payload, self.reply)
        if piece:
            self._ttft_s = self._ttft_s or self._clock() - self._called_at_s
            self._on_text(piece)


def _refuse(response: httpx.Response) -> None:
    """The error of a reply that is no answer."""
    got = f'{response.request.url}: expected status 200, got {response.status_code} {quoted(response.text)}'
    if response.status_code in REQUEST_FAULTS:
        raise BadRequestError(got)
    if response.status_code in PASSING_FAULTS:
        raise ServerLostError(got)
    raise ModelUnavailableError(got)
