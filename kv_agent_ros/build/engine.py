"""The language model's engine."""

from collections.abc import Callable
from dataclasses import dataclass

from kv_agent_ros.build.server import alone, open_plain_server, open_sessions, with_cloud
from kv_agent_ros.config import InferenceConfig, expand
from kv_agent_ros.errors import ConfigError
from kv_agent_ros.inference.base import InferenceBackend
from kv_agent_ros.inference.local import LocalBackend
from kv_agent_ros.inference.local_canary import fitting_bits
from kv_agent_ros.inference.local_engine import Batching
from kv_agent_ros.inference.local_linear import Weights
from kv_agent_ros.inference.local_model import LocalModel, load_local_model
from kv_agent_ros.inference.server_sessions import ServerSessions
from kv_agent_ros.inference.unavailable import UnavailableBackend
from kv_agent_ros.kvcache.base import PrefixCache
from kv_agent_ros.kvcache.block import KVNamespace
from kv_agent_ros.kvcache.canary import WIDTHS
from kv_agent_ros.kvcache.storage.segment import SegmentMap


@dataclass(frozen=True, kw_only=True, slots=True)
class EngineFactory:
    """A model that is loaded, or a server that is known; makes the backend around the cache that it is given."""

    make: Callable[[PrefixCache], InferenceBackend]
    sessions: tuple[ServerSessions, ...] = ()  # of a server that keeps the robots' KV to itself; it is the backend

    def close(self) -> None:
        """The backend is closed by whoever made it."""


def open_engine(config: InferenceConfig, progress: Callable[[str], object]) -> EngineFactory:
    """The engine of the config. Raises ModelUnavailableError or ConfigError, so that configure fails with the text."""
    if config.adapter and config.engine in ('none', 'local'):
        raise ConfigError(f'adapter: expected none for the engine {config.engine}, got {config.adapter!r}')
    if config.engine == 'none':
        return EngineFactory(make=lambda cache: UnavailableBackend())
    if config.engine in ('local', 'edge_cloud'):
        join = with_cloud(config, progress) if config.engine == 'edge_cloud' else alone
        model = load_local_model(
            config.model,
            expand(config.cache_dir) / 'models',
            config.threads,
            lambda text: _ignore(progress(text)),
            Weights(config.weights),
        )
        namespace = stored_namespace(model, config)
        batching = Batching(max_batch=config.max_batch, chunk_tokens=config.prefill_chunk_tokens)
        return EngineFactory(make=lambda cache: join(local_backend(model, cache, namespace, batching)))
    if config.engine == 'openai':
        server = open_plain_server(config)
        return EngineFactory(make=lambda cache: server)
    sessions = open_sessions(config, progress)
    return EngineFactory(make=lambda cache: sessions, sessions=(sessions,))


def _ignore(value: object) -> None:
    """For listeners whose return value does not matter."""


def stored_namespace(model: LocalModel, config: InferenceConfig) -> KVNamespace:
    """The identity of the model's stored blocks. Raises ConfigError for bits that no codec has."""
    if config.stored_bits not in WIDTHS:
        raise ConfigError(f'stored_bits: expected one of {", ".join(map(str, WIDTHS))}, got {config.stored_bits}')
    wanted = model.namespace(config.block_tokens, config.storage_dtype, bits=config.stored_bits)
    return fitting_bits(model, wanted, expand(config.cache_dir))


def local_backend(model: LocalModel, cache: PrefixCache, namespace: KVNamespace, batching: Batching) -> LocalBackend:
    """The embedded engine around a prefix cache."""
    return LocalBackend(model=model, cache=cache, segments=SegmentMap(), namespace=namespace, batching=batching)
