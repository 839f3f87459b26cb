"""Text → tokens: the word list joined with the names of one home, longest match first, nothing skipped.

What no word covers becomes an UNKNOWN token, so that the reader can say what it did not understand.
"""

from collections.abc import Iterator
from dataclasses import dataclass
import re
import unicodedata

from kv_agent_ros.agent.words import NOUNS, SMALL, STATES, VERBS, Entry, Kind
from kv_agent_ros.world.state import LocationKind, WorldMap, WorldState

_DIGITS = {'零': 0, '一': 1, '二': 2, '两': 2, '三': 3, '四': 4, '五': 5, '六': 6, '七': 7, '八': 8, '九': 9}
_ENGLISH_DIGITS = ('zero', 'one', 'two', 'three', 'four', 'five', 'six', 'seven', 'eight', 'nine', 'ten')
_ENGLISH_TENS = {'fifteen': 15.0, 'twenty': 20.0, 'thirty': 30.0, 'forty': 40.0, 'fifty': 50.0, 'sixty': 60.0}
_ENGLISH_NUMBERS = {word: float(value) for value, word in enumerate(_ENGLISH_DIGITS)} | _ENGLISH_TENS
_NUMBER = rf'(?:\d+(?:\.\d+)?|[零一二两三四五六七八九十百]+|(?:{"|".join(_ENGLISH_NUMBERS)})(?![a-z0-9_]))'
_PATTERNS = rf"""
    (?P<over>\d+\s*/\s*\d+)
  | (?P<parts>{_NUMBER}分之{_NUMBER})
  | (?P<percent>{_NUMBER}\s*(?:%|percent(?![a-z])|per\ cent(?![a-z])))
"""


@dataclass(frozen=True, kw_only=True, slots=True)
class Token:
    """One word of the instruction. `names`: what of this home it can mean; `number`: its value if it is one."""

    kind: Kind
    value: str = ''
    names: tuple[str, ...] = ()
    number: float = 0.0
    text: str = ''


class Lexicon:
    """The words that make sense in one home. Build one per map and set of known objects; it never changes."""

    def __init__(self, world: WorldState) -> None:
        self._entries: dict[str, Entry] = {**SMALL, **STATES, **VERBS}
        self._names: dict[str, tuple[Kind, tuple[str, ...]]] = _names(world)
        surfaces = sorted({*self._entries, *self._names}, key=lambda s: (-len(s), s))
        words = '|'.join(_bounded(surface) for surface in surfaces)
        self._pattern = re.compile(
            rf'(?x:{_PATTERNS})|(?P<word>{words})|(?P<number>{_NUMBER})|(?P<space>\s+)|(?P<unknown>[a-z0-9_\']+|.)'
        )

    def tokens(self, text: str) -> Iterator[Token]:
        """The instruction, word by word."""
        folded = unicodedata.normalize('NFKC', text).lower().replace('’', "'")
        for match in self._pattern.finditer(folded):
            group, piece = str(match.lastgroup), match.group()
            if group == 'word':
                yield from self._word(piece)
            elif group in ('over', 'parts', 'percent'):
                yield _fraction(group, piece)
            elif group == 'number':
                yield Token(kind=Kind.NUMBER, number=_number(piece), text=piece)
            elif group == 'unknown':
                yield Token(kind=Kind.UNKNOWN, text=piece)

    def _word(self, piece: str) -> Iterator[Token]:
        if piece in self._names:
            kind, names = self._names[piece]
            yield Token(kind=kind, names=names, text=piece)
            return
        for kind, value in self._entries[piece]:
            number = float(value) if kind is Kind.FRACTION else 0.0
            yield Token(kind=kind, value=value, number=number, text=piece)


def _bounded(surface: str) -> str:
    escaped = re.escape(surface).replace(r'\ ', r'\s+')
    return rf'(?<![a-z0-9_]){escaped}(?![a-z0-9_])' if surface[0].isascii() and surface[0].isalnum() else escaped


def _names(world: WorldState) -> dict[str, tuple[Kind, tuple[str, ...]]]:
    found: dict[str, tuple[Kind, tuple[str, ...]]] = {}

    def add(kind: Kind, surfaces: tuple[str, ...], name: str) -> None:
        for surface in surfaces:
            known = found.get(surface, (kind, ()))
            if known[0] is kind and name not in known[1]:
                found[surface] = (kind, (*known[1], name))

    for location in world.map.locations:
        add(
            Kind.PLACE,
            _surfaces(location.name) + _surfaces(location.category) + _kind_words(location.kind),
            location.name,
        )
    for room in world.map.rooms:
        add(Kind.PLACE, _surfaces(room.name), room.name)
    for category in world.map.categories:
        add(
            Kind.OBJECT,
            (*_surfaces(category), *(f'{word}s' for word in _surfaces(category) if word.isascii())),
            category,
        )
    for thing in world.objects:
        add(Kind.OBJECT, (thing.object_id.lower(), thing.object_id.lower().replace('_', ' ')), thing.object_id)
    for door in world.map.doors:
        add(Kind.DOOR, (*_surfaces(door.name), 'door', '门'), door.name)
    return _exact_first(found, world.map)


def _surfaces(name: str) -> tuple[str, ...]:
    plain = name.lower()
    return tuple(dict.fromkeys((plain, plain.replace('_', ' '), *NOUNS.get(plain, ()))))


def _kind_words(kind: LocationKind) -> tuple[str, ...]:
    return {LocationKind.DOCK: NOUNS['dock'], LocationKind.SINK: NOUNS['sink'], LocationKind.SURFACE: ()}[kind]


def _exact_first(
    found: dict[str, tuple[Kind, tuple[str, ...]]], home: WorldMap
) -> dict[str, tuple[Kind, tuple[str, ...]]]:
    """A surface that is a room's own name means that room, whatever furniture is called likewise."""
    rooms = {surface: room.name for room in home.rooms for surface in _surfaces(room.name)}
    return found | {surface: (Kind.PLACE, (name,)) for surface, name in rooms.items()}


def _number(text: str) -> float:
    if text in _ENGLISH_NUMBERS:
        return _ENGLISH_NUMBERS[text]
    if text[0].isascii():
        return float(text)
    total, digit = 0, 0
    for char in text:
        if char in _DIGITS:
            digit = _DIGITS[char]
        else:
            total += (digit or 1) * (10 if char == '十' else 100)
            digit = 0
    return float(total + digit)


def _fraction(group: str, piece: str) -> Token:
    if group == 'parts':
        below, above = piece.split('分之')
        bottom = 100.0 if below == '百' else _number(below)
        number = _number(above) / bottom if bottom else 0.0
    elif group == 'over':
        above, below = piece.split('/')
        number = float(above) / float(below) if float(below) else 0.0
    else:
        number = _number(re.split(r'\s|%|p', piece)[0]) / 100.0
    return Token(kind=Kind.FRACTION, value=f'{number:g}', number=number, text=piece)
