"""One clause as it is heard: a verb with its nouns, states, amounts and small words."""

from dataclasses import dataclass, field

from kv_agent_ros.agent.lexicon import Token
from kv_agent_ros.agent.words import Kind


@dataclass(slots=True)
class Refs:
    """What earlier clauses made available to pronouns: the last object, its asked state, the last place."""

    subject: str = ''
    state: str = ''
    place: str = ''

    def object_of(self, frame: 'Frame') -> str:
        """The frame's object, else the one spoken of last; '' when there is none."""
        return frame.objects[0] if frame.objects else self.subject


@dataclass(slots=True)
class Frame:
    """The words of one clause."""

    verb: str = ''
    objects: list[str] = field(default_factory=list)
    places: list[tuple[Kind, tuple[str, ...]]] = field(default_factory=list)  # (its preposition, what it can mean)
    doors: tuple[str, ...] = ()
    state: str = ''
    fraction: float = -1.0
    number: float = -1.0
    seconds_per_unit: float = 0.0
    is_taking: bool = False
    is_pronoun: bool = False
    is_negated: bool = False
    is_affirmed: bool = False
    is_back: bool = False
    is_charge: bool = False
    preposition: Kind = Kind.FILLER
    strays: list[str] = field(default_factory=list)

    @property
    def has_state(self) -> bool:
        """Whether a condition made of this frame would be complete."""
        return bool(self.state) or self.is_negated or self.is_affirmed

    def take(self, token: Token) -> None:
        """Add one word."""
        match token.kind:
            case Kind.OBJECT:
                self.objects.extend(name for name in token.names if name not in self.objects)
            case Kind.PLACE:
                self.places.append((self.preposition, token.names))
            case Kind.DOOR:
                self.doors = token.names
            case Kind.STATE:
                self.state = _negated(token.value) if self.is_negated else token.value
            case Kind.FRACTION:
                self.fraction = token.number
            case Kind.NUMBER:
                self.number = token.number
            case Kind.UNIT:
                self.seconds_per_unit = {'seconds': 1.0, 'minutes': 60.0}[token.value]
            case Kind.TO | Kind.AT | Kind.FROM:
                self.preposition = token.kind
            case Kind.NOT:
                self.is_negated = True
            case Kind.AFFIRM:
                self.is_affirmed = True
            case Kind.IT:
                self.is_pronoun = True
            case Kind.BACK:
                self.is_back = True
            case Kind.SO | Kind.FILLER:
                pass
            case _:
                self.strays.append(token.text)


def _negated(state: str) -> str:
    return state.removeprefix('not_') if state.startswith('not_') else f'not_{state}'
