"""What a vLLM server says of itself: version, served models, and how its prefix cache is cut.

Asked at connect, so that a wrong name of a model is a failed configure and not a failed plan.
"""

from dataclasses import dataclass
import re

import httpx

from kv_agent_ros.deadline import Deadline
from kv_agent_ros.errors import ModelUnavailableError
from kv_agent_ros.inference.http_deadline import run_within
from kv_agent_ros.inference.openai_http import PASSING_FAULTS, HttpSettings, ServerLostError, http_client
from kv_agent_ros.inference.openai_wire import JsonObject, parse_object, quoted

WHATEVER_IS_SERVED = 'bundled'  # the default of the setting `model`; not a name that a server knows
CACHE_FACTS = re.compile(r'^vllm:cache_config_info\{(.*)\} ', re.MULTILINE)
CACHE_FACT = re.compile(r'(\w+)="([^"]*)"')


@dataclass(frozen=True, kw_only=True, slots=True)
class VllmServer:
    """What one server serves."""

    model: str  # the name it serves the model by
    root: str  # where the weights came from; of an adapter, the adapter's
    base: str  # of a LoRA adapter, the name of the model below it; '' for a whole model
    version: str
    context_tokens: int
    has_prefix_cache: bool
    block_tokens: int
    capacity_tokens: int  # of the prefix cache

    @property
    def release(self) -> tuple[int, ...]:
        """The version as numbers; empty when it is not told."""
        return tuple(int(number) for number in re.findall(r'\d+', self.version)[:2])

    def summary(self) -> str:
        """One line for a log."""
        adapter = f' on {self.base}' if self.base else ''
        cache = (
            f'prefix cache of {self.capacity_tokens} tokens in blocks of {self.block_tokens}'
            if self.has_prefix_cache
            else 'no prefix cache that it tells of'
        )
        return (
            f'vLLM {self.version or "of unknown version"}, {self.model}{adapter}: context of {self.context_tokens} '
            f'tokens, {cache}'
        )


def probe_vllm(settings: HttpSettings, deadline: Deadline) -> VllmServer:
    """Ask the server for the model of the settings; raises ModelUnavailableError, CanceledError or DeadlineError."""
    models, version, metrics = run_within(deadline, _get_all(settings))
    return read_server(settings, models, version, metrics)


def read_server(settings: HttpSettings, models: JsonObject, version: JsonObject, metrics: str) -> VllmServer:
    """What the replies say; raises ModelUnavailableError when the model is not served."""
    card = _card(settings, models)
    facts = dict(CACHE_FACT.findall(found[1])) if (found := CACHE_FACTS.search(metrics)) else {}
    block_tokens = _number(facts.get('block_size'))
    return VllmServer(
        model=str(card['id']),
        root=str(card.get('root') or card['id']),
        base=str(card.get('parent') or ''),
        version=str(version.get('version') or ''),
        context_tokens=_number(card.get('max_model_len')),
        has_prefix_cache=facts.get('enable_prefix_caching') == 'True',
        block_tokens=block_tokens,
        capacity_tokens=_number(facts.get('num_gpu_blocks')) * block_tokens,
    )


def _card(settings: HttpSettings, models: JsonObject) -> JsonObject:
    """The entry of the wanted model among the served ones."""
    listed = models.get('data')
    cards = [each for each in listed if isinstance(each, dict) and each.get('id')] if isinstance(listed, list) else []
    if not cards:
        raise ModelUnavailableError(f'{settings.base_url}: expected a vLLM server, got {quoted(str(models))}')
    if settings.model == WHATEVER_IS_SERVED:
        return cards[0]
    for card in cards:
        if settings.model in (card['id'], card.get('root')):
            return card
    served = ', '.join(str(card['id']) for card in cards)
    raise ModelUnavailableError(
        f'{settings.base_url}: expected the model {settings.model!r}, got a server of {quoted(served)}; '
        'set the parameter model to one of these'
    )


async def _get_all(settings: HttpSettings) -> tuple[JsonObject, JsonObject, str]:
    url = settings.base_url.rstrip('/')
    try:
        async with http_client(settings) as client:
            models = await client.get(f'{url}/v1/models')
            version = await client.get(f'{url}/version')
            metrics = await client.get(f'{url}/metrics')
    except httpx.HTTPError as error:
        raise ServerLostError(
            f'{url}: expected a vLLM server, got {type(error).__name__} ({error}); is it running?'
        ) from error
    if models.status_code in PASSING_FAULTS:
        raise ServerLostError(f'{models.url}: expected status 200, got {models.status_code}')
    if models.status_code != httpx.codes.OK:
        raise ModelUnavailableError(f'{models.url}: expected status 200, got {models.status_code}')
    told = parse_object(version.text) if version.status_code == httpx.codes.OK else {}
    return parse_object(models.text), told, metrics.text if metrics.status_code == httpx.codes.OK else ''


def _number(value: object) -> int:
    if isinstance(value, str) and value.isdecimal():
        return int(value)
    return value if isinstance(value, int) else 0
