"""Which engine a configuration makes, and what is refused before anything starts."""

from dataclasses import replace
from pathlib import Path

import pytest

from kv_agent_ros.build.engine import open_engine
from kv_agent_ros.build.server import with_cloud
from kv_agent_ros.config import InferenceConfig
from kv_agent_ros.deadline import Deadline
from kv_agent_ros.errors import ConfigError, ModelUnavailableError
from kv_agent_ros.inference.base import GenerationRequest, Message, Role
from kv_agent_ros.inference.loopback_server import LoopbackServer, serving, stream_hello, vllm_pages
from kv_agent_ros.inference.scripted import ScriptedBackend
from kv_agent_ros.inference.tiny_model import TinyShape, write_tiny_llama
from kv_agent_ros.kvcache.block import SessionKey
from kv_agent_ros.kvcache.dram_tier import DramTier
from kv_agent_ros.kvcache.eviction import SessionLruPolicy
from kv_agent_ros.kvcache.manager import KVCacheManager
from kv_agent_ros.kvcache.session_index import SessionIndex
from kv_agent_ros.kvcache.storage.host import HostStore, SharedArena

PLAN = GenerationRequest(
    session=SessionKey(robot_id='robot1', session_id='s1'),
    messages=(Message(role=Role.USER, content='Fetch the cup'),),
    purpose='plan',
    max_new_tokens=4,
)


def config_of(engine: str, server: LoopbackServer, **changes: object) -> InferenceConfig:
    return replace(InferenceConfig(), engine=engine, engine_url=server.base_url, **changes)


@pytest.mark.parametrize('engine', ['openai', 'sglang', 'vllm', 'ktransformers'])
def test_server_is_asked_in_its_dialect_and_named_in_the_log(engine: str) -> None:
    said: list[str] = []
    with serving(stream_hello) as server:
        server.model |= {'kt_weight_path': 'org/experts'}
        factory = open_engine(config_of(engine, server), said.append)
        with KVCacheManager(dram=dram(), sessions=SessionIndex()) as cache:
            answer = factory.make(cache).generate(PLAN, Deadline(10.0))
    assert (answer.engine, answer.text) == (engine, 'Hello')
    assert len(said) == (engine != 'openai')


@pytest.mark.parametrize('engine', ['sglang', 'vllm', 'ktransformers'])
def test_servers_keep_sessions_that_can_be_warmed_and_closed(engine: str) -> None:
    with serving(stream_hello) as server:
        server.model |= {'enable_session_radix_cache': True, 'kt_weight_path': 'org/experts'}
        (sessions,) = open_engine(config_of(engine, server), print).sessions
        sessions.generate(PLAN, Deadline(10.0))
        sessions.forget(PLAN.session, Deadline(10.0))
    assert ({'session_id': 'robot1/s1'} in server.bodies) == (engine != 'vllm')


def test_other_engines_have_no_sessions_of_their_own() -> None:
    with serving(stream_hello) as server:
        assert open_engine(config_of('openai', server), print).sessions == ()
    assert open_engine(replace(InferenceConfig(), engine='none'), print).sessions == ()


@pytest.mark.parametrize('engine', ['local', 'none', 'openai'])
def test_engine_that_cannot_have_an_adapter_refuses_one(engine: str) -> None:
    config = replace(InferenceConfig(), engine=engine, adapter='gripper')
    with pytest.raises(ConfigError, match='adapter'):
        open_engine(config, print)


def test_vllm_serves_an_adapter_as_a_model() -> None:
    with serving(stream_hello) as server:
        server.pages |= vllm_pages('org/real-model', 'gripper')
        open_engine(config_of('vllm', server, adapter='gripper'), print).sessions[0].generate(PLAN, Deadline(10.0))
    assert server.bodies[-1]['model'] == 'gripper'


def test_absent_vllm_fails_the_configure() -> None:
    with serving(stream_hello) as server:
        config = config_of('vllm', server)
    with pytest.raises(ModelUnavailableError, match='is it running'):
        open_engine(config, print)


def test_edge_cloud_does_not_start_until_it_is_said_what_may_leave() -> None:
    with serving(stream_hello) as server, pytest.raises(ConfigError, match='cloud_purposes'):
        open_engine(config_of('edge_cloud', server), print)


def test_edge_cloud_works_without_its_cloud_and_uses_it_when_it_is_there(tmp_path: Path) -> None:
    model = write_tiny_llama(tmp_path / 'tiny', 7, TinyShape())
    said: list[str] = []
    with serving(stream_hello) as server:
        config = config_of(
            'edge_cloud',
            server,
            model=str(model),
            cache_dir=str(tmp_path),
            cloud_engine='vllm',
            cloud_purposes=('plan',),
            stored_bits=16,
        )
        with KVCacheManager(dram=dram(), sessions=SessionIndex()) as cache:
            backend = open_engine(config, said.append).make(cache)
            assert backend.generate(PLAN, Deadline(20.0)).engine == 'vllm'
            assert backend.generate(replace(PLAN, purpose='report'), Deadline(20.0)).engine == 'local'
            assert 'vLLM 0.32.0' in said[-1]
            assert len(server.bodies) == 1
            backend.close()


def test_cloud_that_is_not_there_leaves_the_robot_its_own_engine() -> None:
    with serving(stream_hello) as server:
        config = config_of('edge_cloud', server, cloud_purposes=('*',), cloud_engine='sglang')
    backend = with_cloud(config, print)(ScriptedBackend(lambda request: 'from here'))
    answer = backend.generate(PLAN, Deadline(20.0))
    assert (answer.text, answer.engine) == ('from here', 'scripted')
    assert 'is it running' in answer.message


def dram() -> DramTier:
    return DramTier(store=HostStore(SharedArena.create(16 << 20)), policy=SessionLruPolicy(lambda session: False))
