"""What a world file says beyond pyrobosim's own format: its `home` section, read and checked.

Both readers of a world file, the simulator and the map, take kinds, doors, zones, contents and people from here.
"""

from collections.abc import Mapping
from dataclasses import dataclass
import math
from pathlib import Path
from typing import cast

import yaml

from kv_agent_ros.errors import ConfigError
from kv_agent_ros.robot.plan import Json

Point = tuple[float, float]
Section = Mapping[str, Json]


@dataclass(frozen=True, kw_only=True, slots=True)
class Content:
    """What a vessel holds at the start; `fill_level` 0 empty .. 1 full."""

    contains: str
    fill_level: float


@dataclass(frozen=True, kw_only=True, slots=True)
class Walker:
    """A person who walks along `route` and back, at `speed_mps` (0 = stands at its first point)."""

    name: str
    speed_mps: float
    route: tuple[Point, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class HomeSection:
    """The `home` section. `kinds`: location category → kind word; `doors`: door name → hallway name."""

    kinds: Mapping[str, str]
    doors: Mapping[str, str]
    zones: Mapping[str, tuple[Point, ...]]
    contents: Mapping[str, Content]
    walkers: tuple[Walker, ...]


def read_yaml(path: Path) -> Section:
    """The top level of a YAML file. Raises ConfigError when it is no readable mapping."""
    try:
        document = yaml.safe_load(path.read_text(encoding='utf-8'))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise ConfigError(f'{path}: expected a readable YAML file, got {error}') from error
    return as_section(cast(Json, document), str(path))


def home_section(document: Section) -> HomeSection:
    """The `home` section of a world file, empty where it is silent. Raises ConfigError naming what is wrong."""
    home = section_of(document, 'home')
    return HomeSection(
        kinds=_words(home, 'kinds'),
        doors=_words(home, 'doors'),
        zones={as_text(zone, 'name'): outline_of(zone, 'outline') for zone in entries_of(home, 'zones')},
        contents={name: _content(as_section(value, name)) for name, value in section_of(home, 'contents').items()},
        walkers=tuple(_walker(person) for person in entries_of(home, 'people')),
    )


def as_section(value: Json, what: str) -> Section:
    """`value` as a mapping. Raises ConfigError."""
    if not isinstance(value, Mapping):
        raise ConfigError(f'{what}: expected a mapping, got {value!r:.80}')
    return value


def section_of(document: Section, key: str) -> Section:
    """The mapping under `key`, empty when absent. Raises ConfigError."""
    return as_section(document.get(key, {}), key)


def entries_of(document: Section, key: str) -> tuple[Section, ...]:
    """The list of mappings under `key`, empty when absent. Raises ConfigError."""
    entries = document.get(key, ())
    if not isinstance(entries, (list, tuple)):
        raise ConfigError(f'{key}: expected a list, got {entries!r:.80}')
    return tuple(as_section(entry, key) for entry in entries)


def as_text(document: Section, key: str) -> str:
    """The non-empty string under `key`. Raises ConfigError."""
    value = document.get(key)
    if not isinstance(value, str) or not value:
        raise ConfigError(f'{key}: expected a name, got {value!r:.80} in {document!r:.120}')
    return value


def as_number(document: Section, key: str) -> float:
    """The finite number under `key`. Raises ConfigError."""
    return _finite(document.get(key), key)


def numbers_of(document: Section, key: str) -> tuple[float, ...]:
    """The list of finite numbers under `key`. Raises ConfigError."""
    values = document.get(key)
    if not isinstance(values, (list, tuple)):
        raise ConfigError(f'{key}: expected a list of numbers, got {values!r:.80}')
    return tuple(_finite(value, key) for value in values)


def outline_of(document: Section, key: str) -> tuple[Point, ...]:
    """The polygon under `key`, at least three points, turned counter-clockwise. Raises ConfigError."""
    points = points_of(document, key)
    if len(points) < 3:
        raise ConfigError(f'{key}: expected at least 3 points, got {len(points)}')
    area = sum(a[0] * b[1] - b[0] * a[1] for a, b in zip(points, (*points[1:], points[0]), strict=True))
    return points if area > 0 else points[::-1]


def points_of(document: Section, key: str) -> tuple[Point, ...]:
    """The list of [x, y] under `key`. Raises ConfigError."""
    values = document.get(key)
    if not isinstance(values, (list, tuple)) or not values:
        raise ConfigError(f'{key}: expected a list of [x, y], got {values!r:.80}')
    points = [numbers_of({key: value}, key) for value in values]
    if any(len(point) != 2 for point in points):
        raise ConfigError(f'{key}: expected pairs [x, y], got {values!r:.80}')
    return tuple((point[0], point[1]) for point in points)


def _finite(value: Json, key: str) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
        raise ConfigError(f'{key}: expected a finite number, got {value!r:.80}')
    return float(value)


def _words(home: Section, key: str) -> Mapping[str, str]:
    section = section_of(home, key)
    return {name: as_text(section, name) for name in section}


def _content(section: Section) -> Content:
    fill_level = as_number(section, 'fill_level')
    if not 0.0 <= fill_level <= 1.0:
        raise ConfigError(f'fill_level: expected 0..1, got {fill_level}')
    return Content(contains=as_text(section, 'contains'), fill_level=fill_level)


def _walker(section: Section) -> Walker:
    return Walker(
        name=as_text(section, 'name'), speed_mps=as_number(section, 'speed_mps'), route=points_of(section, 'route')
    )
