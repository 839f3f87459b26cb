"""Applies the rules: to one step in the world as it is, or to a whole plan rehearsed over predicted worlds.

Both arms of every branch are rehearsed, each in its own world. Fails closed: an exception in a rule or in the
rehearsal is a REJECT with the id gate.error.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace

from kv_agent_ros.harness.base import Decision, Finding, Rule, StepContext
from kv_agent_ros.harness.objections import Law
from kv_agent_ros.harness.rules import GATE_ERROR, PLAN_BUDGET, REQUEST_RULES, WORLD_RULES, bind_rules
from kv_agent_ros.robot.base import Skill, Step
from kv_agent_ros.robot.plan import Plan, enclosing_arms
from kv_agent_ros.world.state import Prediction, WorldState

MAX_LANES = 64


@dataclass(frozen=True, kw_only=True, slots=True)
class Judgement:
    """What the rules say of a step, and the world after it where it could be rehearsed."""

    findings: tuple[Finding, ...]
    prediction: Prediction


@dataclass(frozen=True, kw_only=True, slots=True)
class _Lane:
    """One way through the branches: the world there, the time it took, the arms it took."""

    world: WorldState
    elapsed_s: float = 0.0
    arms: Mapping[int, bool] = field(default_factory=dict)


class Judge:
    """The rules of one robot under one law. Pure but for what the rehearsal asks."""

    def __init__(self, robot_id: str, skills: tuple[Skill, ...], law: Law, extra_rules: tuple[Rule, ...] = ()) -> None:
        self._robot_id = robot_id
        self._skills = skills
        self._law = law
        self._request_rules = bind_rules(REQUEST_RULES, law)
        self._world_rules = (*bind_rules(WORLD_RULES, law), *extra_rules)

    def judge_step(
        self, plan: Plan, step_index: int, world: WorldState, now_s: float, approved: frozenset[Finding]
    ) -> tuple[Finding, ...]:
        """All findings on one step in this world at `now_s` (ROS time), but those a person has approved."""
        asked = self._check_request(plan, step_index, world, now_s).findings
        open_findings = tuple(finding for finding in asked if finding not in approved)
        if open_findings:
            return open_findings
        rehearsed = self._check_rehearsal(plan, step_index, world, now_s).findings
        return tuple(finding for finding in rehearsed if finding not in approved)

    def judge_plan(self, plan: Plan, world: WorldState, now_s: float) -> tuple[Finding, ...]:
        """All findings on a plan that would begin in this world now, each once."""
        findings = list(self._count_steps(plan))
        for index in range(len(plan.steps)):
            findings += self._check_request(plan, index, world, now_s).findings
        if not findings:
            findings += self._rehearse(plan, world, now_s)
        return tuple(dict.fromkeys(findings))

    def _rehearse(self, plan: Plan, world: WorldState, now_s: float) -> Iterator[Finding]:
        lanes = [_Lane(world=world)]
        for index, step in enumerate(plan.steps):
            lanes = [fork for lane in lanes for fork in _forks(lane, plan, step)]
            if len(lanes) > MAX_LANES:
                yield _no(PLAN_BUDGET, f'more than {MAX_LANES} ways through the branches', index)
                return
            moved: list[_Lane] = []
            for lane in lanes:
                if not _takes(lane, plan, step):
                    moved.append(lane)
                    continue
                judged = self._check_rehearsal(plan, index, lane.world, now_s + lane.elapsed_s)
                yield from judged.findings
                if judged.prediction.is_feasible:
                    elapsed_s = lane.elapsed_s + judged.prediction.duration_s
                    moved.append(replace(lane, world=judged.prediction.world, elapsed_s=elapsed_s))
            lanes = moved
        yield from self._sum_time(lanes)

    def _count_steps(self, plan: Plan) -> Iterator[Finding]:
        limit = self._law.policy.plan.max_steps
        if not plan.steps:
            yield _no(PLAN_BUDGET, 'the plan has no steps', -1)
        if len(plan.steps) > limit:
            yield _no(PLAN_BUDGET, f'{len(plan.steps)} steps, expected at most {limit}', -1)

    def _sum_time(self, lanes: list[_Lane]) -> Iterator[Finding]:
        limit_s = self._law.policy.plan.max_duration_s
        longest_s = max((lane.elapsed_s for lane in lanes), default=0.0)
        if longest_s > limit_s:
            yield _no(PLAN_BUDGET, f'takes {longest_s:.0f} s, expected at most {limit_s:.0f} s', -1)

    def _check_request(self, plan: Plan, step_index: int, world: WorldState, now_s: float) -> Judgement:
        unknown = Prediction(is_feasible=False, reason='not rehearsed', world=world)
        context = self._context(plan, step_index, world, now_s, unknown)
        return Judgement(findings=_apply(self._request_rules, context), prediction=unknown)

    def _check_rehearsal(self, plan: Plan, step_index: int, world: WorldState, now_s: float) -> Judgement:
        try:
            prediction = self._law.predict(world, self._robot_id, plan.steps[step_index])
        except Exception as error:
            broken = Prediction(is_feasible=False, reason='the rehearsal broke', world=world)
            return Judgement(findings=(_no(GATE_ERROR, f'rehearsal: {error!r}', step_index),), prediction=broken)
        context = self._context(plan, step_index, world, now_s, prediction)
        return Judgement(findings=_apply(self._world_rules, context), prediction=prediction)

    def _context(
        self, plan: Plan, step_index: int, world: WorldState, now_s: float, prediction: Prediction
    ) -> StepContext:
        return StepContext(
            robot_id=self._robot_id,
            plan=plan,
            step=plan.steps[step_index],
            step_index=step_index,
            world=world,
            prediction=prediction,
            skills=self._skills,
            now_s=now_s,
        )


def decide(findings: tuple[Finding, ...]) -> Decision:
    """The worst finding wins; nothing against it is ALLOW."""
    return max((finding.decision for finding in findings), default=Decision.ALLOW)


def _apply(rules: tuple[Rule, ...], context: StepContext) -> tuple[Finding, ...]:
    findings: list[Finding] = []
    for rule in rules:
        try:
            findings += rule.check(context)
        except Exception as error:  # whatever broke, the answer is no
            findings.append(_no(GATE_ERROR, f'rule {rule.rule_id}: {error!r}', context.step_index))
    return tuple(findings)


def _no(rule_id: str, message: str, step_index: int) -> Finding:
    return Finding(rule_id=rule_id, decision=Decision.REJECT, message=message, step_index=step_index)


def _takes(lane: _Lane, plan: Plan, step: Step) -> bool:
    return all(lane.arms.get(branch.branch_id) == arm for branch, arm in enclosing_arms(plan, step))


def _forks(lane: _Lane, plan: Plan, step: Step) -> list[_Lane]:
    """The lane split at every branch around the step that it reaches undecided, outermost first."""
    lanes = [lane]
    for branch, _ in reversed(tuple(enclosing_arms(plan, step))):
        forked: list[_Lane] = []
        for each in lanes:
            is_here = branch.parent_id == 0 or each.arms.get(branch.parent_id) == branch.parent_arm
            if branch.branch_id in each.arms or not is_here:
                forked.append(each)
            else:
                forked += [replace(each, arms={**each.arms, branch.branch_id: arm}) for arm in (True, False)]
        lanes = forked
    return lanes
