"""The demonstration's own node: sends the goal, hears its feedback, asks simulator and audit afterwards."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
import threading
import time
from typing import Any

import rclpy
from rclpy.executors import SingleThreadedExecutor
from rclpy.node import Node
from rclpy.signals import SignalHandlerOptions

from kv_agent_ros.action import ExecuteTask, GenerateStream
from kv_agent_ros.deadline import Deadline
from kv_agent_ros.errors import UnreachableError
from kv_agent_ros.ros.calls import ActionCaller, ServiceCaller
from kv_agent_ros.ros.endpoints import Endpoints
from kv_agent_ros.srv import (
    AcquirePrefix,
    CheckPlan,
    GetSimulationState,
    GetWorldState,
    InspectInfra,
    PlanTask,
    QueryAudit,
    RecallRecords,
)

CALL_S = 10.0
POLL_S = 0.2
SETTLE_S = 1.0  # a server that was just discovered may not know us yet, and its answer would be lost


class DemoClient:
    """Bounded calls to the graph of one robot."""

    def __init__(self, endpoints: Endpoints, robot: str) -> None:
        self._task = endpoints.action_caller(ExecuteTask, f'/{robot}/agent_node/execute_task')
        self._engine = endpoints.action_caller(GenerateStream, '/generate_stream')
        self._simulation = endpoints.service_caller(GetSimulationState, '/get_simulation_state')
        self._world = endpoints.service_caller(GetWorldState, '/get_world_state')
        self._audit = endpoints.service_caller(QueryAudit, f'/{robot}/query_audit')
        self._inspect = endpoints.service_caller(InspectInfra, '/inspect_infra')
        self._robot = robot
        self._others = [
            endpoints.service_caller(service_type, name)
            for service_type, name in (
                (AcquirePrefix, '/acquire_prefix'),
                (RecallRecords, '/recall'),
                (PlanTask, '/plan_task'),
                (CheckPlan, f'/{robot}/check_plan'),
            )
        ]

    def missing(self) -> list[str]:
        """What is not there yet, by name."""
        services: list[ServiceCaller | ActionCaller] = [
            self._simulation,
            self._world,
            self._audit,
            self._inspect,
            *self._others,
            self._engine,
            self._task,
        ]
        return [caller.name for caller in services if not caller.is_ready]

    def is_observed(self) -> bool:
        """Whether the world model has seen the robot."""
        world = self._world.call(GetWorldState.Request(), CALL_S).world
        return any(robot.robot_id == self._robot for robot in world.robots)

    def execute(
        self, instruction: str, timeout_s: float, deadline: Deadline, on_feedback: Callable[[Any], None]
    ) -> ExecuteTask.Result:
        """Do the task; the deadline's cancel cancels it."""
        goal = ExecuteTask.Goal(instruction=instruction, robot_id=self._robot, timeout_s=timeout_s)
        return self._task.call(goal, deadline, on_feedback)

    def truth(self) -> GetSimulationState.Response:
        """The simulator's ground truth."""
        return self._simulation.call(GetSimulationState.Request(), CALL_S)

    def audit(self) -> QueryAudit.Response:
        """The audit's newest records and whether all of it verifies."""
        return self._audit.call(QueryAudit.Request(limit=20), CALL_S)

    def inspection(self) -> InspectInfra.Response:
        """The inspector's report."""
        return self._inspect.call(InspectInfra.Request(), CALL_S)


@contextmanager
def demo_client(robot: str) -> Iterator[DemoClient]:
    """A client whose node is spun in a thread of its own."""
    rclpy.init(args=[], signal_handler_options=SignalHandlerOptions.NO)
    node = Node('demo')
    executor = SingleThreadedExecutor()
    executor.add_node(node)
    ended = threading.Event()

    def spin() -> None:
        while not ended.is_set():
            executor.spin_once(timeout_sec=0.1)

    spinner = threading.Thread(target=spin, name='demo_spin', daemon=True)
    spinner.start()
    endpoints = Endpoints(node)
    try:
        yield DemoClient(endpoints, robot)
    finally:
        ended.set()
        spinner.join(2.0)
        endpoints.close()
        executor.shutdown(timeout_sec=1.0)
        node.destroy_node()
        rclpy.try_shutdown()


def wait_until_ready(client: DemoClient, dead: Callable[[], list[str]], timeout_s: float) -> Iterator[str]:
    """Yields what is waited for until everything is there. Raises UnreachableError when a node died or time is up."""
    ends_at = time.monotonic() + timeout_s
    settled_s = 0.0
    while True:
        if dead():
            raise UnreachableError(f'{dead()[0]} ended while starting')
        missing = client.missing()
        settled_s = settled_s + POLL_S if not missing and client.is_observed() else 0.0
        if settled_s >= SETTLE_S:
            return
        waiting = missing[0] if missing else 'the first observation'
        if time.monotonic() > ends_at:
            raise UnreachableError(f'expected the graph to be up within {timeout_s:.0f} s, still waiting for {waiting}')
        yield waiting
        time.sleep(POLL_S)
