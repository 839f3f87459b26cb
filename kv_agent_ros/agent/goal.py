"""The goal of a task as a yardstick for plans: the instruction's intents, held against a plan before it runs.

`plan_fault` walks a plan through every case that its conditions and the instruction's conditions can tell apart and
asks whether the intents that hold in that case are served, in order, and nothing else is touched. proof.py asks the
same of what really happened.
"""

from collections.abc import Mapping, Sequence
from itertools import product
import math

from kv_agent_ros.agent.intent import ORIGIN, Intent, Verb
from kv_agent_ros.agent.ledger import Act, acts_of, named, serves
from kv_agent_ros.robot.base import Argument, Step
from kv_agent_ros.robot.plan import Condition, Operator, Plan, enclosing_arms
from kv_agent_ros.world.state import WorldState

MAX_CASES = 64
Case = Mapping[tuple[str, str], Argument]  # (target, property) → the value assumed


def cases(intents: Sequence[Intent], plan: Plan, world: WorldState) -> tuple[Case, ...]:
    """Assumptions that tell apart all outcomes of all conditions; empty when there are too many to try."""
    values: dict[tuple[str, str], set[Argument]] = {}
    conditions = [guard.condition for intent in intents for guard in intent.guards]
    for condition in (*conditions, *(branch.condition for branch in plan.branches)):
        key = (named(condition.target, world), condition.property)
        values.setdefault(key, set()).update(_around(condition))
    if math.prod(len(options) for options in values.values()) > MAX_CASES:
        return ()
    keys = sorted(values)
    return tuple(
        dict(zip(keys, chosen, strict=True)) for chosen in product(*(sorted(values[key], key=str) for key in keys))
    )


def steps_in(case: Case, plan: Plan, world: WorldState) -> tuple[Step, ...]:
    """The steps that the plan takes in that case."""
    return tuple(
        step
        for step in plan.steps
        if all(_holds(branch.condition, case, world) == arm for branch, arm in enclosing_arms(plan, step))
    )


def plan_fault(intents: Sequence[Intent], plan: Plan, world: WorldState, holding: str) -> str:
    """'' when the plan serves the intents in every case, else the first thing that is wrong, as a sentence."""
    tried = cases(intents, plan, world)
    if not tried:
        return 'the plan has too many conditions'
    for case in tried:
        due = tuple(i for i in intents if all(_holds(g.condition, case, world) == g.arm for g in i.guards))
        fault = _arm_fault(due, steps_in(case, plan, world), world, holding)
        if fault:
            when = ' and '.join(f'{target}.{name} is {_shown(value)}' for (target, name), value in case.items())
            return f'{fault}, when {when}' if when else fault
    return ''


def _arm_fault(due: Sequence[Intent], steps: Sequence[Step], world: WorldState, holding: str) -> str:
    acts = acts_of(steps, world, holding)
    used = served(due, acts, world)
    missed = due[len(used)] if len(used) < len(due) else None
    if missed is not None:
        return f'the plan does not {missed_text(missed)}'
    extra = next((act for at, act in enumerate(acts) if act.is_lasting and at not in used), None)
    if extra is not None:
        return f'nobody asked for {extra.step}'
    wanted = {named(intent.subject, world) for intent in due if intent.subject}
    moved = next((act for act in acts if act.step.skill == 'pick' and act.holding not in wanted), None)
    if moved is not None:
        return f'nobody asked to take the {moved.holding}'
    keeps = bool(due) and any(i.verb is Verb.PICK for i in due)
    if acts and acts[-1].holding not in ('', holding) and not keeps:
        return f'the plan ends with the {acts[-1].holding} in the gripper; place it'
    must_dock = bool(due) and due[-1].verb is Verb.DOCK
    return 'the plan must end with dock' if must_dock and steps[-1].skill != 'dock' else ''


def served(due: Sequence[Intent], acts: Sequence[Act], world: WorldState) -> list[int]:
    """For each intent in order the index of the act that serves it; shorter than `due` when one is not served."""
    used: list[int] = []
    at = 0
    for intent in due:
        while at < len(acts) and not (serves(acts[at], intent, world) and _is_free(at, intent, used)):
            at += 1
        if at == len(acts):
            break
        used.append(at)
    return used


def _is_free(at: int, intent: Intent, used: Sequence[int]) -> bool:
    return at not in used or intent.verb in (Verb.FIND, Verb.CHECK, Verb.GO, Verb.DOCK)


def missed_text(intent: Intent) -> str:
    """The intent as the end of “the plan does not …”."""
    match intent.verb:
        case Verb.GO:
            return f'navigate to {intent.place}'
        case Verb.PUT:
            where = 'where it was' if intent.place == ORIGIN else intent.place
            return f'place the {intent.subject} at {where}'
        case Verb.POUR:
            return f'pour fraction {intent.amount:g} of the {intent.subject} into a sink'
        case Verb.CHECK:
            return f'inspect the {intent.subject}'
        case Verb.WAIT:
            return f'wait {intent.amount:g} s'
        case _:
            return f'{intent.verb.value} {intent.subject}'.rstrip()


def _holds(condition: Condition, case: Case, world: WorldState) -> bool:
    value = case[(named(condition.target, world), condition.property)]
    wanted = condition.value
    if condition.operator is Operator.EQUAL or isinstance(value, str) or isinstance(wanted, str):
        return value == wanted
    return value >= wanted if condition.operator is Operator.AT_LEAST else value <= wanted


def _around(condition: Condition) -> tuple[Argument, ...]:
    value = condition.value
    if isinstance(value, str):
        return (value, f'not {value}')
    return (value - 0.01, value, value + 0.01)


def _shown(value: Argument) -> str:
    return value if isinstance(value, str) else f'{value:g}'
