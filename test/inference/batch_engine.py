"""A local engine that several threads ask at once, and what its tests share."""

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
import json
import threading

from kv_agent_ros.deadline import Deadline
from kv_agent_ros.inference.base import Generation, GenerationRequest, Message, Role
from kv_agent_ros.inference.local import LocalBackend
from kv_agent_ros.inference.local_engine import DEFAULT_BATCHING, Batching
from kv_agent_ros.inference.local_model import LocalModel
from kv_agent_ros.kvcache.block import SessionKey
from kv_agent_ros.kvcache.dram_tier import DramTier
from kv_agent_ros.kvcache.eviction import SessionLruPolicy
from kv_agent_ros.kvcache.manager import KVCacheManager
from kv_agent_ros.kvcache.session_index import SessionIndex
from kv_agent_ros.kvcache.storage.host import HostStore, SharedArena
from kv_agent_ros.kvcache.storage.segment import SegmentMap

BLOCK_TOKENS = 16
SYSTEM = Message(role=Role.SYSTEM, content='You plan for a robot that tidies a home with four rooms. ' * 3)
SCHEMA = json.dumps({'type': 'object', 'properties': {'place': {'enum': ['kitchen', 'bed']}}, 'required': ['place']})
TIMEOUT_S = 120.0


@contextmanager
def engine(
    model: LocalModel, batching: Batching = DEFAULT_BATCHING, dram_bytes: int = 64 << 20
) -> Iterator[tuple[LocalBackend, KVCacheManager]]:
    sessions = SessionIndex()
    store = HostStore(SharedArena.create(dram_bytes))
    dram = DramTier(store=store, policy=SessionLruPolicy(sessions.is_referenced))
    with KVCacheManager(dram=dram, sessions=sessions) as manager:
        namespace = model.namespace(BLOCK_TOKENS)
        backend = LocalBackend(
            model=model, cache=manager, segments=SegmentMap(), namespace=namespace, batching=batching
        )
        yield backend, manager
        backend.close()
        assert manager.stats().num_leases == 0
        manager.check_integrity()


def asked(robot: str, text: str, **changes: object) -> GenerationRequest:
    values = {
        'session': SessionKey(robot_id=robot, session_id='s'),
        'messages': (SYSTEM, Message(role=Role.USER, content=text)),
        'max_new_tokens': 24,
    }
    return GenerationRequest(**(values | changes))


def together(backend: LocalBackend, requests: list[GenerationRequest]) -> list[Generation]:
    with ThreadPoolExecutor(len(requests)) as pool:
        return list(pool.map(lambda request: backend.generate(request, Deadline(TIMEOUT_S)), requests))


def wait_until(is_true: Callable[[], bool]) -> None:
    deadline = Deadline(TIMEOUT_S)
    while not is_true():
        deadline.check()
        deadline.wait(0.002)


class Spoken:
    """A listener that another thread can wait for."""

    def __init__(self) -> None:
        self.text = ''
        self.begun = threading.Event()

    def __call__(self, text: str) -> None:
        self.text += text
        self.begun.set()


def engine_threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == 'local_engine']
