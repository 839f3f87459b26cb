"""Language models behind a URL: one server in its dialect, or one that helps the engine on the robot."""

from collections.abc import Callable

from kv_agent_ros.config import InferenceConfig, expand
from kv_agent_ros.deadline import Deadline
from kv_agent_ros.errors import ConfigError
from kv_agent_ros.inference.base import InferenceBackend
from kv_agent_ros.inference.edge_cloud import EdgeCloudBackend
from kv_agent_ros.inference.ktransformers import connect_ktransformers
from kv_agent_ros.inference.late_backend import LateBackend
from kv_agent_ros.inference.openai_http import HttpSettings, OpenAiHttpBackend, bearer_headers
from kv_agent_ros.inference.privacy import PrivacyPolicy
from kv_agent_ros.inference.server_sessions import ServerSessions
from kv_agent_ros.inference.sglang import SglangBackend, connect_sglang
from kv_agent_ros.inference.vllm import VllmBackend, connect_vllm

Progress = Callable[[str], object]
Join = Callable[[InferenceBackend], InferenceBackend]

PROBE_S = 10.0


def open_plain_server(config: InferenceConfig) -> InferenceBackend:
    """The server of `engine` openai: what it has cached is its own affair; raises ConfigError."""
    return OpenAiHttpBackend(server_settings(config, config.engine, config.model))


def open_sessions(config: InferenceConfig, progress: Progress) -> ServerSessions:
    """Robots' sessions on the server of `engine`, which answers now; raises ModelUnavailableError or ConfigError."""
    settings, deadline = server_settings(config, config.engine, config.model), Deadline(PROBE_S)
    if settings.engine == 'vllm':
        vllm = _connected_vllm(settings, config.cache_salt, deadline, progress)
        return ServerSessions(vllm, block_tokens=vllm.server.block_tokens)
    sglang = _connected_sglang(settings, config.cache_salt, deadline, progress)
    return ServerSessions(sglang, block_tokens=sglang.server.page_tokens, close_session=sglang.close_session)


def with_cloud(config: InferenceConfig, progress: Progress) -> Join:
    """Puts the server at `engine_url`, whether or not it is there, beside an engine; raises ConfigError."""
    if not config.cloud_purposes:
        raise ConfigError(
            'cloud_purposes: expected what may leave the robot (plan, repair, explain, …; * for all), got nothing; '
            'for an engine that sends nothing set engine to local'
        )
    settings = server_settings(config, config.cloud_engine, config.cloud_model)

    def connect(deadline: Deadline) -> InferenceBackend:
        return connect_server(settings, config.cache_salt, deadline.within(PROBE_S), progress)

    policy = PrivacyPolicy(
        shared_purposes=frozenset(config.cloud_purposes),
        private_robots=frozenset(config.private_robots),
        private_marks=config.private_marks,
    )
    cloud = LateBackend(connect, engine=settings.engine, model=settings.model)
    return lambda edge: EdgeCloudBackend(edge=edge, cloud=cloud, is_private=policy, patience_s=config.cloud_patience_s)


def alone(edge: InferenceBackend) -> InferenceBackend:
    """A Join of nothing."""
    return edge


def server_settings(config: InferenceConfig, engine: str, model: str) -> HttpSettings:
    """Where the server of the config is; raises ConfigError for an impossible URL, adapter or key file."""
    headers = bearer_headers(expand(config.api_key_file)) if config.api_key_file else {}
    if config.adapter and engine == 'openai':
        raise ConfigError(f'adapter: expected none for the engine openai, got {config.adapter!r}; set model to it')
    if config.adapter and engine == 'vllm':  # which serves an adapter as a model
        return HttpSettings(base_url=config.engine_url, model=config.adapter, engine=engine, headers=headers)
    return HttpSettings(base_url=config.engine_url, model=model, engine=engine, adapter=config.adapter, headers=headers)


def connect_server(settings: HttpSettings, cache_salt: str, deadline: Deadline, progress: Progress) -> InferenceBackend:
    """A backend in the dialect of `settings.engine`; raises ModelUnavailableError, CanceledError or DeadlineError."""
    if settings.engine == 'openai':
        return OpenAiHttpBackend(settings)
    connected = _connected_vllm if settings.engine == 'vllm' else _connected_sglang
    return connected(settings, cache_salt, deadline, progress)


def _connected_vllm(settings: HttpSettings, cache_salt: str, deadline: Deadline, progress: Progress) -> VllmBackend:
    vllm = connect_vllm(settings, cache_salt=cache_salt, deadline=deadline)
    progress(vllm.server.summary())
    return vllm


def _connected_sglang(settings: HttpSettings, cache_salt: str, deadline: Deadline, progress: Progress) -> SglangBackend:
    connect = connect_ktransformers if settings.engine == 'ktransformers' else connect_sglang
    sglang = connect(settings, cache_salt=cache_salt, deadline=deadline)
    progress(sglang.server.summary())
    return sglang
