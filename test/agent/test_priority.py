"""Who goes first on the engine: a robot that must plan again, then one that waits for a plan, then explanations."""

from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
import threading

import pytest

from kv_agent_ros.agent.base import PlanRequest
from kv_agent_ros.agent.planner import CopilotPlanner
from kv_agent_ros.agent.task import Task
from kv_agent_ros.deadline import Deadline
from kv_agent_ros.inference.base import (
    EngineStats,
    Generation,
    GenerationRequest,
    InferenceBackend,
    Message,
    Role,
    TokenListener,
    ignore_tokens,
)
from kv_agent_ros.inference.local import LocalBackend
from kv_agent_ros.inference.local_engine import Batching
from kv_agent_ros.inference.local_model import load_local_model
from kv_agent_ros.inference.priority import Priority
from kv_agent_ros.inference.scripted import ScriptedBackend
from kv_agent_ros.inference.tiny_model import TinyShape, write_tiny_llama
from kv_agent_ros.kvcache.block import SessionKey
from kv_agent_ros.kvcache.dram_tier import DramTier
from kv_agent_ros.kvcache.eviction import SessionLruPolicy
from kv_agent_ros.kvcache.manager import KVCacheManager
from kv_agent_ros.kvcache.session_index import SessionIndex
from kv_agent_ros.kvcache.storage.host import HostStore, SharedArena
from kv_agent_ros.kvcache.storage.segment import SegmentMap
from kv_agent_ros.robot.skills import HOUSEHOLD_SKILLS
from kv_agent_ros.world.fake import example_world
from kv_agent_ros.world.model import WorldModel

TIMEOUT_S = 60.0
WORLD = example_world('robot1', 1.0)
BLOCKED = 'the gate refused: a person stands in the way'


class ShortTalk:
    """Puts a tiny model behind the planner: it reads who asks and for what, and answers in a few letters."""

    def __init__(self, backend: InferenceBackend, spoken: int) -> None:
        self._backend = backend
        self._spoken = spoken
        self._lock = threading.Lock()
        self.begun: list[str] = []
        self.ended: list[str] = []
        self.has_spoken = threading.Event()

    def generate(
        self, request: GenerationRequest, deadline: Deadline, on_text: TokenListener = ignore_tokens
    ) -> Generation:
        name = request.session.robot_id
        short = replace(request, messages=(Message(role=Role.USER, content=name),), max_new_tokens=self._spoken)
        with self._lock:
            self.begun.append(name)
        generation = self._backend.generate(
            replace(short, json_schema=''), deadline, lambda text: self.has_spoken.set()
        )
        with self._lock:
            self.ended.append(name)
        return generation

    def stats(self) -> EngineStats:
        return self._backend.stats()

    def close(self) -> None:
        self._backend.close()


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[ShortTalk]:
    """A real engine that advances one request at a time."""
    model = load_local_model(str(write_tiny_llama(tmp_path / 'tiny', 7, TinyShape())), tmp_path)
    sessions = SessionIndex()
    dram = DramTier(store=HostStore(SharedArena.create(16 << 20)), policy=SessionLruPolicy(sessions.is_referenced))
    with KVCacheManager(dram=dram, sessions=sessions) as cache:
        backend = LocalBackend(
            model=model,
            cache=cache,
            segments=SegmentMap(),
            namespace=model.namespace(16),
            batching=Batching(max_batch=1),
            clock=lambda: 0.0,  # nobody is moved up for having waited
        )
        yield ShortTalk(backend, spoken=60)
        backend.close()


def planner(backend: InferenceBackend) -> CopilotPlanner:
    return CopilotPlanner(backend=backend, skills=HOUSEHOLD_SKILLS, predict=WorldModel(WORLD.map).predict)


def asked(robot: str, refusal: str = '') -> PlanRequest:
    task = Task(task_id='t', robot_id='robot1', instruction='go to the kitchen')
    key = SessionKey(robot_id=robot, session_id='s' * 32)
    return PlanRequest(session=key, history=(), task=task, world=WORLD, refusal=refusal)


def test_a_replan_goes_before_a_plan_and_a_plan_before_an_explanation() -> None:
    backend = ScriptedBackend(lambda request: 'no plan')
    copilot = planner(backend)
    copilot.plan(asked('robot1'), Deadline(TIMEOUT_S))
    copilot.plan(asked('robot1', BLOCKED), Deadline(TIMEOUT_S))
    copilot.explain(asked('robot1'), 'SUCCESS', Deadline(TIMEOUT_S))
    said = [(request.purpose, request.priority) for request in backend.requests]
    assert said == [
        ('plan', Priority.PLAN),
        ('repair', Priority.PLAN),
        ('plan', Priority.REPLAN),
        ('repair', Priority.REPLAN),
        ('explain', Priority.TALK),
    ]
    assert Priority.REPLAN > Priority.PLAN > Priority.TALK > Priority.WARM_UP


def test_a_replan_overtakes_a_plan_under_way_and_a_plan_an_explanation_that_waits(engine: ShortTalk) -> None:
    copilot = planner(engine)
    with ThreadPoolExecutor(3) as pool:
        asks: list[Future[object]] = [pool.submit(copilot.plan, asked('plans'), Deadline(TIMEOUT_S))]
        assert engine.has_spoken.wait(TIMEOUT_S)
        asks.append(pool.submit(copilot.explain, asked('explains'), 'SUCCESS', Deadline(TIMEOUT_S)))
        asks.append(pool.submit(copilot.plan, asked('plans again', BLOCKED), Deadline(TIMEOUT_S)))
        for each in asks:
            each.result(TIMEOUT_S)
    assert engine.begun[0] == 'plans'
    assert engine.ended.index('plans again') < engine.ended.index('plans') < engine.ended.index('explains')
