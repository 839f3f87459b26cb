"""How one clause becomes intents, verb by verb. Ambiguous or missing nouns are refused, with the names to choose."""

from collections.abc import Callable

from kv_agent_ros.agent.frame import Frame, Refs
from kv_agent_ros.agent.intent import ORIGIN, Intent, Verb
from kv_agent_ros.agent.words import Kind
from kv_agent_ros.world.state import LocationKind, WorldState


class Unclear(Exception):
    """Raised inside this module only: the clause cannot be turned into intents, and why."""


Intents = list[Intent]


def intents_of(frame: Frame, refs: Refs, world: WorldState) -> tuple[Intents, list[str]]:
    """The intents of one clause, and what of it was not understood. Updates `refs`."""
    unread = [f'“{stray}”' for stray in frame.strays]
    if not frame.verb:
        return [], unread + _leftovers(frame)
    if frame.is_negated:
        return [], [*unread, f'{frame.verb}: a prohibition; say only what to do']
    try:
        intents = _MAKERS[frame.verb](_Clause(frame, refs, world))
    except Unclear as error:
        return [], [*unread, str(error)]
    for intent in intents:
        if intent.verb in (Verb.GO, Verb.PUT) and intent.place != ORIGIN:
            refs.place = intent.place
        if intent.subject and intent.verb not in (Verb.OPEN, Verb.CLOSE):
            refs.subject = intent.subject
    if frame.verb == Verb.CHECK.value:
        refs.state = frame.state or refs.state
    return intents, unread


def _leftovers(frame: Frame) -> list[str]:
    if frame.state:
        return ['a statement about a state: say “if” or “check whether” before it']
    nouns = [*frame.objects, *(' or '.join(names) for _, names in frame.places), *frame.doors]
    return [f'what to do with {", ".join(nouns)}'] if nouns else []


class _Clause:
    """A frame with what its words can refer to."""

    def __init__(self, frame: Frame, refs: Refs, world: WorldState) -> None:
        self.frame = frame
        self.refs = refs
        self.world = world

    def subject(self) -> str:
        if len(self.frame.objects) > 1:
            raise Unclear(f'{self.frame.verb}: one object at a time, got {" and ".join(self.frame.objects)}')
        name = self.refs.object_of(self.frame)
        if not name:
            known = ', '.join(self.world.map.categories)
            raise Unclear(f'{self.frame.verb}: which object? Known here: {known}')
        return self._which(name)

    def _which(self, name: str) -> str:
        """Of several known objects of that category, the one in the room that the sentence is about."""
        found = self.world.find_objects(name)
        if len(found) < 2:
            return name
        rooms = {self._room_of(names[0]) for _, names in self.frame.places} | {self._room_of(self.refs.place)}
        near = [thing.object_id for thing in found if thing.room in rooms]
        if len(near) != 1:
            raise Unclear(f'{self.frame.verb}: which {name}? {" or ".join(thing.object_id for thing in found)}')
        return near[0]

    def source(self) -> Intents:
        """Being where the object is said to be, when the clause says so and the robot is not already sent there."""
        looks = self.frame.verb in _LOOKING
        to_somewhere = self._placed(Kind.TO)
        names = self._placed(Kind.FILLER, Kind.FROM, *((Kind.AT,) if looks or to_somewhere else ()))
        if not names:
            return []
        place = self._resolve(names)
        return [] if place == self.refs.place else [Intent(verb=Verb.GO, place=place)]

    def destination(self) -> str:
        """Where the object goes: after "to", else after "on"/"in", else back to where it was."""
        names = self._placed(Kind.TO) or self._placed(Kind.AT) or self._placed(Kind.FILLER)
        if names:
            return self._resolve(names)
        if self.frame.is_back:
            return ORIGIN
        raise Unclear(f'{self.frame.verb}: to which place?')

    @property
    def has_destination(self) -> bool:
        """Whether the clause says where to."""
        return self.frame.is_back or bool(self._placed(Kind.TO))

    def _placed(self, *prepositions: Kind) -> list[tuple[str, ...]]:
        return [names for preposition, names in self.frame.places if preposition in prepositions]

    def place(self) -> str:
        if not self.frame.places:
            raise Unclear(f'{self.frame.verb}: which place? Rooms here: {self._rooms()}')
        return self._resolve([names for _, names in self.frame.places])

    def door(self) -> str:
        rooms = {name for _, names in self.frame.places for name in names}
        doors = [door for door in self.world.map.doors if door.name in self.frame.doors]
        fitting = [door.name for door in doors if not rooms or rooms & set(door.rooms)]
        if len(fitting) != 1:
            raise Unclear(f'{self.frame.verb}: which door? {" or ".join(fitting) or "there is none like that"}')
        return fitting[0]

    def _resolve(self, groups: list[tuple[str, ...]]) -> str:
        """The one place that all the nouns describe: kitchen + table = the table in the kitchen."""
        rooms = {names[0] for names in groups if self.world.map.room(names[0]) is not None}
        furniture = [names for names in groups if self.world.map.room(names[0]) is None]
        if not furniture:
            if len(rooms) == 1:
                return rooms.pop()
            raise Unclear(f'{self.frame.verb}: one place at a time, got {" and ".join(sorted(rooms))}')
        if len({*furniture}) > 1:
            raise Unclear(f'{self.frame.verb}: one place at a time, got {" and ".join(n[0] for n in furniture)}')
        return self._pick(furniture[0], rooms)

    def _pick(self, names: tuple[str, ...], rooms: set[str]) -> str:
        if len(names) == 1 and not rooms:
            return names[0]
        places = [place for place in self.world.map.locations if place.name in names]
        near = rooms or {self._room_of(self.refs.place)}
        fitting = [place.name for place in places if place.room in near] or ([] if rooms else [p.name for p in places])
        if len(fitting) != 1:
            raise Unclear(f'{self.frame.verb}: which place? {" or ".join(fitting or sorted(names))}')
        return fitting[0]

    def _room_of(self, place: str) -> str:
        location = self.world.map.location(place)
        return location.room if location is not None else place

    def _rooms(self) -> str:
        return ', '.join(room.name for room in self.world.map.rooms)


