"""Tasks, their steps and progress ↔ messages."""

from typing import Any

from kv_agent_ros.agent.task import StepRecord, StepStatus, TaskProgress, TaskResult
from kv_agent_ros.agent.task_queue import TaskEntry
from kv_agent_ros.msg import StepReport
from kv_agent_ros.ros.conversions.inference import turn_to_msg
from kv_agent_ros.ros.conversions.plan import plan_to_msg, step_to_msg
from kv_agent_ros.ros.conversions.values import result_to_msg

STATUSES = (
    StepStatus.PENDING,
    StepStatus.RUNNING,
    StepStatus.SUCCEEDED,
    StepStatus.SKIPPED,
    StepStatus.FAILED,
    StepStatus.REFUSED,
)


def step_record_to_msg(record: StepRecord) -> StepReport:
    """StepRecord → message."""
    return StepReport(
        index=record.index,
        step=step_to_msg(record.step),
        status=STATUSES.index(record.status),
        result=result_to_msg(record.outcome, record.message),
        evidence=record.evidence,
        attempt=record.attempt,
        duration_s=record.duration_s,
    )


def fill_task_result(result: TaskResult, message: Any) -> None:
    """TaskResult → an ExecuteTask result or a TaskStatus (they share these fields)."""
    message.result = result_to_msg(result.outcome, result.message)
    message.task_id = result.task_id
    fill_course(result, message)
    message.duration_s = result.duration_s
    message.audit_head = result.audit_head
    message.report = result.report


def fill_course(course: TaskEntry | TaskResult, message: Any) -> None:
    """Plans, steps and turns, of a task that runs or has ended → the same message."""
    message.plans = [plan_to_msg(plan) for plan in course.plans]
    message.steps = [step_record_to_msg(record) for record in course.steps]
    message.turns = [turn_to_msg(turn) for turn in course.turns]


def fill_feedback(progress: TaskProgress, message: Any) -> None:
    """TaskProgress → an ExecuteTask feedback."""
    message.task_id = progress.task_id
    message.phase = progress.phase.value
    message.message = progress.message
    if progress.plan is not None:
        message.plan = plan_to_msg(progress.plan)
    message.step_index = progress.step_index
    message.step_status = STATUSES.index(progress.step_status)
    message.num_steps = progress.num_steps
    message.turns = [turn_to_msg(progress.turn)] if progress.turn is not None else []
