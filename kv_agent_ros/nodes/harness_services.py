"""The services of harness_node: judging plans and steps, a person's oversight of the gate, skill programs."""

from collections.abc import Callable

from kv_agent_ros.agent.task import Task
from kv_agent_ros.agent.walk import PlanWalk
from kv_agent_ros.build.safety import SafetyRecords
from kv_agent_ros.deadline import Deadline
from kv_agent_ros.errors import BadRequestError, Outcome, Status
from kv_agent_ros.harness.audit_record import AuditRecord
from kv_agent_ros.harness.audit_verify import verify
from kv_agent_ros.harness.base import Decision, Verdict
from kv_agent_ros.harness.diagnosis import NO_FAILURE
from kv_agent_ros.harness.harness import AgentHarness
from kv_agent_ros.harness.skill_language import compile_program
from kv_agent_ros.robot.plan import Plan
from kv_agent_ros.ros.conversions.audit import audit_record_to_msg, fill_diagnosis
from kv_agent_ros.ros.conversions.plan import plan_from_msg, plan_to_msg, step_from_msg, verdict_to_msg
from kv_agent_ros.ros.conversions.task import step_record_to_msg
from kv_agent_ros.ros.endpoints import Endpoints
from kv_agent_ros.srv import (
    CheckPlan,
    CheckStep,
    DiagnoseTask,
    QueryAudit,
    ResetEmergencyStop,
    ResolveApproval,
    RunSkillProgram,
    TriggerEmergencyStop,
)
from kv_agent_ros.world.base import World

MAX_PROGRAM_S = 600.0
OUTCOMES = {
    Decision.ALLOW: Outcome.SUCCESS,
    Decision.DEFER: Outcome.NEEDS_APPROVAL,
    Decision.REJECT: Outcome.REJECTED_BY_GATE,
}
MAX_RECORDS = 1000


class GateServices:
    """check_plan, check_step, diagnose_task."""

    def __init__(self, harness: AgentHarness, records: SafetyRecords, robot_id: str) -> None:
        self._harness = harness
        self._robot_id = robot_id

    def offer(self, endpoints: Endpoints) -> None:
        """Create the services."""
        endpoints.service(CheckPlan, 'check_plan', self.check_plan)
        endpoints.service(CheckStep, 'check_step', self.check_step)
        endpoints.service(DiagnoseTask, 'diagnose_task', self.diagnose)

    def check_plan(self, request: CheckPlan.Request, response: CheckPlan.Response) -> Status:
        """check_plan."""
        verdict = self._harness.check_plan(request.robot_id or self._robot_id, plan_from_msg(request.plan))
        response.verdict = verdict_to_msg(verdict)
        return _judged(verdict)

    def check_step(self, request: CheckStep.Request, response: CheckStep.Response) -> Status:
        """check_step."""
        verdict = self._harness.check_step(request.robot_id or self._robot_id, step_from_msg(request.step))
        response.verdict = verdict_to_msg(verdict)
        return _judged(verdict)

    def diagnose(self, request: DiagnoseTask.Request, response: DiagnoseTask.Response) -> Status:
        """diagnose_task."""
        diagnosis = self._harness.diagnose(request.robot_id or self._robot_id, request.task_id)
        fill_diagnosis(diagnosis, response)
        if diagnosis.root_cause == NO_FAILURE:
            return Status(outcome=Outcome.BAD_REQUEST, message=diagnosis.message)
        return Status()


