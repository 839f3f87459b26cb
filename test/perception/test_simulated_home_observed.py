"""The real simulator through perception and the world model: what is rehearsed happens, what happened is observed."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from kv_agent_ros.deadline import Deadline
from kv_agent_ros.perception.perceiver import Perceiver
from kv_agent_ros.perception.simulated import SimulatedDetector
from kv_agent_ros.robot.base import Argument, Step, StepResult
from kv_agent_ros.robot.faults import FaultKind
from kv_agent_ros.robot.home import SimulatedHome
from kv_agent_ros.robot.home_setup import AS_FAST_AS_POSSIBLE, HomeOptions, open_home
from kv_agent_ros.robot.simulated import SimulatedRobot
from kv_agent_ros.world.base import EffectCheck
from kv_agent_ros.world.effects import check_effect
from kv_agent_ros.world.map_file import load_map
from kv_agent_ros.world.model import WorldModel
from kv_agent_ros.world.state import Prediction, WorldState

WORLD = Path(__file__).parents[2] / 'config' / 'worlds' / 'home.yaml'


@dataclass(frozen=True, kw_only=True, slots=True)
class Done:
    """One step: as rehearsed, as the robot reported, as observed."""

    prediction: Prediction
    result: StepResult
    check: EffectCheck


class Rig:
    """A simulated robot and what the suite knows of its world."""

    def __init__(self, home: SimulatedHome) -> None:
        self.home = home
        self.robot = SimulatedRobot(home, 'robot1')
        world_map = load_map(WORLD)
        self.perceiver = Perceiver([SimulatedDetector()], world_map)
        self.model = WorldModel(world_map)
        self.look()

    def look(self) -> WorldState:
        """Sense once and merge."""
        return self.model.apply(self.perceiver.observe(self.home.sense('robot1')))

    def do(self, skill: str, **arguments: Argument) -> Done:
        """Rehearse, act, look, check."""
        step = Step(skill=skill, arguments=arguments)
        before = self.look()
        prediction = self.model.predict(before, 'robot1', step)
        result = self.robot.execute(step, Deadline(60.0))
        return Done(prediction=prediction, result=result, check=check_effect(step, 'robot1', before, self.look()))


@pytest.fixture
def rig() -> Iterator[Rig]:
    yield Rig(open_home(WORLD, ['robot1'], HomeOptions(realtime_factor=AS_FAST_AS_POSSIBLE)))


def test_the_water_task_is_feasible_succeeds_and_is_observed_step_by_step(rig: Rig) -> None:
    for step in (
        ('navigate', {'target': 'kitchen'}),
        ('find', {'target': 'cup'}),
        ('inspect', {'target': 'cup'}),
        ('pick', {'target': 'cup'}),
        ('navigate', {'target': 'sink'}),
        ('pour', {'target': 'sink', 'fraction': 0.5}),
        ('place', {'target': 'kitchen_counter'}),
        ('close', {'target': 'kitchen_door'}),
        ('open', {'target': 'kitchen_door'}),
        ('wait', {'duration_s': 2.0}),
        ('dock', {}),
    ):
        done = rig.do(step[0], **step[1])
        assert done.prediction.is_feasible, (step, done.prediction.reason)
        assert done.result.is_success, (step, done.result.message)
        assert done.check.is_met, (step, done.check.evidence)
    world = rig.model.snapshot()
    cup = world.find_objects('cup')[0]
    truth = rig.home.truth().object('cup1')
    assert (cup.location, cup.properties['fill_level']) == (truth.location, pytest.approx(truth.fill_level))
    assert truth.fill_level == pytest.approx(0.5)
    assert rig.perceiver.stats().dropped == {}


def test_rehearsed_time_and_battery_are_near_the_real_ones(rig: Rig) -> None:
    for target in ('kitchen', 'bathroom_sink', 'bed', 'dock'):
        battery = rig.robot.state().battery
        done = rig.do('navigate', target=target)
        used = battery - rig.robot.state().battery
        assert 0.7 < done.prediction.duration_s / done.result.duration_s < 1.3
        assert 0.7 < done.prediction.battery_used / used < 1.5


def test_a_slip_is_seen_and_the_cup_is_still_on_the_counter(rig: Rig) -> None:
    rig.do('navigate', target='kitchen')
    rig.do('find', target='cup')
    rig.home.inject_fault(FaultKind.SLIP, 'cup1', 1)
    slipped = rig.do('pick', target='cup')
    assert slipped.prediction.is_feasible
    assert not slipped.result.is_success
    assert (slipped.check.is_met, slipped.check.evidence) == (False, 'the gripper is empty')
    assert rig.do('pick', target='cup').check.is_met


def test_a_cup_that_was_taken_away_is_forgotten_when_its_place_is_seen_without_it(rig: Rig) -> None:
    rig.do('navigate', target='kitchen')
    rig.do('inspect', target='cup')
    rig.do('find', target='cup')
    rig.home.remove_object('cup1')
    assert rig.look().find_objects('cup') == ()
    assert (
        'find it first'
        in rig.model.predict(rig.model.snapshot(), 'robot1', Step(skill='pick', arguments={'target': 'cup'})).reason
    )


def test_a_closed_door_is_refused_in_rehearsal_once_it_was_seen(rig: Rig) -> None:
    rig.do('close', target='bathroom_door')
    refused = rig.do('navigate', target='bathroom')
    assert not refused.prediction.is_feasible
    assert 'closed bathroom_door' in refused.prediction.reason
    assert not refused.result.is_success
    assert not refused.check.is_met
