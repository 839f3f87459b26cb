"""A detector over the sightings of the simulated home, which have their labels already."""

from kv_agent_ros.perception.base import Detection
from kv_agent_ros.robot.sensing import Frame


class SimulatedDetector:
    """A Detector whose camera is the simulator."""

    @property
    def name(self) -> str:
        return 'simulated'

    def detect(self, frame: Frame) -> tuple[Detection, ...]:
        return tuple(
            Detection(
                object_id=sighting.object_id,
                label=sighting.category,
                pose=sighting.pose,
                confidence=sighting.confidence,
                location=sighting.location,
                room=sighting.room,
                properties=sighting.properties,
            )
            for sighting in frame.sightings
        )
