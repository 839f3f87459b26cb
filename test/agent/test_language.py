"""What the reader understands, in both languages, and that it says what it does not."""

from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st
import pytest

from kv_agent_ros.agent.intent import Guard, Intent, Verb, empty, full, with_put_back
from kv_agent_ros.agent.language import read_instruction
from kv_agent_ros.agent.rest import say
from kv_agent_ros.world.fake import example_cup, example_world, with_objects

WORLD = example_world('robot1', 1.0)
IF_FULL = 'if cup.fill_level >= 0.9'
BACK = 'put cup at @origin'
READINGS = {
    '去厨房检查水杯是否倒满，如果满了就倒掉一半，然后返回充电座。': (
        f'go at kitchen|check cup|pour cup 0.5 {IF_FULL}|{BACK} {IF_FULL}|dock'
    ),
    '去厨房看看杯子满不满，满了就倒掉三分之一，然后回去充电': (
        f'go at kitchen|check cup|pour cup 0.3333 {IF_FULL}|{BACK} {IF_FULL}|dock'
    ),
    'go to the kitchen and empty the cup': 'go at kitchen|pour cup 1|put cup at @origin',
    '检查厨房的水杯，要是满的，倒掉百分之三十，放回原处，最后回充电桩': (
        f'go at kitchen|check cup|pour cup 0.3 {IF_FULL}|put cup at @origin {IF_FULL}|dock'
    ),
    '去厨房检查水杯，没满的话就去客厅': 'go at kitchen|check cup|go at living_room unless cup.fill_level >= 0.9',
    '把厨房的杯子拿到客厅的桌子上，然后充电': 'go at kitchen|put cup at table|dock',
    '打开厨房门，等三秒，关门': 'open kitchen_door|wait 3|close kitchen_door',
    '去厨房把水杯倒空然后放回原处': 'go at kitchen|pour cup 1|put cup at @origin',
    '在厨房找到碗并拿起来': 'go at kitchen|find bowl|pick bowl',
    'Go to the kitchen, check whether the cup is full, if it is pour out half, then return to the charging dock.': (
        f'go at kitchen|check cup|pour cup 0.5 {IF_FULL}|{BACK} {IF_FULL}|dock'
    ),
    "Please go to the kitchen, check the cup. If it's not full, go to the table. Otherwise pour out a quarter": (
        f'go at kitchen|check cup|go at table unless cup.fill_level >= 0.9|pour cup 0.25 {IF_FULL}|{BACK} {IF_FULL}'
    ),
    'pour out 25% of the cup if it is full': f'pour cup 0.25 {IF_FULL}|{BACK} {IF_FULL}',
    'bring the cup on the table to the kitchen counter, then go home': 'go at table|put cup at kitchen_counter|dock',
    'if the cup is empty wait ten seconds': 'wait 10 if cup.fill_level <= 0.1',
    'find the bowl in the kitchen and put it on the table': 'go at kitchen|find bowl|put bowl at table',
    'go to the KITCHEN，然后 return to the dock': 'go at kitchen|dock',
}
NOT_UNDERSTOOD = {
    '去厨房煮咖啡': '煮咖啡',
    'make me a sandwich': 'sandwich',
    'go to the moon': 'moon',
    '不要去厨房': '要',
    'do not go to the kitchen': 'do',
    'never mind': 'never',
    'the cup is full': 'check whether',
    'pour half of the cup onto the table': 'only into a sink',
    'bring the cup and the bowl to the table': 'what to do with bowl',
    'bring the cup the bowl to the table': 'one object at a time',
    'open the cup': 'only doors',
    'wait for a while': 'how many seconds',
    'else go to the kitchen': 'without an “if”',
    '': 'no wish found',
    'go to the kitchen ' * 100: 'at most 1000 characters',
}


@pytest.mark.parametrize(('instruction', 'expected'), READINGS.items())
def test_the_instruction_is_read_into_these_intents(instruction: str, expected: str) -> None:
    reading = read_instruction(instruction, WORLD)
    assert reading.unread == ()
    assert '|'.join(map(str, reading.intents)) == expected


@pytest.mark.parametrize(('instruction', 'word'), NOT_UNDERSTOOD.items())
def test_what_is_not_understood_is_named(instruction: str, word: str) -> None:
    assert word in '; '.join(read_instruction(instruction, WORLD).unread)


def test_two_cups_are_told_apart_by_the_room_or_asked_about() -> None:
    here, there = example_cup('cup_1', 0.5, 1.0), replace(example_cup('cup_2', 0.5, 1.0), room='living_room')
    world = with_objects(WORLD, here, there)
    assert str(read_instruction('go to the kitchen and check the cup', world).intents[1]) == 'check cup_1'
    both = read_instruction('check the cup', world)
    assert both.unread == ('check: which cup? cup_1 or cup_2',)


def test_a_place_that_two_locations_share_is_asked_about() -> None:
    home = WORLD.map
    second = replace(home.locations[2], name='desk', room='kitchen')
    world = replace(WORLD, map=replace(home, locations=(*home.locations, second)))
    assert read_instruction('go to the kitchen table', world).intents[0].place == 'desk'
    assert read_instruction('bring the bowl to the table', world).unread == ('bring: which place? table or desk',)


PLACES = st.sampled_from(['kitchen', 'living_room', 'kitchen_counter', 'table', 'sink'])
OBJECTS = st.sampled_from(['cup', 'bowl'])
FREE = st.one_of(
    st.builds(lambda place: Intent(verb=Verb.GO, place=place), PLACES),
    st.builds(lambda verb, name: Intent(verb=verb, subject=name), st.sampled_from([Verb.FIND, Verb.CHECK]), OBJECTS),
    st.builds(lambda name, place: Intent(verb=Verb.PUT, subject=name, place=place), OBJECTS, PLACES),
    st.builds(
        lambda name, percent: Intent(verb=Verb.POUR, subject=name, amount=percent / 100.0),
        OBJECTS,
        st.integers(1, 100),
    ),
    st.builds(lambda seconds: Intent(verb=Verb.WAIT, amount=float(seconds)), st.integers(0, 600)),
    st.builds(lambda verb: Intent(verb=verb, subject='kitchen_door'), st.sampled_from([Verb.OPEN, Verb.CLOSE])),
    st.just(Intent(verb=Verb.DOCK)),
)
GUARDS = st.builds(
    lambda name, arm, of: Guard(condition=of(name), arm=arm), OBJECTS, st.booleans(), st.sampled_from([full, empty])
)
GUARDED = st.builds(
    lambda intent, guard: intent if intent.verb is Verb.DOCK else replace(intent, guards=(guard,)), FREE, GUARDS
)


@settings(deadline=None)
@given(st.lists(st.one_of(FREE, GUARDED), min_size=1, max_size=6))
def test_every_intent_can_be_said_and_is_read_back(intents: list[Intent]) -> None:
    reading = read_instruction('; '.join(map(say, intents)), WORLD)
    assert reading.unread == ()
    assert reading.intents == with_put_back(intents)


@settings(deadline=None)
@given(st.text(max_size=200))
def test_any_text_is_read_without_an_error(text: str) -> None:
    read_instruction(text, WORLD)
