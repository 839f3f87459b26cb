"""A KTransformers server as an engine. It is an SGLang server whose experts are computed on the CPU by kt-kernel.

So the dialect, the sessions and the cache are SGLang's; what is its own is that it tells where its experts are, and a
server that tells nothing of the kind is not what was configured.
"""

from kv_agent_ros.deadline import Deadline
from kv_agent_ros.errors import ModelUnavailableError
from kv_agent_ros.inference.openai_http import HttpSettings
from kv_agent_ros.inference.sglang import SglangBackend, connect_sglang


def connect_ktransformers(settings: HttpSettings, *, cache_salt: str, deadline: Deadline) -> SglangBackend:
    """A backend for a server that answers now; raises ModelUnavailableError for none, and for a stock SGLang."""
    backend = connect_sglang(settings, cache_salt=cache_salt, deadline=deadline)
    if not backend.server.cpu_experts:
        raise ModelUnavailableError(
            f'{settings.base_url}: expected a KTransformers server (--kt-weight-path), got a plain SGLang; '
            'use the engine sglang for it'
        )
    return backend
