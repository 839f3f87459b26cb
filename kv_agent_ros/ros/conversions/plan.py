"""Plans and verdicts ↔ messages."""

from kv_agent_ros.errors import BadRequestError
from kv_agent_ros.harness.base import Decision, Finding, Verdict
from kv_agent_ros.msg import (
    Plan as PlanMsg,
)
from kv_agent_ros.msg import (
    PlanBranch,
    PlanCondition,
    PlanStep,
    RuleFinding,
)
from kv_agent_ros.msg import (
    Verdict as VerdictMsg,
)
from kv_agent_ros.robot.base import Step
from kv_agent_ros.robot.plan import Branch, Condition, Operator, Plan, PlanSource
from kv_agent_ros.ros.conversions.values import (
    argument_from_msg,
    argument_to_msg,
    arguments_from_msg,
    arguments_to_msg,
    member,
    time_from_msg,
    time_to_msg,
)


def step_to_msg(step: Step) -> PlanStep:
    """Step → message."""
    return PlanStep(
        skill=step.skill, arguments=arguments_to_msg(step.arguments), branch_id=step.branch_id, arm=step.arm
    )


def step_from_msg(message: PlanStep) -> Step:
    """Message → Step."""
    return Step(
        skill=message.skill,
        arguments=arguments_from_msg(message.arguments),
        branch_id=message.branch_id,
        arm=message.arm,
    )


def branch_to_msg(branch: Branch) -> PlanBranch:
    """Branch → message."""
    condition = PlanCondition(
        target=branch.condition.target,
        property=branch.condition.property,
        comparison=branch.condition.operator.value,
        value=argument_to_msg('value', branch.condition.value),
    )
    return PlanBranch(
        branch_id=branch.branch_id, condition=condition, parent_id=branch.parent_id, parent_arm=branch.parent_arm
    )


def branch_from_msg(message: PlanBranch) -> Branch:
    """Message → Branch. Raises BadRequestError for an unknown comparison."""
    condition = Condition(
        target=message.condition.target,
        property=message.condition.property,
        operator=member(Operator, message.condition.comparison, 'comparison'),
        value=argument_from_msg(message.condition.value),
    )
    return Branch(
        branch_id=message.branch_id,
        condition=condition,
        parent_id=message.parent_id,
        parent_arm=message.parent_arm,
    )


def plan_to_msg(plan: Plan) -> PlanMsg:
    """Plan → message."""
    return PlanMsg(
        plan_id=plan.plan_id,
        source=plan.source.value,
        steps=[step_to_msg(step) for step in plan.steps],
        branches=[branch_to_msg(branch) for branch in plan.branches],
    )


def plan_from_msg(message: PlanMsg) -> Plan:
    """Message → Plan. Raises BadRequestError when branches are not numbered 1.. with earlier parents, or unknown."""
    branches = tuple(branch_from_msg(branch) for branch in message.branches)
    for number, branch in enumerate(branches, start=1):
        if branch.branch_id != number or branch.parent_id >= number:
            raise BadRequestError(f'plan: branch {number}: malformed numbering')
    steps = tuple(step_from_msg(step) for step in message.steps)
    if any(step.branch_id > len(branches) for step in steps):
        raise BadRequestError('plan: a step names a branch that is not there')
    return Plan(steps=steps, branches=branches, source=member(PlanSource, message.source, 'source'))


def verdict_to_msg(verdict: Verdict) -> VerdictMsg:
    """Verdict → message."""
    return VerdictMsg(
        decision=int(verdict.decision),
        findings=[
            RuleFinding(rule_id=f.rule_id, decision=int(f.decision), message=f.message, step_index=f.step_index)
            for f in verdict.findings
        ],
        plan_id=verdict.plan_id,
        policy_hash=verdict.policy_hash,
        world_sequence=verdict.world_sequence,
        expires=time_to_msg(verdict.expires_s),
    )


def verdict_from_msg(message: VerdictMsg) -> Verdict:
    """Message → Verdict. Raises BadRequestError for an unknown decision."""
    return Verdict(
        decision=member(Decision, message.decision, 'decision'),
        findings=tuple(
            Finding(
                rule_id=f.rule_id,
                decision=member(Decision, f.decision, 'decision'),
                message=f.message,
                step_index=f.step_index,
            )
            for f in message.findings
        ),
        plan_id=message.plan_id,
        policy_hash=message.policy_hash,
        world_sequence=message.world_sequence,
        expires_s=time_from_msg(message.expires),
    )
