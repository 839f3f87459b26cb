"""Audit records and diagnoses ↔ messages."""

import json

from kv_agent_ros.harness.audit_record import AuditRecord
from kv_agent_ros.harness.base import Diagnosis
from kv_agent_ros.msg import AuditRecord as RecordMsg
from kv_agent_ros.ros.conversions.values import time_to_msg
from kv_agent_ros.srv import DiagnoseTask


def audit_record_to_msg(record: AuditRecord) -> RecordMsg:
    """AuditRecord → message."""
    return RecordMsg(
        seq=record.seq,
        stamp=time_to_msg(record.stamp_s),
        kind=record.entry.kind.value,
        robot_id=record.entry.robot_id,
        task_id=record.entry.task_id,
        body=json.dumps(record.entry.fields, ensure_ascii=False, sort_keys=True, default=str),
        hash=record.hash,
    )


def fill_diagnosis(diagnosis: Diagnosis, response: DiagnoseTask.Response) -> None:
    """Diagnosis → the service's response."""
    response.root_cause = diagnosis.root_cause
    response.evidence = list(diagnosis.evidence)
    response.recovery = diagnosis.recovery.value
    response.message = diagnosis.message
