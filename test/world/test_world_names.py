"""Names: one thing, nothing, or ambiguous; never a guess."""

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from kv_agent_ros.world.fake import example_cup, example_map, example_world, with_objects
from kv_agent_ros.world.names import ALLOWED, Ambiguous, Missing, clean_name, resolve_object, resolve_place
from kv_agent_ros.world.state import Location, Room

HOME = example_world('robot1', 1.0)
TWO = with_objects(HOME, example_cup('cup_1', 0.9, 1.0), example_cup('cup_2', 0.1, 1.0))


def test_one_cup_is_the_cup() -> None:
    cup = example_cup('cup_1', 0.9, 1.0)
    assert resolve_object(with_objects(HOME, cup), 'cup') == cup


def test_two_cups_are_ambiguous_until_one_is_named() -> None:
    found = resolve_object(TWO, 'cup')
    assert isinstance(found, Ambiguous)
    assert found.candidates == ('cup_1', 'cup_2')
    assert resolve_object(TWO, 'cup_2') == TWO.objects[1]


def test_an_unknown_name_comes_back_with_the_nearest() -> None:
    found = resolve_object(TWO, 'cupp')
    assert isinstance(found, Missing)
    assert 'nearest: cup' in found.reason


def test_places_are_rooms_locations_or_the_only_one_of_a_category() -> None:
    home = example_map()
    assert isinstance(resolve_place(home, 'kitchen'), Room)
    assert isinstance(resolve_place(home, 'sink'), Location)
    by_category = resolve_place(home, 'counter')
    assert isinstance(by_category, Location) and by_category.name == 'kitchen_counter'
    two_counters = replace(home, locations=(*home.locations, replace(home.locations[0], name='bar')))
    assert isinstance(resolve_place(two_counters, 'counter'), Ambiguous)


def test_wide_letters_fold_and_others_are_dropped() -> None:
    assert clean_name('Ｃｕｐ-1') == 'cup1'
    assert clean_name('杯子') == ''


@given(st.text())
def test_a_clean_name_has_only_safe_characters_and_stays_clean(text: str) -> None:
    name = clean_name(text)
    assert set(name) <= ALLOWED
    assert len(name) <= 40
    assert clean_name(name) == name
