"""The gate seen from another process says what the gate in this process says."""

from typing import Any

import pytest

from kv_agent_ros.errors import BadRequestError, Outcome, Status, UnreachableError
from kv_agent_ros.harness.base import Diagnosis, Recovery
from kv_agent_ros.harness.diagnosis import NO_FAILURE
from kv_agent_ros.ros.conversions.audit import fill_diagnosis
from kv_agent_ros.ros.endpoints import Endpoints
from kv_agent_ros.ros.gate_client import RosGate
from kv_agent_ros.srv import DiagnoseTask

CALL_S = 20.0
NOTHING_FAILED = Diagnosis(root_cause=NO_FAILURE, evidence=(), recovery=Recovery.MAKE_SAFE, message='nothing failed')


@pytest.fixture(scope='module')
def gate(endpoints: Endpoints) -> RosGate:
    """A client of a harness that knows no failure of task1 and breaks for every other."""

    def diagnose(request: DiagnoseTask.Request, response: Any) -> Status:
        if request.task_id != 'task1':
            raise BadRequestError('no such task')
        fill_diagnosis(NOTHING_FAILED, response)
        return Status(outcome=Outcome.BAD_REQUEST, message=NOTHING_FAILED.message)

    endpoints.service(DiagnoseTask, 'diagnose_task', diagnose)
    return RosGate(endpoints, CALL_S)


def test_a_task_without_a_failure_has_a_diagnosis_too(gate: RosGate) -> None:
    assert gate.diagnose('robot1', 'task1') == NOTHING_FAILED


def test_a_gate_that_has_no_diagnosis_is_unreachable(gate: RosGate) -> None:
    with pytest.raises(UnreachableError, match='no such task'):
        gate.diagnose('robot1', 'task2')
