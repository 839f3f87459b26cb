from pathlib import Path

from pyrobosim.core.yaml_utils import WorldYamlLoader
import pytest
from shapely import Polygon
from shapely.geometry import Point as ShapelyPoint
import yaml

from kv_agent_ros.errors import ConfigError
from kv_agent_ros.robot.base import Pose
from kv_agent_ros.robot.engine import Engine
from kv_agent_ros.world.map_file import load_furniture, load_map
from kv_agent_ros.world.state import LocationKind

HOME = Path(__file__).parents[2] / 'config' / 'worlds' / 'home.yaml'


def _changed(tmp_path: Path, old: str, text: str) -> Path:
    """The home's world file with one replacement, beside its sibling files."""
    for sibling in HOME.parent.glob('home*.yaml'):
        (tmp_path / sibling.name).write_text(sibling.read_text())
    source = HOME.read_text()
    assert old in source
    (tmp_path / HOME.name).write_text(source.replace(old, text))
    return tmp_path / HOME.name


def test_the_home_has_the_rooms_locations_doors_zone_and_categories_of_its_file() -> None:
    home = load_map(HOME)

    assert [room.name for room in home.rooms if not room.is_hallway] == [
        'kitchen',
        'living_room',
        'bathroom',
        'bedroom',
    ]
    assert {place.name for place in home.locations if place.kind is LocationKind.SINK} == {'sink', 'bathroom_sink'}
    assert [place.name for place in home.locations if place.kind is LocationKind.DOCK] == ['dock']
    assert home.doors[0].name == 'kitchen_door'
    assert home.doors[0].rooms == ('kitchen', 'living_room')
    assert home.doors[0].position == (4.25, 2.0)
    assert [zone.name for zone in home.zones] == ['wet_floor']
    assert home.categories[0] == 'cup'


def test_outlines_are_those_that_pyrobosim_makes_of_the_same_file() -> None:
    simulated = WorldYamlLoader().from_file(HOME)
    home = load_map(HOME)

    for entity in (*simulated.rooms, *simulated.hallways):
        room = home.room(entity.name)
        assert room is not None
        assert Polygon(room.outline).symmetric_difference(entity.polygon).area < 1e-9
    for entity, outline in zip(simulated.locations, load_furniture(HOME), strict=True):
        assert Polygon(outline).symmetric_difference(entity.polygon).area < 1e-3


def test_every_approach_is_the_first_place_where_pyrobosim_lets_a_robot_stand() -> None:
    engine = Engine(HOME, {'robot1': Pose(x_m=9.8, y_m=3.2)})

    for place in load_map(HOME).locations:
        stand = engine.stands(place.name)[0]
        assert place.approach.x_m == pytest.approx(stand.x_m, abs=1e-3)
        assert place.approach.y_m == pytest.approx(stand.y_m, abs=1e-3)


def test_every_approach_lies_in_its_room_and_outside_all_furniture() -> None:
    home = load_map(HOME)
    furniture = [Polygon(outline) for outline in load_furniture(HOME)]

    for place in home.locations:
        stand = ShapelyPoint(place.approach.x_m, place.approach.y_m)
        room = home.room(place.room)
        assert room is not None
        assert Polygon(room.outline).contains(stand)
        assert min(outline.distance(stand) for outline in furniture) > 0.2


def test_outlines_turn_counter_clockwise_however_they_are_written(tmp_path: Path) -> None:
    clockwise = '[[0.0, 0.0], [0.0, 4.0], [4.0, 4.0], [4.0, 0.0]]'
    path = _changed(tmp_path, '[[0.0, 0.0], [4.0, 0.0], [4.0, 4.0], [0.0, 4.0]]', clockwise)

    kitchen = load_map(path).room('kitchen')

    assert kitchen is not None
    assert Polygon(kitchen.outline).exterior.is_ccw


def test_a_closed_hallway_is_a_closed_door(tmp_path: Path) -> None:
    path = _changed(tmp_path, '  - name: kitchen_hallway\n', '  - name: kitchen_hallway\n    is_open: false\n')
    assert [door.is_open for door in load_map(path).doors] == [False, True, True]


@pytest.mark.parametrize(
    ('old', 'text', 'complaint'),
    [
        ('kitchen_door: kitchen_hallway', 'kitchen_door: no_hallway', 'no_hallway'),
        ('charger: dock}', 'charger: throne}', 'throne'),
        ('conn_points: [[3.5, 2.0], [5.0, 2.0]]', 'conn_points: [[3.5, 2.0]]', 'conn_points'),
        ('fill_level: 1.0', 'fill_level: 1.5', 'fill_level'),
        ('[2.8, 3.7, 0.0, 0.0]', '[2.8, .nan, 0.0, 0.0]', 'finite'),
        ('metadata:', 'metadata: 3\nother:', 'metadata'),
    ],
)
def test_what_is_not_understood_is_refused_by_name(tmp_path: Path, old: str, text: str, complaint: str) -> None:
    with pytest.raises(ConfigError, match=complaint):
        load_map(_changed(tmp_path, old, text))


def test_a_missing_or_broken_file_is_a_configuration_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match='nowhere'):
        load_map(tmp_path / 'nowhere.yaml')
    (tmp_path / 'broken.yaml').write_text('rooms: [')
    with pytest.raises(ConfigError, match='broken'):
        load_map(tmp_path / 'broken.yaml')


def test_the_file_stays_plain_yaml_for_pyrobosim() -> None:
    document = yaml.safe_load(HOME.read_text())
    assert set(document) == {'params', 'metadata', 'rooms', 'hallways', 'locations', 'objects', 'home'}
