"""kv_cache_node and inference_node around a server: its cache is mirrored, its sessions are warmed, counted, closed."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import pytest
from rclpy.context import Context
from spun_endpoints import spun_endpoints

from kv_agent_ros.build.cache import CacheCore, open_cache
from kv_agent_ros.build.engine import EngineFactory
from kv_agent_ros.config import InferenceConfig, KVCacheConfig
from kv_agent_ros.deadline import Deadline
from kv_agent_ros.errors import Outcome
from kv_agent_ros.inference.base import GenerationRequest, Message, Role
from kv_agent_ros.inference.loopback_engine import LoopbackEngine
from kv_agent_ros.inference.loopback_events import LoopbackEvents, removed, stored
from kv_agent_ros.inference.loopback_server import LoopbackServer, serving
from kv_agent_ros.inference.openai_http import HttpSettings
from kv_agent_ros.inference.server_sessions import FRESH_S, ServerSessions
from kv_agent_ros.inference.sglang import connect_sglang
from kv_agent_ros.inspector.inspector import InfraInspector
from kv_agent_ros.inspector.metrics import Source, cache_metrics, mirror_metrics
from kv_agent_ros.kvcache.base import PrefetchPolicy
from kv_agent_ros.kvcache.block import CacheStats, KVNamespace, SessionKey, Tier
from kv_agent_ros.nodes import inference_node, kv_cache_node
from kv_agent_ros.ros.clients import RosBackend, RosPrefixCache, RosSessionCache
from kv_agent_ros.ros.endpoints import Endpoints

WAIT_S = 20.0
SGLANG = {'page_size': 2, 'enable_cache_report': True, 'enable_session_radix_cache': True}
ROBOT, OTHER = (SessionKey(robot_id=name, session_id='s1') for name in ('robot1', 'robot2'))
NAMESPACE = KVNamespace(
    model='', revision='', dtype='', num_layers=0, num_kv_heads=0, head_dim=0, block_tokens=0
)  # unknown to who only names a session


@dataclass(frozen=True, kw_only=True)
class Graph:
    """Two nodes, the server behind them, and a client of theirs."""

    server: LoopbackServer
    events: LoopbackEvents
    core: CacheCore
    cache: RosPrefixCache
    sessions: RosSessionCache
    backend: RosBackend
    seconds: list[float]  # the time of inference_node

    def say(self, text: str, session: SessionKey = ROBOT) -> int:
        """A turn; how many tokens of it the server had cached."""
        request = GenerationRequest(session=session, messages=(Message(role=Role.USER, content=text),))
        answer = self.backend.generate(request, Deadline(WAIT_S))
        assert answer.outcome is Outcome.SUCCESS, answer.message
        return answer.usage.cached_tokens

    def asked(self, path_field: str) -> list[object]:
        """What clients sent with that field."""
        return [body[path_field] for body in self.server.bodies if path_field in body]

    def findings(self) -> list[str]:
        """What the inspector says of the mirror."""
        metrics = cache_metrics(self.core.manager.stats()) + mirror_metrics(self.core.engine.mirrors())
        report = InfraInspector([Source(name='kv_cache_node', read=lambda: metrics)]).inspect()
        return [found.message for found in report.findings if found.component == 'kv_cache_node/mirror']


@pytest.fixture
def graph(context: Context, tmp_path: Path) -> Iterator[Graph]:
    with ExitStack() as stack:
        server = stack.enter_context(serving(LoopbackEngine()))
        server.model |= SGLANG
        events = LoopbackEvents()
        stack.callback(events.close)
        config = KVCacheConfig(
            state_dir=str(tmp_path),
            dram_bytes=1 << 20,
            ssd_bytes=1 << 20,
            engine_events=events.endpoint,
            engine_events_replay=events.replay_endpoint,
        )
        core = open_cache(config)
        stack.callback(core.close)
        seconds = [100.0]
        engine = on_server(server, lambda: seconds[0])
        cache_endpoints, engine_endpoints, client = (
            stack.enter_context(spun_endpoints(name, context)) for name in ('kv_cache_node', 'inference_node', 'client')
        )
        kv_cache_node.serve(core, config, cache_endpoints)
        inference_node.serve(engine, InferenceConfig(), engine_endpoints)
        yield linked(server, events, core, client, seconds)


def on_server(server: LoopbackServer, clock: Callable[[], float]) -> EngineFactory:
    settings = HttpSettings(base_url=server.base_url, model='m', engine='sglang')
    sglang = connect_sglang(settings, cache_salt='home', deadline=Deadline(WAIT_S))
    sessions = ServerSessions(sglang, block_tokens=2, close_session=sglang.close_session, clock=clock)
    return EngineFactory(make=lambda cache: sessions, sessions=(sessions,))


def linked(
    server: LoopbackServer, events: LoopbackEvents, core: CacheCore, client: Endpoints, seconds: list[float]
) -> Graph:
    """The graph, as soon as what a session says is heard by kv_cache_node."""
    cache, backend = RosPrefixCache(client, '', WAIT_S), RosBackend(client, '')
    graph = Graph(
        server=server,
        events=events,
        core=core,
        cache=cache,
        sessions=RosSessionCache(client, '', WAIT_S),
        backend=backend,
        seconds=seconds,
    )
    first = SessionKey(robot_id='first', session_id='s')
    until(lambda: graph.say('hello', first) >= 0 and usage_of(cache.stats(), first), 'the topic')
    until(lambda: cache.end_session(first), 'the services')
    return graph


def until(predicate: Callable[[], object], what: str) -> None:
    deadline = Deadline(WAIT_S)
    while not predicate():
        assert not deadline.wait(0.05), what


def usage_of(stats: CacheStats, session: SessionKey) -> tuple[int, int, int]:
    """Blocks, prompt tokens and cached tokens of a session; () when it is not known."""
    return next(
        (
            (each.num_blocks, each.prompt_tokens, each.cached_tokens)
            for each in stats.sessions
            if each.session == session
        ),
        (),
    )


def mirrored(stats: CacheStats) -> tuple[int, bool]:
    """Blocks on the server's device, and whether that cannot be trusted."""
    return next((tier.num_blocks, tier.is_degraded) for tier in stats.tiers if tier.tier is Tier.HBM)


