"""A graph of real processes in a ROS domain of its own, and a client of it; every wait is bounded.

Used by the fixtures of conftest.py. The domain is one in which nobody listens on this machine.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
import os
from pathlib import Path
import socket
import threading
import time
from typing import Any

import rclpy
from rclpy.context import Context
from rclpy.executors import MultiThreadedExecutor
from rclpy.node import Node
from rclpy.signals import SignalHandlerOptions

from kv_agent_ros.action import ExecuteTask
from kv_agent_ros.config import Setting
from kv_agent_ros.deadline import Deadline
from kv_agent_ros.errors import UnreachableError
from kv_agent_ros.msg import ObjectState, RobotState
from kv_agent_ros.ros.endpoints import Endpoints
from kv_agent_ros.ros.graph import GraphSettings, ProcessGraph
from kv_agent_ros.srv import (
    CheckPlan,
    Generate,
    GetCacheStats,
    GetSimulationState,
    GetWorldState,
    PlanTask,
    RecallRecords,
)

CALL_S = 20.0
TASK_S = 90.0
START_S = 120.0
RESTARTING_S = 3.0
POLL_S = 0.05
FIRST_PORT, PORTS_A_DOMAIN, FIRST_METATRAFFIC = 7400, 250, 10  # DDSI-RTPS 2.5, 9.6.1
NUM_DOMAINS = 101  # above, the ports meet those that the system hands out

FAST: Mapping[str, Mapping[str, Setting]] = {
    'simulator_node': {'realtime_factor': 0.0},
    'inference_node': {'engine': 'none'},
    'memory_node': {'embedder': 'hashing'},
    'kv_cache_node': {'dram_bytes': 64 << 20, 'ssd_bytes': 256 << 20},
}
"""As fast as possible, planned by rules."""


def merged(*layers: Mapping[str, Mapping[str, Setting]]) -> dict[str, dict[str, Setting]]:
    """Parameters by executable; later layers win."""
    executables = {name for layer in layers for name in layer}
    return {name: {k: v for layer in layers for k, v in layer.get(name, {}).items()} for name in executables}


def settings(state_dir: Path, robots: Sequence[str], *layers: Mapping[str, Mapping[str, Setting]]) -> GraphSettings:
    """Settings whose state, keys and logs stay in `state_dir`."""
    own: Mapping[str, Mapping[str, Setting]] = {'harness_node': {'audit_key_file': str(state_dir / 'audit.key')}}
    return GraphSettings(robots=tuple(robots), state_dir=state_dir, parameters=merged(FAST, own, *layers))


def poll(predicate: Callable[[], Any], timeout_s: float, what: str) -> Any:
    """The first true value of the predicate. Fails naming `what` after `timeout_s`."""
    ends_at = time.monotonic() + timeout_s
    while not (value := predicate()):
        assert time.monotonic() < ends_at, f'expected {what} within {timeout_s} s'
        time.sleep(POLL_S)
    return value


def free_domain() -> int:
    """A domain whose first participant's port nobody holds; starts at a place of its own for each process."""
    first = os.getpid() * 7 + time.monotonic_ns() // 1_000_000
    return next(domain for domain in ((first + i) % NUM_DOMAINS + 1 for i in range(NUM_DOMAINS)) if _is_free(domain))


def _is_free(domain: int) -> bool:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.bind(('127.0.0.1', FIRST_PORT + PORTS_A_DOMAIN * domain + FIRST_METATRAFFIC))
        except OSError:
            return False
    return True


@contextmanager
def own_domain() -> Iterator[int]:
    """Within the block, processes that are started and contexts that are made are in a domain of their own."""
    before = os.environ['ROS_DOMAIN_ID']
    domain = free_domain()
    os.environ['ROS_DOMAIN_ID'] = str(domain)
    try:
        yield domain
    finally:
        os.environ['ROS_DOMAIN_ID'] = before


@dataclass(frozen=True, kw_only=True)
class RunningGoal:
    """A goal that was sent: its result to come, its feedback so far, and a way to cancel it."""

    deadline: Deadline
    future: Future[Any]
    feedback: list[Any] = field(default_factory=list)

    def result(self, timeout_s: float = TASK_S) -> Any:
        """The result message."""
        return self.future.result(timeout_s)

    def cancel(self) -> None:
        """Ask the server to cancel it."""
        self.deadline.cancel()


