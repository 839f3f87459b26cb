"""CopilotPlanner: the model drafts, the rules judge, and whoever wrote the plan is named.

A draft must serve the goal in every case of its conditions and survive a rehearsal in the world model. A wrong draft
gets one chance to be repaired; a wrong, late or missing one is replaced by the rule planner's plan, and `notes` say so.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
import json

from kv_agent_ros.agent.base import Explanation, PlanProposal, PlanRequest
from kv_agent_ros.agent.intent import Reading
from kv_agent_ros.agent.language import read_instruction
from kv_agent_ros.agent.plan_schema import plan_schema
from kv_agent_ros.agent.prompt import explain_turn, head, plan_text, plan_turn, repair_turn, replan_turn
from kv_agent_ros.agent.rehearsal import Predict, draft_fault
from kv_agent_ros.agent.rule_planner import draft_plan
from kv_agent_ros.deadline import Deadline
from kv_agent_ros.errors import BadRequestError, ModelUnavailableError, Outcome
from kv_agent_ros.inference.base import (
    Generation,
    GenerationRequest,
    InferenceBackend,
    Message,
    Role,
    Turn,
    Usage,
)
from kv_agent_ros.inference.priority import Priority
from kv_agent_ros.robot.base import Skill
from kv_agent_ros.robot.plan import Json, Plan, PlanSource, plan_from_json


@dataclass(frozen=True, kw_only=True, slots=True)
class ModelLimits:
    """What the model may spend on one plan, drafts and repair together, and on one explanation."""

    plan_timeout_s: float = 60.0
    explain_timeout_s: float = 20.0
    plan_tokens: int = 320
    explain_tokens: int = 40


@dataclass(slots=True)
class _Drafting:
    """One plan in the making."""

    request: PlanRequest
    reading: Reading
    turn: Message
    turns: list[Turn] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


class CopilotPlanner:
    """A Planner over a language model. Keeps nothing between calls."""

    def __init__(
        self,
        *,
        backend: InferenceBackend,
        skills: tuple[Skill, ...],
        predict: Predict,
        limits: ModelLimits = ModelLimits(),
    ) -> None:
        self._backend = backend
        self._skills = skills
        self._predict = predict
        self._limits = limits

    def plan(self, request: PlanRequest, deadline: Deadline) -> PlanProposal:
        """See Planner."""
        reading = read_instruction(request.task.instruction, request.world)
        if reading.unread:
            reason = f'not understood: {"; ".join(reading.unread)}'
            return PlanProposal(outcome=Outcome.PLANNING_FAILURE, message=reason, plan=None)
        drafting = _Drafting(request=request, reading=reading, turn=self._turn(request, reading))
        within = deadline.within(self._limits.plan_timeout_s)
        accepted = self._model_plan(drafting, within)
        if accepted is None and not deadline.is_over:
            accepted = self._rule_plan(drafting)
        if accepted is None:
            return self._none(drafting, deadline)
        plan, answer = accepted
        return PlanProposal(
            outcome=Outcome.SUCCESS,
            message=f'planned by {plan.source.value}',
            plan=plan,
            appended=(drafting.turn, answer),
            turns=tuple(drafting.turns),
            notes=tuple(drafting.notes),
        )

    def explain(self, request: PlanRequest, facts: str, deadline: Deadline) -> Explanation:
        """See Planner."""
        turn = explain_turn(facts)
        messages = (self._head(request), *request.history, turn)
        within = deadline.within(self._limits.explain_timeout_s)
        drafting = _Drafting(request=request, reading=Reading(intents=()), turn=turn)
        generation = self._ask(drafting, messages, 'explain', within)
        if not generation.text.strip():
            return Explanation(text='', turns=tuple(drafting.turns))
        return Explanation(
            text=generation.text.strip(), appended=(turn, _answer(generation)), turns=tuple(drafting.turns)
        )

    def _head(self, request: PlanRequest) -> Message:
        return head(self._skills, request.world.map)

    def _turn(self, request: PlanRequest, reading: Reading) -> Message:
        robot_id = request.task.robot_id
        if request.refusal:
            return replan_turn(request.refusal, reading.intents, request.world, robot_id)
        return plan_turn(
            request.task.instruction, reading.intents, request.recollections, self._skills, request.world, robot_id
        )

    def _model_plan(self, drafting: _Drafting, deadline: Deadline) -> tuple[Plan, Message] | None:
        messages: tuple[Message, ...] = (self._head(drafting.request), *drafting.request.history, drafting.turn)
        for purpose in ('plan', 'repair'):
            generation = self._ask(drafting, messages, purpose, deadline)
            if generation.outcome is not Outcome.SUCCESS:
                drafting.notes.append(f'{purpose}: no draft, {generation.outcome.name}: {generation.message}')
                return None
            plan, fault = self._read(generation.text, drafting)
            if plan is not None and not fault:
                return plan, _answer(generation)
            drafting.notes.append(f'{purpose}: draft refused: {fault}')
            messages = (*messages, _answer(generation), repair_turn(fault))
        return None

    def _read(self, text: str, drafting: _Drafting) -> tuple[Plan | None, str]:
        try:
            document: Json = json.loads(text)
            plan = plan_from_json(document, PlanSource.MODEL)
        except (ValueError, RecursionError) as error:
            return None, f'not JSON: {error}'
        except BadRequestError as error:
            return None, str(error)
        return plan, self._fault(plan, drafting)

    def _rule_plan(self, drafting: _Drafting) -> tuple[Plan, Message] | None:
        request = drafting.request
        draft = draft_plan(drafting.reading, request.world, request.task.robot_id)
        fault = draft.reason if draft.plan is None else self._fault(draft.plan, drafting)
        if draft.plan is None or fault:
            drafting.notes.append(f'rule planner: {fault}')
            return None
        drafting.notes.append('the rule planner wrote the plan')
        return draft.plan, Message(role=Role.ASSISTANT, content=plan_text(draft.plan))

    def _fault(self, plan: Plan, drafting: _Drafting) -> str:
        request = drafting.request
        return draft_fault(plan, drafting.reading.intents, request.world, request.task.robot_id, self._predict)

    def _none(self, drafting: _Drafting, deadline: Deadline) -> PlanProposal:
        outcome, message = Outcome.PLANNING_FAILURE, drafting.notes[-1] if drafting.notes else 'no plan'
        if deadline.is_over:
            outcome = Outcome.CANCELED if deadline.is_canceled else Outcome.TIMEOUT
        return PlanProposal(
            outcome=outcome, message=message, plan=None, turns=tuple(drafting.turns), notes=tuple(drafting.notes)
        )

    def _ask(self, drafting: _Drafting, messages: Sequence[Message], purpose: str, deadline: Deadline) -> Generation:
        is_plan = purpose != 'explain'
        request = GenerationRequest(
            session=drafting.request.session,
            messages=tuple(messages),
            max_new_tokens=self._limits.plan_tokens if is_plan else self._limits.explain_tokens,
            json_schema=plan_schema(self._skills, drafting.reading.intents, drafting.request.world) if is_plan else '',
            purpose=purpose,
            priority=_priority(drafting.request, purpose),
        )
        try:
            generation = self._backend.generate(request, deadline)
        except (ModelUnavailableError, BadRequestError) as error:
            generation = Generation(outcome=Outcome.MODEL_UNAVAILABLE, usage=Usage(), message=str(error))
        drafting.turns.append(
            Turn(purpose=purpose, usage=generation.usage, engine=generation.engine, outcome=generation.outcome)
        )
        return generation


def _priority(request: PlanRequest, purpose: str) -> Priority:
    if purpose == 'explain':
        return Priority.TALK
    return Priority.REPLAN if request.refusal else Priority.PLAN


def _answer(generation: Generation) -> Message:
    return Message(role=Role.ASSISTANT, content=generation.text, token_ids=generation.token_ids)