def test_replies_are_counted_and_events_say_which_blocks_are_there(graph: Graph) -> None:
    graph.sessions.warm(ROBOT, 10.0)  # as an agent does before its first task
    cached = graph.say('one two three') + graph.say('one two three four')
    assert cached > 0
    until(lambda: usage_of(graph.cache.stats(), ROBOT)[1:] == (9, cached), 'both turns counted')
    assert usage_of(graph.cache.stats(), ROBOT)[0] == 2  # as its last reply of five tokens implies
    graph.events.say(stored(1, 2, 3, session='robot1/s1'), stored(9, session='robot2/s1'))
    until(lambda: mirrored(graph.cache.stats()) == (4, False), 'four blocks')
    assert usage_of(graph.cache.stats(), ROBOT)[0] == 3
    graph.events.say(removed(3))
    until(lambda: usage_of(graph.cache.stats(), ROBOT)[0] == 2, 'the last block is gone')


def test_gap_degrades_the_mirror_until_it_is_filled(graph: Graph) -> None:
    graph.events.say(stored(1))
    until(lambda: mirrored(graph.cache.stats()) == (1, False) and not graph.findings(), 'synced')
    graph.events.answers = False
    graph.events.lose(stored(2, parent=1))
    graph.events.say(stored(3, parent=2))
    until(lambda: mirrored(graph.cache.stats())[1], 'degraded')
    assert graph.findings()[0].startswith('DEGRADED')
    graph.events.answers = True
    until(lambda: mirrored(graph.cache.stats()) == (3, False), 'filled')
    assert graph.findings() == []


def test_every_change_of_the_mirror_is_logged(graph: Graph, capfd: pytest.CaptureFixture[str]) -> None:
    logged: list[str] = []

    def is_logged(text: str) -> bool:
        logged.append(capfd.readouterr().err)
        return text in ''.join(logged)

    graph.events.say(stored(1))
    until(lambda: mirrored(graph.cache.stats()) == (1, False), 'synced')
    graph.events.answers = False
    graph.events.lose(stored(2, parent=1))
    graph.events.say(stored(3, parent=2))
    until(lambda: is_logged('cache is degraded'), 'degraded')
    logged.clear()
    graph.events.answers = True
    until(lambda: is_logged('cache is synced'), 'synced again')


def test_server_that_began_anew_is_mirrored_anew(graph: Graph) -> None:
    graph.events.say(stored(1, 2))
    until(lambda: mirrored(graph.cache.stats()) == (2, False), 'two blocks')
    graph.events.restart()
    graph.events.say(stored(7))
    until(lambda: mirrored(graph.cache.stats()) == (1, False), 'one block of the next life')


def test_blocks_behind_an_unknown_parent_do_not_count(graph: Graph) -> None:
    graph.events.say(stored(5, parent=4))
    until(lambda: graph.core.engine.mirrors()[0].num_orphans == 1, 'an orphan')
    assert graph.core.engine.mirrors()[0].num_blocks == 0


def test_before_its_task_a_robots_last_prompt_is_asked_for_again_and_after_its_last_the_session_is_closed(
    graph: Graph,
) -> None:
    graph.say('one two three')
    graph.seconds[0] += FRESH_S
    graph.sessions.warm(ROBOT, 10.0)
    until(lambda: 1 in graph.asked('max_tokens'), 'a warm-up')
    warmed = next(body for body in graph.server.bodies if body.get('max_tokens') == 1)
    assert [message['role'] for message in warmed['messages']] == ['user', 'assistant']
    assert warmed['session_id'] == 'robot1/s1'
    graph.sessions.forget(ROBOT)
    until(lambda: {'session_id': 'robot1/s1'} in graph.server.bodies, 'closed')
    assert usage_of(graph.cache.stats(), ROBOT) == ()


def test_a_prefetch_that_waits_says_what_the_server_has_then(graph: Graph) -> None:
    graph.say('one two three', OTHER)
    done = graph.cache.prefetch(NAMESPACE, OTHER, [], PrefetchPolicy.WAIT_COMPLETE, WAIT_S)
    assert (done.num_blocks, done.is_complete) == (2, True)


def test_a_server_that_is_gone_holds_up_nobody(graph: Graph) -> None:
    graph.say('one two three')
    graph.server.model = {}
    graph.server.answer = lambda handler, body: None
    assert graph.cache.end_session(ROBOT) == 0
    assert graph.cache.pin(ROBOT, 1.0) == 0
