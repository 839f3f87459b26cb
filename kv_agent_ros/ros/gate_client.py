"""harness_node as a Gate: what the agent holds instead of a robot."""

from kv_agent_ros.action import ExecuteStep, MakeSafe
from kv_agent_ros.deadline import Deadline
from kv_agent_ros.errors import Outcome, UnreachableError
from kv_agent_ros.harness.base import Diagnosis, Recovery, StepCommand, Verdict
from kv_agent_ros.robot.base import StepResult
from kv_agent_ros.robot.plan import Plan
from kv_agent_ros.ros.conversions.plan import plan_to_msg, verdict_from_msg
from kv_agent_ros.ros.conversions.values import member, status_from_msg
from kv_agent_ros.ros.endpoints import Endpoints
from kv_agent_ros.srv import CheckPlan, DiagnoseTask, QueryAudit

JUDGED = (Outcome.SUCCESS, Outcome.REJECTED_BY_GATE, Outcome.NEEDS_APPROVAL)


class RosGate:
    """Names are relative to the robot's own namespace."""

    def __init__(self, endpoints: Endpoints, timeout_s: float) -> None:
        self._timeout_s = timeout_s
        self._check = endpoints.service_caller(CheckPlan, 'check_plan')
        self._diagnose = endpoints.service_caller(DiagnoseTask, 'diagnose_task')
        self._audit = endpoints.service_caller(QueryAudit, 'query_audit')
        self._execute = endpoints.action_caller(ExecuteStep, 'execute_step')
        self._make_safe = endpoints.action_caller(MakeSafe, 'make_safe')

    def check_plan(self, robot_id: str, plan: Plan) -> Verdict:
        reply = self._check.call(CheckPlan.Request(robot_id=robot_id, plan=plan_to_msg(plan)), self._timeout_s)
        status = status_from_msg(reply.result)
        if status.outcome not in JUDGED:
            raise UnreachableError(f'check_plan: expected a verdict, got {status.outcome.name}: {status.message}')
        return verdict_from_msg(reply.verdict)

    def execute(self, command: StepCommand, deadline: Deadline) -> StepResult:
        goal = ExecuteStep.Goal(
            robot_id=command.robot_id,
            task_id=command.task_id,
            plan_id=command.plan_id,
            step_index=command.step_index,
            timeout_s=max(deadline.remaining_s, 0.001),
        )
        return _step_result(self._execute.call(goal, deadline, lambda _: None))

    def make_safe(self, robot_id: str, task_id: str, deadline: Deadline) -> StepResult:
        goal = MakeSafe.Goal(robot_id=robot_id, task_id=task_id, timeout_s=max(deadline.remaining_s, 0.001))
        return _step_result(self._make_safe.call(goal, deadline, lambda _: None))

    def diagnose(self, robot_id: str, task_id: str) -> Diagnosis:
        reply = self._diagnose.ask_twice(DiagnoseTask.Request(robot_id=robot_id, task_id=task_id), self._timeout_s)
        status = status_from_msg(reply.result)
        if not reply.root_cause:
            raise UnreachableError(f'diagnose_task: {status.outcome.name}: {status.message}')
        return Diagnosis(
            root_cause=reply.root_cause,
            evidence=tuple(reply.evidence),
            recovery=member(Recovery, reply.recovery, 'recovery'),
            message=reply.message,
        )

    def audit_head(self, robot_id: str) -> str:
        return str(
            self._audit.ask_twice(QueryAudit.Request(robot_id=robot_id, limit=1, verify=False), self._timeout_s).head
        )


def _step_result(result: ExecuteStep.Result | MakeSafe.Result) -> StepResult:
    status = status_from_msg(result.result)
    duration_s = result.duration_s if isinstance(result, ExecuteStep.Result) else 0.0
    return StepResult(outcome=status.outcome, message=status.message, duration_s=duration_s)
