"""Is the goal met? Read from observations only, after each step and at the end. No model's word counts."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
import math

from kv_agent_ros.agent.goal import served
from kv_agent_ros.agent.intent import FILL_LEVEL, ORIGIN, Guard, Intent, Verb
from kv_agent_ros.agent.ledger import acts_of, named
from kv_agent_ros.robot.base import Step
from kv_agent_ros.world.conditions import Truth, evaluate
from kv_agent_ros.world.effects import FILL_TOLERANCE, check_effect
from kv_agent_ros.world.names import resolve_object
from kv_agent_ros.world.properties import number
from kv_agent_ros.world.state import ObjectState, WorldState


@dataclass(frozen=True, kw_only=True, slots=True)
class Moment:
    """A step that the gate reported done, and what was known before and observed after it."""

    step: Step
    before: WorldState
    after: WorldState


@dataclass(frozen=True, kw_only=True, slots=True)
class Judgement:
    """Whether the goal is met, with the facts that say so and what is missing."""

    is_met: bool
    facts: tuple[str, ...]
    missing: tuple[str, ...] = ()


def judge(intents: Sequence[Intent], moments: Sequence[Moment], world: WorldState, robot_id: str) -> Judgement:
    """Measure the goal against what was observed after each step and against the world now."""
    if not moments:
        return Judgement(is_met=False, facts=(), missing=('no step was carried out',))
    due, missing = due_intents(intents, moments, world)
    checked = [(m, check_effect(m.step, robot_id, m.before, m.after)) for m in moments]
    proven = [(moment, check) for moment, check in checked if check.is_met]
    acts = acts_of([moment.step for moment, _ in proven], world, _held(moments[0].before, robot_id))
    used = served(due, acts, world)
    missing += [f'not done: {intent}' for intent in due[len(used) :]]
    missing += [f'not asked for: {act.step}' for at, act in enumerate(acts) if act.is_lasting and at not in used]
    missing += _end_faults(due, moments, world, robot_id)
    facts = tuple(dict.fromkeys(proven[at][1].evidence for at in used))
    return Judgement(is_met=not missing, facts=facts, missing=tuple(dict.fromkeys(missing)))


def due_intents(
    intents: Sequence[Intent], moments: Sequence[Moment], world: WorldState
) -> tuple[list[Intent], list[str]]:
    """The intents whose guards hold by what was observed, and the conditions that nobody measured."""
    due = [intent for intent in intents if decided(intent, moments, world) is Truth.TRUE]
    guards = dict.fromkeys(guard for intent in intents for guard in intent.guards)
    unknown = [guard for guard in guards if _observed(guard, moments, world) is Truth.UNKNOWN]
    return due, [f'{guard.condition} was never measured' for guard in unknown]


def decided(intent: Intent, moments: Sequence[Moment], world: WorldState) -> Truth:
    """Whether the intent's guards hold, by what was observed when they mattered."""
    truths = {_observed(guard, moments, world) for guard in intent.guards}
    if Truth.UNKNOWN in truths:
        return Truth.UNKNOWN
    return Truth.FALSE if Truth.FALSE in truths else Truth.TRUE


def _held(world: WorldState, robot_id: str) -> str:
    robot = world.robot(robot_id)
    return robot.holding if robot is not None else ''


def _observed(guard: Guard, moments: Sequence[Moment], world: WorldState) -> Truth:
    """The guard as things were known before its object was taken; as they are known now when it never was."""
    target = named(guard.condition.target, world)
    taken = _first('pick', target, moments, world)
    seen = taken.before if taken is not None else world
    truth = evaluate(guard.condition, seen, seen.stamp_s, math.inf).truth
    if truth is Truth.UNKNOWN:
        return truth
    return Truth.TRUE if (truth is Truth.TRUE) is guard.arm else Truth.FALSE


def _end_faults(due: Sequence[Intent], moments: Sequence[Moment], world: WorldState, robot_id: str) -> Iterator[str]:
    robot = world.robot(robot_id)
    if robot is None:
        yield f'{robot_id} is not observed any more'
        return
    if due and due[-1].verb is Verb.DOCK and not robot.is_docked:
        yield 'the robot is not on its dock'
    if robot.is_moving:
        yield 'the robot is still moving'
    if robot.holding not in ('', _held(moments[0].before, robot_id)) and not any(i.verb is Verb.PICK for i in due):
        yield f'the robot still holds {robot.holding}'
    pours = [intent for intent in due if intent.verb is Verb.POUR]
    for subject in dict.fromkeys(pour.subject for pour in pours):
        yield from _level_fault(subject, [pour for pour in pours if pour.subject == subject], moments, world)
    last_put = {i.subject: i for i in due if i.verb is Verb.PUT}
    for subject, intent in last_put.items():
        yield from _place_fault(subject, intent, moments, world)


def _level_fault(subject: str, pours: Sequence[Intent], moments: Sequence[Moment], world: WorldState) -> Iterator[str]:
    first = _first('pour', subject, moments, world)
    if first is None:
        return
    before, after = resolve_object(first.before, subject), resolve_object(world, subject)
    if not isinstance(before, ObjectState) or not isinstance(after, ObjectState):
        yield f'the {subject} is not known any more'
        return
    old, now = number(before, FILL_LEVEL), number(after, FILL_LEVEL)
    if old is None or now is None:
        yield f'the fill level of {subject} is not known'
        return
    expected = old * math.prod(1.0 - pour.amount for pour in pours)
    if abs(now - expected) > FILL_TOLERANCE:
        yield f'the {subject} is {now:.0%} full, expected {expected:.0%}'


def _place_fault(subject: str, intent: Intent, moments: Sequence[Moment], world: WorldState) -> Iterator[str]:
    thing = resolve_object(world, subject)
    if not isinstance(thing, ObjectState):
        yield f'the {subject} is not known any more'
        return
    first = _first('pick', subject, moments, world)
    origin = resolve_object(first.before, subject) if first is not None else thing
    place = intent.place
    if place == ORIGIN:
        place = origin.room if isinstance(origin, ObjectState) else thing.room
    if place not in (thing.location, thing.room):
        yield f'the {subject} is at {thing.location or thing.room or "a place unknown"}, expected {place}'


def _first(skill: str, subject: str, moments: Sequence[Moment], world: WorldState) -> Moment | None:
    """The first time that this was done to that object."""
    acts = acts_of([moment.step for moment in moments], world, '')
    about = named(subject, world)
    return next(
        (m for m, act in zip(moments, acts, strict=True) if m.step.skill == skill and act.subject == about), None
    )
