"""From a name in a plan to the one thing it means, and from a detector's label to a name that is safe to show a model.

A name that fits two things is ambiguous, never a guess. Labels are untrusted text: see `clean_name`.
"""

from collections.abc import Iterable
from dataclasses import dataclass
import difflib
import unicodedata

from kv_agent_ros.world.state import Door, Location, ObjectState, Room, WorldMap, WorldState

MAX_NAME_CHARS = 40
ALLOWED = frozenset('abcdefghijklmnopqrstuvwxyz0123456789_')


@dataclass(frozen=True, kw_only=True, slots=True)
class Missing:
    """Nothing has that name; `reason` says so and offers the nearest names."""

    reason: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Ambiguous:
    """Several things have that name; `candidates` are their own names, sorted."""

    reason: str
    candidates: tuple[str, ...]


Unresolved = Missing | Ambiguous


def clean_name(text: str) -> str:
    """The text folded (NFKC, lower case) to [a-z0-9_], at most 40 characters; '' when nothing is left."""
    folded = unicodedata.normalize('NFKC', text[: 4 * MAX_NAME_CHARS]).casefold()
    return ''.join(char for char in folded if char in ALLOWED)[:MAX_NAME_CHARS]


def resolve_object(world: WorldState, name: str) -> ObjectState | Unresolved:
    """The object with that id, else the only one of that category."""
    found = world.find_objects(name)
    if len(found) == 1:
        return found[0]
    if found:
        return _ambiguous(name, (thing.object_id for thing in found))
    known = {thing.object_id for thing in world.objects} | {thing.category for thing in world.objects}
    return _missing('object', name, known | set(world.map.categories))


def resolve_place(home: WorldMap, name: str) -> Location | Room | Unresolved:
    """The location or room of that name, else the only location of that category."""
    exact = home.location(name) or home.room(name)
    if exact is not None:
        return exact
    found = tuple(place for place in home.locations if place.category == name)
    if len(found) == 1:
        return found[0]
    if found:
        return _ambiguous(name, (place.name for place in found))
    return _missing('place', name, {room.name for room in home.rooms} | {place.name for place in home.locations})


def resolve_door(world: WorldState, name: str) -> Door | Unresolved:
    """The door of that name in its current state (the map's when nobody has seen it)."""
    doors = {door.name: door for door in (*world.map.doors, *world.doors)}
    return doors[name] if name in doors else _missing('door', name, doors)


def _missing(kind: str, name: str, known: Iterable[str]) -> Missing:
    nearest = difflib.get_close_matches(name, sorted(known), n=3, cutoff=0.5)
    hint = f'; nearest: {", ".join(nearest)}' if nearest else ''
    return Missing(reason=f'no {kind} {clean_name(name)!r} is known{hint}')


def _ambiguous(name: str, candidates: Iterable[str]) -> Ambiguous:
    names = tuple(sorted(candidates))
    return Ambiguous(reason=f'{clean_name(name)!r} could be {" or ".join(names)}; name one', candidates=names)
