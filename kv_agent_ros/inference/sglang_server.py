"""What an SGLang server says of itself, and what it can be told: the calls beside generation.

Asked once at connect, so that nothing is assumed about a version or a flag. A server that does not tell is taken to be
able to do the least.
"""

from dataclasses import dataclass
from enum import Enum
import re

import httpx

from kv_agent_ros.deadline import Deadline
from kv_agent_ros.errors import ModelUnavailableError
from kv_agent_ros.inference.http_deadline import run_within
from kv_agent_ros.inference.openai_http import PASSING_FAULTS, HttpSettings, ServerLostError, http_client
from kv_agent_ros.inference.openai_wire import JsonObject, parse_object, quoted

MODEL_PATHS = ('/model_info', '/get_model_info')  # the later name first
SERVER_PATHS = ('/server_info', '/get_server_info')
RUST_CORE_SINCE = (0, 5, 23)


class PriorityOrder(Enum):
    """What the server makes of a request's priority."""

    IGNORED = 'ignored'
    """Nothing; first come, first served."""
    REFUSED = 'refused'
    """A request that has one is aborted."""
    HIGHER_FIRST = 'higher first'
    """As ours."""
    LOWER_FIRST = 'lower first'
    """The other way round."""


@dataclass(frozen=True, kw_only=True, slots=True)
class SglangServer:
    """What one server can do."""

    model_path: str
    model: str  # the name it serves the model by
    tokenizer_path: str
    is_generation: bool
    version: str
    tree_core: str  # as this version chooses it by its flags: none, rust, python, or the name of a plugin
    grammar: str
    page_tokens: int
    capacity_tokens: int
    priority: PriorityOrder
    reports_cached_tokens: bool
    has_session_references: bool
    has_host_tier: bool
    storage: str  # the storage backend below the host tier; '' is none
    events_endpoint: str  # where it publishes its KV events; '' is nowhere
    events_replay_endpoint: str  # where it repeats missed ones
    cpu_experts: str  # the method by which KTransformers computes experts on the CPU; '' is not at all

    def summary(self) -> str:
        """One line for a log."""
        tiers = ['device'] + ['host'] * self.has_host_tier + [self.storage] * bool(self.storage)
        sessions = 'session references' if self.has_session_references else 'no session references'
        events = f', events at {self.events_endpoint}' if self.events_endpoint else ''
        experts = f', experts on the CPU by {self.cpu_experts}' if self.cpu_experts else ''
        return (
            f'SGLang {self.version or "of unknown version"}, {self.model}: tree core {self.tree_core}, pages of '
            f'{self.page_tokens}, {self.capacity_tokens} tokens on {"/".join(tiers)}, grammar {self.grammar}, priority '
            f'{self.priority.value}, {sessions}, {"reports" if self.reports_cached_tokens else "hides"} cached tokens'
            f'{events}{experts}'
        )


def probe_sglang(settings: HttpSettings, deadline: Deadline) -> SglangServer:
    """Ask the server; raises ModelUnavailableError, CanceledError or DeadlineError."""
    model, server = run_within(deadline, _get_both(settings))
    return read_server(settings.base_url, model, server)


def read_server(url: str, model: JsonObject, server: JsonObject) -> SglangServer:
    """What the replies for the model and for the server say; raises ModelUnavailableError when there is no model."""
    path = model.get('model_path')
    if not isinstance(path, str) or not path:
        raise ModelUnavailableError(f'{url}: expected an SGLang server, got {quoted(str(model))}')
    events = _events(server)
    return SglangServer(
        model_path=path,
        model=_text(model, 'served_model_name') or path,
        tokenizer_path=_text(model, 'tokenizer_path'),
        is_generation=model.get('is_generation') is not False,
        version=_text(server, 'version'),
        tree_core=_tree_core(server),
        grammar=_text(server, 'grammar_backend') or 'unknown',
        page_tokens=_number(server, 'page_size'),
        capacity_tokens=_number(server, 'max_total_tokens') or _number(server, 'max_total_num_tokens'),
        priority=_priority(server),
        reports_cached_tokens=server.get('enable_cache_report') is True,
        has_session_references=server.get('enable_session_radix_cache') is True,
        has_host_tier=server.get('enable_hierarchical_cache') is True,
        storage=_text(server, 'hicache_storage_backend'),
        events_endpoint=_text(events, 'endpoint'),
        events_replay_endpoint=_text(events, 'replay_endpoint'),
        cpu_experts=(_text(server, 'kt_method') or 'unknown') if _text(server, 'kt_weight_path') else '',
    )