class RunningGraph:
    """A client of the processes. `graph` starts, kills and interrupts them by label."""

    def __init__(self, graph: ProcessGraph, endpoints: Endpoints, robots: Sequence[str], state_dir: Path) -> None:
        self.graph = graph
        self.endpoints = endpoints
        self.robots = tuple(robots)
        self.state_dir = state_dir
        self._lock = threading.Lock()
        self._callers: dict[str, Any] = {}
        self._pool = ThreadPoolExecutor(max_workers=8)

    def close(self) -> None:
        """End the threads that wait for goals."""
        self._pool.shutdown(wait=False, cancel_futures=True)

    def call(self, service_type: Any, name: str, wait_s: float = CALL_S, **request: Any) -> Any:
        """The response of a service, within `wait_s`; asked twice, since a graph that just started loses answers."""
        return self._service(service_type, name).ask_twice(service_type.Request(**request), wait_s)

    def answered(self, service_type: Any, name: str, **request: Any) -> Any:
        """The response of a service that may be starting; nothing while it does not answer."""
        try:
            return self.call(service_type, name, RESTARTING_S, **request)
        except UnreachableError:
            return None

    def send(self, action_type: Any, name: str, wait_s: float = TASK_S, **goal: Any) -> RunningGoal:
        """Send a goal and go on; it is cancelled after `wait_s`."""
        running = RunningGoal(deadline=Deadline(wait_s), future=Future())
        caller = self._caller(name, lambda: self.endpoints.action_caller(action_type, name))
        work = self._pool.submit(caller.call, action_type.Goal(**goal), running.deadline, running.feedback.append)
        work.add_done_callback(lambda done: _hand_over(done, running.future))
        return running

    def start_task(self, instruction: str, robot: str = '', timeout_s: float = TASK_S) -> RunningGoal:
        """Send a task to a robot's agent and go on."""
        name = robot or self.robots[0]
        goal = {'instruction': instruction, 'robot_id': name}
        return self.send(ExecuteTask, f'/{name}/agent_node/execute_task', timeout_s, **goal)

    def do_task(self, instruction: str, robot: str = '', timeout_s: float = TASK_S) -> Any:
        """The result of a task."""
        return self.start_task(instruction, robot, timeout_s).result(timeout_s + CALL_S)

    def truth(self) -> GetSimulationState.Response:
        """What is true in the simulated home."""
        return self.call(GetSimulationState, '/get_simulation_state')

    def robot(self, robot: str = '') -> RobotState:
        """The true state of a robot."""
        name = robot or self.robots[0]
        return next(state for state in self.truth().world.robots if state.robot_id == name)

    def position(self, robot: str = '') -> tuple[float, float]:
        """Where a robot truly is, m."""
        point = self.robot(robot).pose.position
        return point.x, point.y

    def object(self, object_id: str) -> ObjectState:
        """The true state of an object."""
        return next(state for state in self.truth().world.objects if state.object_id == object_id)

    def fill_level(self, object_id: str = 'cup1') -> float:
        """How full an object truly is, 0..1."""
        return next(item.number for item in self.object(object_id).properties if item.name == 'fill_level')

    def cache(self) -> GetCacheStats.Response:
        """The books of kv_cache_node."""
        return self.call(GetCacheStats, '/cache_stats')

    def await_ready(self, timeout_s: float = START_S) -> None:
        """Until every node serves and the world model has seen every robot."""
        waited = [(GetWorldState, '/get_world_state'), (RecallRecords, '/recall'), (PlanTask, '/plan_task')]
        waited += [(GetCacheStats, '/cache_stats'), (GetSimulationState, '/get_simulation_state')]
        waited += [(Generate, '/generate')]
        waited += [(CheckPlan, f'/{robot}/check_plan') for robot in self.robots]
        for service_type, name in waited:
            caller = self._service(service_type, name)
            poll(lambda caller=caller: self._alive() and caller.is_ready, timeout_s, name)
        for robot in self.robots:
            name = f'/{robot}/agent_node/execute_task'
            action = self._caller(name, lambda name=name: self.endpoints.action_caller(ExecuteTask, name))
            poll(lambda action=action: self._alive() and action.is_ready, timeout_s, name)
        poll(self._sees_all_robots, timeout_s, 'the first observation of every robot')

    def _sees_all_robots(self) -> bool:
        world = self.call(GetWorldState, '/get_world_state').world
        return {robot.robot_id for robot in world.robots} >= set(self.robots)

    def _alive(self) -> bool:
        dead = self.graph.dead()
        assert not dead, f'{dead[0]} ended while starting:\n{self.graph.log(dead[0])[-3000:]}'
        return True

    def _service(self, service_type: Any, name: str) -> Any:
        return self._caller(name, lambda: self.endpoints.service_caller(service_type, name))

    def _caller(self, name: str, make: Callable[[], Any]) -> Any:
        with self._lock:
            if name not in self._callers:
                self._callers[name] = make()
            return self._callers[name]


def _hand_over(done: Future[Any], to: Future[Any]) -> None:
    error = done.exception()
    if error is None:
        to.set_result(done.result())
    else:
        to.set_exception(error)


@contextmanager
def client_endpoints() -> Iterator[Endpoints]:
    """Endpoints of a node of the test, in a context and executor of its own."""
    context = Context()
    rclpy.init(args=[], context=context, signal_handler_options=SignalHandlerOptions.NO)
    node = Node('test_client', context=context)
    executor = MultiThreadedExecutor(num_threads=4, context=context)
    executor.add_node(node)
    ended = threading.Event()

    def spin() -> None:
        while not ended.is_set():
            executor.spin_once(timeout_sec=0.1)

    spinner = threading.Thread(target=spin, name='test_spin', daemon=True)
    spinner.start()
    endpoints = Endpoints(node)
    try:
        yield endpoints
    finally:
        ended.set()
        spinner.join(5.0)
        endpoints.close()
        executor.shutdown(timeout_sec=1.0)
        node.destroy_node()
        rclpy.try_shutdown(context=context)


@contextmanager
def running(processes: Sequence[Any], robots: Sequence[str], state_dir: Path) -> Iterator[RunningGraph]:
    """Start the processes in a domain of their own, wait until they serve, end them."""
    with own_domain(), ProcessGraph(processes, state_dir / 'log') as graph, client_endpoints() as endpoints:
        client = RunningGraph(graph, endpoints, robots, state_dir)
        try:
            client.await_ready()
            yield client
        finally:
            client.close()