class OversightServices:
    """estop, reset_estop, resolve_approval, query_audit."""

    def __init__(self, harness: AgentHarness, records: SafetyRecords, robot_id: str) -> None:
        self._harness = harness
        self._records = records
        self._robot_id = robot_id

    def offer(self, endpoints: Endpoints) -> None:
        """Create the services."""
        endpoints.service(TriggerEmergencyStop, 'estop', self.estop)
        endpoints.service(ResetEmergencyStop, 'reset_estop', self.reset)
        endpoints.service(ResolveApproval, 'resolve_approval', self.resolve)
        endpoints.service(QueryAudit, 'query_audit', self.query)

    def estop(self, request: TriggerEmergencyStop.Request, response: TriggerEmergencyStop.Response) -> Status:
        """estop."""
        return self._harness.estop(request.robot_id or self._robot_id, request.reason)

    def reset(self, request: ResetEmergencyStop.Request, response: ResetEmergencyStop.Response) -> Status:
        """reset_estop."""
        return self._harness.reset_estop(request.robot_id or self._robot_id, request.operator_name)

    def resolve(self, request: ResolveApproval.Request, response: ResolveApproval.Response) -> Status:
        """resolve_approval."""
        decide = self._harness.approve if request.is_approved else self._harness.deny
        return decide(request.robot_id or self._robot_id, request.plan_id, request.operator_name, request.reason)

    def query(self, request: QueryAudit.Request, response: QueryAudit.Response) -> Status:
        """query_audit: the newest records, and the verification of the whole log."""
        if not 0 < request.limit <= MAX_RECORDS:
            raise BadRequestError(f'limit: expected 1 to {MAX_RECORDS}, got {request.limit}')

        def is_wanted(record: AuditRecord) -> bool:
            entry = record.entry
            return request.robot_id in ('', entry.robot_id) and request.task_id in ('', entry.task_id)

        found = self._records.audit.select(is_wanted, request.limit)
        response.records = [audit_record_to_msg(record) for record in found]
        head = self._records.audit.head()
        response.head, response.num_records = head.hash, head.seq
        if not request.verify:
            return Status()
        report = verify(self._records.directory, self._records.key)
        response.is_verified = report.is_ok
        if report.is_ok:
            return Status()
        return Status(outcome=Outcome.INTERNAL, message=f'audit broken at {report.first_bad}: {report.reason}')


class ProgramService:
    """run_skill_program: compile, judge, then walk the plan through the gate, a step at a time."""

    def __init__(self, harness: AgentHarness, world: World, robot_id: str, clock: Callable[[], float]) -> None:
        self._harness = harness
        self._world = world
        self._robot_id = robot_id
        self._clock = clock

    def run(self, request: RunSkillProgram.Request, response: RunSkillProgram.Response) -> Status:
        """run_skill_program."""
        robot_id = request.robot_id or self._robot_id
        robot = self._harness.robot(robot_id)
        if robot is None:
            return Status(outcome=Outcome.ROBOT_NOT_FOUND, message=f'no robot {robot_id!r} here')
        if not 0 < request.timeout_s <= MAX_PROGRAM_S:
            raise BadRequestError(f'timeout_s: expected seconds in (0, {MAX_PROGRAM_S:.0f}], got {request.timeout_s}')
        plan = compile_program(request.program, robot.skills())
        verdict = self._harness.check_plan(robot_id, plan)
        response.plan, response.verdict = plan_to_msg(plan), verdict_to_msg(verdict)
        if request.dry_run or verdict.decision is not Decision.ALLOW:
            return _judged(verdict)
        task = Task(task_id=f'program-{plan.plan_id}', robot_id=robot_id, instruction=request.program)
        return self._walk(task, plan, response, Deadline(request.timeout_s))

    def _walk(self, task: Task, plan: Plan, response: RunSkillProgram.Response, deadline: Deadline) -> Status:
        walk = PlanWalk(
            task=task,
            plan=plan,
            gate=self._harness,
            world=self._world,
            clock=self._clock,
            on_step=lambda index: None,
        )
        while (record := walk.advance(deadline)) is not None:
            response.steps.append(step_record_to_msg(record))
            if record.outcome is not Outcome.SUCCESS:
                return Status(outcome=record.outcome, message=f'{record.step}: {record.message}')
        return Status()


def _judged(verdict: Verdict) -> Status:
    return Status(outcome=OUTCOMES[verdict.decision], message=verdict.reason)
