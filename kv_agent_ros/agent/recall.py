"""What a finished task leaves in memory and a starting one takes from it. A broken memory costs a warning only."""

from collections.abc import Sequence
from dataclasses import replace
import json
import logging

from kv_agent_ros.agent.prompt import plan_text
from kv_agent_ros.agent.task import Task
from kv_agent_ros.errors import Status, StoreError, UnreachableError
from kv_agent_ros.memory.base import SHARED, Memory, MemoryKind, MemoryRecord, Recollection
from kv_agent_ros.robot.plan import Plan

NUM_RECALLED = 3

_log = logging.getLogger(__name__)


class TaskMemory:
    """Memory as tasks use it."""

    def __init__(self, memory: Memory) -> None:
        self._memory = memory

    def recall(self, task: Task) -> tuple[Recollection, ...]:
        """Sub-plans and tasks that resemble this one, sub-plans first."""
        try:
            return tuple(
                recollection
                for kind in (MemoryKind.SUBPLAN, MemoryKind.TASK)
                for recollection in self._memory.recall(task.instruction, task.robot_id, kind, NUM_RECALLED)
            )
        except (StoreError, UnreachableError) as error:
            _log.warning('task %s: going on without memory: %s', task.task_id, error)
            return ()

    def remember(self, task: Task, status: Status, plans: Sequence[Plan], now_s: float) -> None:
        """Keep the task for its robot, and a plan that reached its goal for all robots."""
        payload = plan_text(plans[-1]) if plans else json.dumps({'outcome': status.outcome.name})
        record = MemoryRecord(
            record_id=f'task:{task.robot_id}:{task.task_id}',
            kind=MemoryKind.TASK,
            robot_id=task.robot_id,
            text=task.instruction,
            payload=payload,
            stamp_s=now_s,
            is_success=status.is_success,
        )
        try:
            self._memory.remember(record)
            if status.is_success and len(plans) == 1:
                name = f'subplan:{plans[0].plan_id}'
                self._memory.remember(replace(record, record_id=name, kind=MemoryKind.SUBPLAN, robot_id=SHARED))
        except (StoreError, UnreachableError) as error:
            _log.warning('task %s: not remembered: %s', task.task_id, error)
