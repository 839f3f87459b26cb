"""When a property of an object was measured.

A cup seen from across the room is seen, but its fill level is not. So the world keeps, beside each property, the
stamp of its own measurement under the key `<property>_seen_s`; a property without one is as old as its object's
sighting. A stamp without a value, in a predicted world, means: will have been measured by then, value not guessed.
"""

from collections.abc import Mapping
from dataclasses import replace

from kv_agent_ros.robot.base import Argument
from kv_agent_ros.world.state import ObjectState

SEEN_SUFFIX = '_seen_s'


def is_stamp(name: str) -> bool:
    """Whether this key of `properties` is a measurement's stamp, not a property."""
    return name.endswith(SEEN_SUFFIX)


def property_seen_s(thing: ObjectState, name: str) -> float:
    """When that property was measured; -inf when never."""
    stamp = thing.properties.get(name + SEEN_SUFFIX, thing.seen_s)
    is_known = name in thing.properties or name + SEEN_SUFFIX in thing.properties
    return float(stamp) if is_known and isinstance(stamp, (int, float)) else float('-inf')


def number(thing: ObjectState, name: str) -> float | None:
    """The property when it is a number, None when it is unknown or text."""
    value = thing.properties.get(name)
    return float(value) if isinstance(value, (int, float)) else None


def with_stamps(thing: ObjectState) -> ObjectState:
    """The same object with the age of each property written down, so that a later sighting cannot refresh it."""
    stamps = {name + SEEN_SUFFIX: property_seen_s(thing, name) for name in thing.properties if not is_stamp(name)}
    return replace(thing, properties={**thing.properties, **stamps})


def merged_properties(known: ObjectState, seen: ObjectState) -> Mapping[str, Argument]:
    """Of each property the later measurement; `seen` when both are equally old."""
    merged = dict(with_stamps(known).properties)
    for name, value in seen.properties.items():
        if not is_stamp(name) and property_seen_s(seen, name) >= property_seen_s(known, name):
            merged[name] = value
            merged[name + SEEN_SUFFIX] = property_seen_s(seen, name)
    return merged