async def post_sglang(settings: HttpSettings, path: str, body: JsonObject) -> httpx.Response:
    """POST to a control path; raises httpx.HTTPError."""
    async with http_client(settings) as client:
        return await client.post(settings.base_url.rstrip('/') + path, json=body)


def close_session(settings: HttpSettings, name: str, deadline: Deadline) -> None:
    """Give up a session's references to the cache; its blocks stay until their place is needed. Idempotent.

    Raises ModelUnavailableError, CanceledError or DeadlineError.
    """
    try:
        response = run_within(deadline, post_sglang(settings, '/close_session', {'session_id': name}))
    except httpx.HTTPError as error:
        raise _lost(settings, error) from error
    if response.status_code >= httpx.codes.INTERNAL_SERVER_ERROR:
        raise ModelUnavailableError(f'{response.url}: expected status 200, got {response.status_code}')


def require_adapter(settings: HttpSettings, deadline: Deadline) -> None:
    """Raise ModelUnavailableError where the server has not loaded the LoRA adapter of the settings.

    Raises CanceledError or DeadlineError, too.
    """
    try:
        response = run_within(deadline, _get(settings, '/v1/models'))
    except httpx.HTTPError as error:
        raise _lost(settings, error) from error
    listed = parse_object(response.text).get('data')
    names = [str(each.get('id')) for each in listed if isinstance(each, dict)] if isinstance(listed, list) else []
    if settings.adapter not in names[1:]:
        raise ModelUnavailableError(
            f'{settings.base_url}: expected the LoRA adapter {settings.adapter!r}, got a server of '
            f'{quoted(", ".join(names))}; start it with --enable-lora --lora-paths {settings.adapter}=DIR'
        )


async def _get(settings: HttpSettings, path: str) -> httpx.Response:
    async with http_client(settings) as client:
        return await client.get(settings.base_url.rstrip('/') + path)


async def _get_both(settings: HttpSettings) -> tuple[JsonObject, JsonObject]:
    try:
        async with http_client(settings) as client:
            model = await _first_found(client, settings, MODEL_PATHS)
            server = await _first_found(client, settings, SERVER_PATHS)
    except httpx.HTTPError as error:
        raise _lost(settings, error) from error
    if model.status_code in PASSING_FAULTS:
        raise ServerLostError(f'{model.url}: expected status 200, got {model.status_code}')
    if model.status_code != httpx.codes.OK:
        raise ModelUnavailableError(f'{model.url}: expected status 200, got {model.status_code}')
    return parse_object(model.text), parse_object(server.text) if server.status_code == httpx.codes.OK else {}


async def _first_found(client: httpx.AsyncClient, settings: HttpSettings, paths: tuple[str, ...]) -> httpx.Response:
    for path in paths:
        response = await client.get(settings.base_url.rstrip('/') + path)
        if response.status_code != httpx.codes.NOT_FOUND:
            break
    return response


def _lost(settings: HttpSettings, error: httpx.HTTPError) -> ServerLostError:
    return ServerLostError(
        f'{settings.base_url}: expected an SGLang server, got {type(error).__name__} ({error}); is it running?'
    )


def _events(server: JsonObject) -> JsonObject:
    """The settings of its event stream, as the JSON text that it was started with."""
    config = server.get('kv_events_config')
    try:
        return parse_object(config) if isinstance(config, str) else {}
    except ModelUnavailableError:
        return {}


def _tree_core(server: JsonObject) -> str:
    if server.get('disable_radix_cache') is True:
        return 'none'
    if plugin := _text(server, 'radix_cache_backend'):
        return plugin
    version = tuple(int(number) for number in re.findall(r'\d+', _text(server, 'version'))[:3])
    has_rust = version >= RUST_CORE_SINCE and server.get('enable_session_radix_cache') is not True
    return 'rust' if has_rust else 'python'


def _priority(server: JsonObject) -> PriorityOrder:
    if server.get('enable_priority_scheduling') is True:
        is_reversed = server.get('schedule_low_priority_values_first') is True
        return PriorityOrder.LOWER_FIRST if is_reversed else PriorityOrder.HIGHER_FIRST
    return PriorityOrder.REFUSED if server.get('abort_on_priority_when_disabled') is True else PriorityOrder.IGNORED


def _text(facts: JsonObject, key: str) -> str:
    value = facts.get(key)
    return value if isinstance(value, str) else ''


def _number(facts: JsonObject, key: str) -> int:
    value = facts.get(key)
    return value if isinstance(value, int) else 0
