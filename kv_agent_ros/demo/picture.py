"""A PNG of the home with the paths that the robots drove."""

from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from kv_agent_ros.ros.conversions.world import world_from_msg
from kv_agent_ros.srv import GetSimulationState
from kv_agent_ros.world.state import WorldState


def draw(truth: GetSimulationState.Response, title: str, path: Path) -> None:
    """Write the picture to `path`."""
    figure = Figure(figsize=(8, 6), layout='constrained')
    FigureCanvasAgg(figure)
    axes = figure.subplots()
    world = world_from_msg(truth.world)
    _draw_map(axes, world)
    _draw_paths(axes, truth)
    _draw_things(axes, world)
    axes.set_aspect('equal')
    axes.set_xlabel('x [m]')
    axes.set_ylabel('y [m]')
    axes.set_title(title)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=120)


def _draw_map(axes: Axes, world: WorldState) -> None:
    for room in world.map.rooms:
        xs, ys = zip(*room.outline, strict=True)
        axes.fill(xs, ys, facecolor='#f4f1ea' if not room.is_hallway else '#e9e9e9', edgecolor='#555555', zorder=1)
        if not room.is_hallway:
            axes.text(sum(xs) / len(xs), max(ys) - 0.25, room.name, ha='center', va='top', color='#666666', zorder=2)
    for zone in world.map.zones:
        xs, ys = zip(*zone.outline, strict=True)
        axes.fill(xs, ys, facecolor='#f2b8b5', edgecolor='#c62828', hatch='//', alpha=0.7, zorder=2)
    for place in world.map.locations:
        axes.plot(place.pose.x_m, place.pose.y_m, 's', markersize=9, color='#8d6e4b', zorder=3)
        at = (place.pose.x_m, place.pose.y_m - 0.16)
        axes.annotate(place.name, at, ha='center', va='top', fontsize=7, color='#5d4a33', zorder=6)


def _draw_paths(axes: Axes, truth: GetSimulationState.Response) -> None:
    for number, robot in enumerate(dict.fromkeys(truth.path_robots)):
        points = [p for name, p in zip(truth.path_robots, truth.path_points, strict=True) if name == robot]
        xs, ys = [point.x for point in points], [point.y for point in points]
        colour = f'C{number}'
        axes.plot(xs, ys, '-', linewidth=1.6, color=colour, label=robot, zorder=4)
        axes.plot(xs[:1], ys[:1], 'o', markersize=6, color=colour, zorder=5)
        axes.plot(xs[-1:], ys[-1:], '*', markersize=13, color=colour, zorder=5)
    if truth.path_robots:
        axes.legend(loc='upper left', fontsize=8)


def _draw_things(axes: Axes, world: WorldState) -> None:
    for thing in world.objects:
        level = thing.properties.get('fill_level')
        is_vessel = isinstance(level, float) and thing.properties.get('contains', '') != ''
        label = f'{thing.object_id} {level:.0%}' if is_vessel else thing.object_id
        axes.plot(thing.pose.x_m, thing.pose.y_m, 'o', markersize=5, color='#1565c0', zorder=5)
        axes.annotate(label, (thing.pose.x_m, thing.pose.y_m + 0.1), ha='center', fontsize=7, color='#1565c0', zorder=6)
    for person in world.people:
        axes.plot(*person.position, 'P', markersize=10, color='#ef6c00', zorder=5)