def _go(clause: _Clause) -> Intents:
    frame = clause.frame
    if frame.is_charge:
        return [Intent(verb=Verb.DOCK)]
    if frame.objects and not frame.places:
        return [Intent(verb=Verb.FIND, subject=clause.subject())]
    if frame.objects:
        return [Intent(verb=Verb.GO, place=clause.place()), Intent(verb=Verb.FIND, subject=clause.subject())]
    place = clause.place()
    location = clause.world.map.location(place)
    is_dock = location is not None and location.kind is LocationKind.DOCK
    return [Intent(verb=Verb.DOCK)] if is_dock else [Intent(verb=Verb.GO, place=place)]


def _look(verb: Verb) -> Callable[[_Clause], Intents]:
    def make(clause: _Clause) -> Intents:
        return [*clause.source(), Intent(verb=verb, subject=clause.subject())]

    return make


def _pick(clause: _Clause) -> Intents:
    if clause.has_destination:
        return _bring(clause)
    return [*clause.source(), Intent(verb=Verb.PICK, subject=clause.subject())]


def _bring(clause: _Clause) -> Intents:
    subject, place = clause.subject(), clause.destination()
    return [*clause.source(), Intent(verb=Verb.PUT, subject=subject, place=place)]


def _pour(clause: _Clause) -> Intents:
    frame = clause.frame
    amount = 1.0 if frame.fraction < 0.0 or frame.verb == 'pour_all' else frame.fraction
    if not 0.0 < amount <= 1.0:
        raise Unclear(f'pour: expected a fraction between 0 and 1, got {amount:g}')
    place = ''
    if frame.places:
        place = clause.destination()
        location = clause.world.map.location(place)
        if location is None or location.kind is not LocationKind.SINK:
            raise Unclear(f'pour: only into a sink, not into {place}')
    return [Intent(verb=Verb.POUR, subject=clause.subject(), place=place, amount=round(amount, 4))]


def _door(verb: Verb) -> Callable[[_Clause], Intents]:
    def make(clause: _Clause) -> Intents:
        if not clause.frame.doors:
            raise Unclear(f'{verb.value}: only doors can be opened and closed')
        return [Intent(verb=verb, subject=clause.door())]

    return make


def _wait(clause: _Clause) -> Intents:
    frame = clause.frame
    seconds = frame.number * frame.seconds_per_unit
    if frame.number < 0.0 or frame.seconds_per_unit == 0.0:
        raise Unclear('wait: for how many seconds?')
    return [Intent(verb=Verb.WAIT, amount=seconds)]


def _dock(clause: _Clause) -> Intents:
    return [Intent(verb=Verb.DOCK)]


_LOOKING = (Verb.CHECK.value, Verb.FIND.value, Verb.PICK.value)
_MAKERS: dict[str, Callable[[_Clause], Intents]] = {
    'go': _go,
    'return': _go,
    'charge': _dock,
    'find': _look(Verb.FIND),
    'check': _look(Verb.CHECK),
    'pick': _pick,
    'bring': _bring,
    'put': _bring,
    'pour': _pour,
    'pour_all': _pour,
    'open': _door(Verb.OPEN),
    'close': _door(Verb.CLOSE),
    'wait': _wait,
}
