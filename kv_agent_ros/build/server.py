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
from kv_agent_ros.inference.sglang import connect_sglang
from kv_agent_ros.inference.vllm import connect_vllm

Progress = Callable[[str], object]
Join = Callable[[InferenceBackend], InferenceBackend]

PROBE_S = 10.0


def open_server(config: InferenceConfig, progress: Progress) -> InferenceBackend:
    """The server of `engine`, which answers now; raises ModelUnavailableError or ConfigError."""
    settings = server_settings(config, config.engine, config.model)
    return connect_server(settings, config.cache_salt, Deadline(PROBE_S), progress)


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
    """Where the server of the config is; raises ConfigError for an impossible URL or key file."""
    headers = bearer_headers(expand(config.api_key_file)) if config.api_key_file else {}
    return HttpSettings(base_url=config.engine_url, model=model, engine=engine, headers=headers)


def connect_server(settings: HttpSettings, cache_salt: str, deadline: Deadline, progress: Progress) -> InferenceBackend:
    """A backend in the dialect of `settings.engine`; raises ModelUnavailableError, CanceledError or DeadlineError."""
    if settings.engine == 'openai':
        return OpenAiHttpBackend(settings)
    if settings.engine == 'vllm':
        vllm = connect_vllm(settings, cache_salt=cache_salt, deadline=deadline)
        progress(vllm.server.summary())
        return vllm
    connect = connect_ktransformers if settings.engine == 'ktransformers' else connect_sglang
    sglang = connect(settings, cache_salt=cache_salt, deadline=deadline)
    progress(sglang.server.summary())
    return sglang
