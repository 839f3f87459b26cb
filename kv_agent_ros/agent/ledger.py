"""Steps as acts: what each does to what, given the steps before it. Shared by the judgement of plans and of deeds."""

from collections.abc import Sequence
from dataclasses import dataclass

from kv_agent_ros.agent.intent import ORIGIN, Intent, Verb
from kv_agent_ros.robot.base import Step
from kv_agent_ros.world.names import resolve_object
from kv_agent_ros.world.state import LocationKind, ObjectState, WorldState

AMOUNT_TOLERANCE = 0.01  # between the fraction asked for and the fraction poured
_LASTING = ('pour', 'open', 'close')


@dataclass(frozen=True, kw_only=True, slots=True)
class Act:
    """A step with what it acts on. `holding`: what is in the gripper after it; `subject`: the object it concerns."""

    step: Step
    subject: str
    holding: str

    @property
    def is_lasting(self) -> bool:
        """Whether it changes the home beyond the robot, so that doing it unasked is a fault."""
        return self.step.skill in _LASTING


def acts_of(steps: Sequence[Step], world: WorldState, holding: str) -> tuple[Act, ...]:
    """The acts of steps in order, `holding` that object at first; objects go by id where only one has that name."""
    acts = []
    for step in steps:
        target = named(step.text('target'), world)
        subject = holding if step.skill in ('place', 'pour') else target
        if step.skill == 'pick':
            holding = target
        elif step.skill == 'place':
            holding = ''
        acts.append(Act(step=step, subject=subject, holding=holding))
    return tuple(acts)


def named(name: str, world: WorldState) -> str:
    """The object's id when just one is known by that name, else the name itself."""
    thing = resolve_object(world, name)
    return thing.object_id if isinstance(thing, ObjectState) else name


def serves(act: Act, intent: Intent, world: WorldState) -> bool:
    """Whether this act is what the intent asks for."""
    step = act.step
    is_subject = act.subject == named(intent.subject, world)
    match intent.verb:
        case Verb.GO:
            return step.skill == 'navigate' and is_in(step.text('target'), intent.place, world)
        case Verb.FIND:
            return step.skill in ('find', 'inspect') and is_subject
        case Verb.CHECK:
            return step.skill == 'inspect' and is_subject
        case Verb.PICK:
            return step.skill == 'pick' and is_subject
        case Verb.PUT:
            is_there = intent.place == ORIGIN or is_in(step.text('target'), intent.place, world)
            return step.skill == 'place' and is_subject and is_there
        case Verb.POUR:
            return step.skill == 'pour' and is_subject and _pours(step, intent, world)
        case Verb.OPEN | Verb.CLOSE:
            return step.skill == intent.verb.value and step.text('target') == intent.subject
        case Verb.WAIT:
            return step.skill == 'wait' and step.number('duration_s', 0.0) >= intent.amount
        case Verb.DOCK:
            return step.skill == 'dock'


def _pours(step: Step, intent: Intent, world: WorldState) -> bool:
    place = world.map.location(step.text('target'))
    is_sink = place is not None and place.kind is LocationKind.SINK and intent.place in ('', place.name)
    return is_sink and abs(step.number('fraction', 0.5) - intent.amount) <= AMOUNT_TOLERANCE


def is_in(target: str, place: str, world: WorldState) -> bool:
    """Whether going to `target` is being at `place`: the same name, or furniture of that room."""
    location = world.map.location(target)
    return target == place or (location is not None and location.room == place)
