"""Detectors and the perceiver that runs them."""

from dataclasses import replace
import math

import pytest

from kv_agent_ros.errors import BadRequestError
from kv_agent_ros.perception.base import Detection, Detector
from kv_agent_ros.perception.fake import FakeDetector, example_frame
from kv_agent_ros.perception.perceiver import Perceiver
from kv_agent_ros.perception.simulated import SimulatedDetector
from kv_agent_ros.robot.base import Pose
from kv_agent_ros.robot.sensing import Sighting
from kv_agent_ros.world.fake import example_map, example_robot

SIGHTING = Sighting(
    object_id='cup1',
    category='cup',
    location='kitchen_counter',
    room='kitchen',
    pose=Pose(x_m=1.0, y_m=3.7),
    confidence=0.95,
    properties={'fill_level': 0.9, 'contains': 'water'},
)
BOWL = Detection(object_id='bowl1', label='bowl', pose=Pose(x_m=6.0, y_m=1.0), confidence=0.8)
FRAME = replace(example_frame(example_robot('robot1', 3.0), 2.0), sightings=(SIGHTING,))


@pytest.mark.parametrize('detector', [SimulatedDetector(), FakeDetector(BOWL)])
def test_every_detector_has_a_name_and_sees_the_same_in_the_same_frame(detector: Detector) -> None:
    assert detector.name
    seen = detector.detect(FRAME)
    assert seen == detector.detect(FRAME)
    assert len(seen) == 1


def test_a_sighting_of_the_simulator_keeps_everything() -> None:
    assert SimulatedDetector().detect(FRAME) == (
        Detection(
            object_id='cup1',
            label='cup',
            pose=Pose(x_m=1.0, y_m=3.7),
            confidence=0.95,
            location='kitchen_counter',
            room='kitchen',
            properties={'fill_level': 0.9, 'contains': 'water'},
        ),
    )


def test_all_detectors_are_asked_and_the_books_are_kept() -> None:
    unsure = replace(BOWL, object_id='bowl2', confidence=0.1)
    perceiver = Perceiver([SimulatedDetector(), FakeDetector(BOWL, unsure)], example_map())
    seen = perceiver.observe(FRAME)
    perceiver.observe(FRAME)
    assert [thing.object_id for thing in seen.objects] == ['bowl1', 'cup1']
    stats = perceiver.stats()
    assert (stats.num_frames, stats.num_objects, stats.num_refused) == (2, 4, 0)
    assert stats.dropped == {'confidence low': 2}


def test_a_refused_frame_is_counted() -> None:
    perceiver = Perceiver([SimulatedDetector()], example_map())
    lost = replace(FRAME, robot=replace(FRAME.robot, pose=Pose(x_m=math.nan)))
    with pytest.raises(BadRequestError):
        perceiver.observe(lost)
    assert (perceiver.stats().num_refused, perceiver.stats().num_frames) == (1, 0)
