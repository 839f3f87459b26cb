"""A PNG of the home with the paths that the robots drove."""

from collections.abc import Iterator, Sequence
from itertools import pairwise
import math
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from kv_agent_ros.ros.conversions.world import world_from_msg
from kv_agent_ros.srv import GetSimulationState
from kv_agent_ros.world.geometry import distance_m
from kv_agent_ros.world.state import Location, LocationKind, ObjectState, Point, WorldState

FLOOR, WALL = '#f7f4ee', '#5f5b53'
FURNITURE = {LocationKind.SURFACE: '#d9c4a5', LocationKind.SINK: '#a9cfe0', LocationKind.DOCK: '#a5d6a7'}
LETTERS, THING, HAZARD, PERSON = '#4a4034', '#1565c0', '#c62828', '#ef6c00'
PATHS = ('#00796b', '#6a1b9a', '#ad1457', '#37474f')
ARROW_EVERY_M = 1.4


def draw(truth: GetSimulationState.Response, furniture: Sequence[Sequence[Point]], title: str, path: Path) -> None:
    """Write the picture to `path`. `furniture`: outlines in the order of the map's locations."""
    figure = Figure(figsize=(10, 7.2), layout='constrained')
    FigureCanvasAgg(figure)
    axes = figure.subplots()
    world = world_from_msg(truth.world)
    _draw_rooms(axes, world)
    for place, outline in zip(world.map.locations, furniture, strict=True):
        _draw_place(axes, place, outline)
    _draw_paths(axes, truth)
    _draw_things(axes, world)
    axes.set_aspect('equal')
    axes.axis('off')
    axes.set_title(title, fontsize=13, color=LETTERS)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=110)


def _draw_rooms(axes: Axes, world: WorldState) -> None:
    for room in sorted(world.map.rooms, key=lambda room: room.is_hallway):
        xs, ys = zip(*room.outline, strict=True)
        if room.is_hallway:
            axes.fill(xs, ys, facecolor=FLOOR, edgecolor='none', zorder=2)  # an opening in the walls
            continue
        axes.fill(xs, ys, facecolor=FLOOR, edgecolor=WALL, linewidth=2.5, zorder=1)
        at = (min(xs) + 0.12, min(ys) + 0.12)
        axes.annotate(room.name.replace('_', ' '), at, fontsize=13, color='#aaa294', zorder=3)
    for zone in world.map.zones:
        xs, ys = zip(*zone.outline, strict=True)
        axes.fill(xs, ys, facecolor='#f8d5d3', edgecolor=HAZARD, hatch='//', alpha=0.6, linewidth=0.8, zorder=2)
        at = (sum(xs) / len(xs), min(ys) - 0.06)
        axes.annotate(f'keep out: {zone.name}', at, ha='center', va='top', fontsize=8, color=HAZARD, zorder=6)


def _draw_place(axes: Axes, place: Location, outline: Sequence[Point]) -> None:
    xs, ys = zip(*outline, strict=True)
    axes.fill(xs, ys, facecolor=FURNITURE[place.kind], edgecolor=LETTERS, linewidth=0.8, zorder=3)
    width_m, height_m = max(xs) - min(xs), max(ys) - min(ys)
    is_narrow = height_m > 3 * width_m
    is_inside = is_narrow or (width_m > 1.2 and height_m > 0.65)
    at = ((min(xs) + max(xs)) / 2, (min(ys) + max(ys)) / 2 if is_inside else min(ys) - 0.05)
    axes.annotate(
        place.name.replace('_', ' '),
        at,
        ha='center',
        va='center' if is_inside else 'top',
        rotation=90 if is_narrow else 0,
        fontsize=8,
        color=LETTERS,
        zorder=6,
    )


def _draw_paths(axes: Axes, truth: GetSimulationState.Response) -> None:
    for number, robot in enumerate(dict.fromkeys(truth.path_robots)):
        pairs = zip(truth.path_robots, truth.path_points, strict=True)
        points = [(point.x, point.y) for name, point in pairs if name == robot]
        colour = PATHS[number % len(PATHS)]
        xs, ys = zip(*points, strict=True)
        axes.plot(xs, ys, '-', linewidth=2.2, color=colour, alpha=0.85, solid_joinstyle='round', zorder=4)
        for tail, tip in _arrows(points):
            axes.annotate('', tip, tail, arrowprops={'arrowstyle': '-|>', 'color': colour, 'lw': 1.6}, zorder=4)
        axes.plot(xs[-1], ys[-1], 'o', markersize=15, color=colour, markeredgecolor='white', zorder=7)
        axes.annotate(robot, (xs[-1], ys[-1] + 0.24), ha='center', fontsize=9, color=colour, weight='bold', zorder=7)


def _arrows(points: Sequence[Point]) -> Iterator[tuple[Point, Point]]:
    """A short piece of the way every ARROW_EVERY_M metres of it, to show the direction."""
    due_m = ARROW_EVERY_M / 2
    for start, end in pairwise(points):
        length_m = distance_m(start, end)
        while due_m < length_m:
            share = due_m / length_m
            tip = (start[0] + share * (end[0] - start[0]), start[1] + share * (end[1] - start[1]))
            angle = math.atan2(end[1] - start[1], end[0] - start[0])
            yield (tip[0] - 0.05 * math.cos(angle), tip[1] - 0.05 * math.sin(angle)), tip
            due_m += ARROW_EVERY_M
        due_m -= length_m


def _draw_things(axes: Axes, world: WorldState) -> None:
    places = {place.name: place.pose.x_m for place in world.map.locations}
    for thing in world.objects:
        at = (thing.pose.x_m, thing.pose.y_m)
        is_right = at[0] > places.get(thing.location, math.inf)
        beside = (at[0] + (0.09 if is_right else -0.09), at[1])
        axes.plot(*at, 'o', markersize=6, color=THING, markeredgecolor='white', markeredgewidth=0.8, zorder=5)
        side = 'left' if is_right else 'right'
        axes.annotate(_label(thing), beside, ha=side, va='center', fontsize=8, color=THING, zorder=6)
    for person in world.people:
        axes.plot(*person.position, 'P', markersize=12, color=PERSON, zorder=5)
        at = (person.position[0], person.position[1] - 0.2)
        axes.annotate(person.person_id, at, ha='center', va='top', fontsize=8, color=PERSON, zorder=6)


def _label(thing: ObjectState) -> str:
    """The id, with the fill level of what holds something."""
    level = thing.properties.get('fill_level')
    is_vessel = isinstance(level, float) and thing.properties.get('contains', '') != ''
    return f'{thing.object_id} {level:.0%} full' if is_vessel else thing.object_id
