"""An observation with a place that is none does not reach the world model."""

from dataclasses import replace
import math

import pytest

from kv_agent_ros.errors import BadRequestError
from kv_agent_ros.robot.base import Pose
from kv_agent_ros.world.fake import example_cup, example_map, example_robot
from kv_agent_ros.world.model import WorldModel
from kv_agent_ros.world.state import Observation, PersonState

SOUND = Observation(
    robot=example_robot('robot1', 1.0),
    stamp_s=1.0,
    objects=(example_cup('cup_1', 0.9, 1.0),),
    people=(PersonState(person_id='p1', seen_s=1.0, position=(1.0, 1.0)),),
)


def test_a_sound_observation_is_applied() -> None:
    assert WorldModel(example_map()).apply(SOUND).sequence == 1


@pytest.mark.parametrize('value', [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize('name', ['x_m', 'y_m', 'yaw_rad'])
def test_a_pose_that_is_not_finite_is_refused(name: str, value: float) -> None:
    model, pose = WorldModel(example_map()), replace(Pose(), **{name: value})
    cup = replace(example_cup('cup_1', 0.9, 1.0), pose=pose)
    for bad in (replace(SOUND, robot=replace(SOUND.robot, pose=pose)), replace(SOUND, objects=(cup,))):
        with pytest.raises(BadRequestError, match='finite'):
            model.apply(bad)
    assert model.snapshot().robots == ()


@pytest.mark.parametrize('position', [(math.nan, 0.0), (0.0, math.inf)])
def test_a_person_nowhere_is_refused(position: tuple[float, float]) -> None:
    person = PersonState(person_id='p1', seen_s=1.0, position=position)
    with pytest.raises(BadRequestError, match='finite'):
        WorldModel(example_map()).apply(replace(SOUND, people=(person,)))
