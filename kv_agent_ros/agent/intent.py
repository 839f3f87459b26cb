"""What a person asks for, read from the instruction: intents in order, each with the guards under which it holds.

Guards are the sentence's own conditions ("if the cup is full"), as in the plan language. Nothing here knows how an
intent is carried out; rule_planner.py does, and goal.py measures whether it was.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

from kv_agent_ros.robot.plan import Condition, Operator

ORIGIN = '@origin'  # an intent's place: wherever the object was seen before it was taken
FILL_LEVEL = 'fill_level'
FULL_FROM = 0.9  # a vessel counts as full from this fill level on
EMPTY_TO = 0.1  # and as empty up to this one


class Verb(Enum):
    """The kinds of wishes that the household skills can serve."""

    GO = 'go'
    """Be at `place`."""
    FIND = 'find'
    """Know where `subject` is."""
    CHECK = 'check'
    """Know the state of `subject`."""
    PICK = 'pick'
    """Hold `subject`."""
    PUT = 'put'
    """`subject` is on `place`."""
    POUR = 'pour'
    """`amount` (fraction of the content) of `subject` is poured out, into the sink `place` when one is named."""
    OPEN = 'open'
    """The door `subject` is open."""
    CLOSE = 'close'
    """The door `subject` is closed."""
    WAIT = 'wait'
    """`amount` seconds pass."""
    DOCK = 'dock'
    """The robot is on its dock."""


HANDLING = (Verb.PICK, Verb.PUT, Verb.POUR)  # what keeps an object in the gripper, or takes it out


@dataclass(frozen=True, kw_only=True, slots=True)
class Guard:
    """The intent holds only where `condition` is true (`arm` True) or false (`arm` False)."""

    condition: Condition
    arm: bool

    def __str__(self) -> str:
        return f'{"if" if self.arm else "unless"} {self.condition}'


@dataclass(frozen=True, kw_only=True, slots=True)
class Intent:
    """One wish. Names are those of the map and of the detectors' categories."""

    verb: Verb
    subject: str = ''
    place: str = ''
    amount: float = 0.0
    guards: tuple[Guard, ...] = ()

    def __str__(self) -> str:
        words = [self.verb.value, self.subject, self.place and f'at {self.place}', self.amount and f'{self.amount:g}']
        return ' '.join([str(word) for word in words if word] + [str(guard) for guard in self.guards])


@dataclass(frozen=True, kw_only=True, slots=True)
class Reading:
    """What was understood; `unread` says what was not, and why. An instruction with unread parts is not acted on."""

    intents: tuple[Intent, ...]
    unread: tuple[str, ...] = ()


def full(subject: str) -> Condition:
    """The condition that a vessel is full."""
    return Condition(target=subject, property=FILL_LEVEL, operator=Operator.AT_LEAST, value=FULL_FROM)


def empty(subject: str) -> Condition:
    """The condition that a vessel is empty."""
    return Condition(target=subject, property=FILL_LEVEL, operator=Operator.AT_MOST, value=EMPTY_TO)


def with_put_back(intents: Sequence[Intent]) -> tuple[Intent, ...]:
    """The intents, and after pouring the wish that nobody says: put it back, unless more is asked of it."""
    whole: list[Intent] = []
    for index, intent in enumerate(intents):
        whole.append(intent)
        follow = [later for later in intents[index + 1 :] if later.guards == intent.guards]
        if intent.verb is Verb.POUR and not any(i.subject == intent.subject and i.verb in HANDLING for i in follow):
            whole.append(Intent(verb=Verb.PUT, subject=intent.subject, place=ORIGIN, guards=intent.guards))
    return tuple(whole)
