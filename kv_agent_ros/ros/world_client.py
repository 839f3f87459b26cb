"""world_model_node as a World: the newest `world_state`, and a rehearsal computed here, so that it works offline."""

import threading

from kv_agent_ros.deadline import Deadline
from kv_agent_ros.errors import UnreachableError
from kv_agent_ros.msg import WorldState as WorldMsg
from kv_agent_ros.robot.base import Skill, Step
from kv_agent_ros.ros.conversions.world import world_from_msg
from kv_agent_ros.ros.endpoints import Endpoints
from kv_agent_ros.ros.qos import STATE
from kv_agent_ros.world.predict import predict_step
from kv_agent_ros.world.state import Prediction, WorldState

POLL_S = 0.1


class RosWorld:
    """Keeps the last state that was published; says so when there is none."""

    def __init__(self, endpoints: Endpoints, namespace: str, skills: tuple[Skill, ...]) -> None:
        self._skills = skills
        self._changed = threading.Condition()
        self._latest: list[WorldState] = []
        self._topic = f'{namespace}world_state'
        endpoints.subscription(WorldMsg, self._topic, STATE, self._receive)

    def snapshot(self) -> WorldState:
        with self._changed:
            if not self._latest:
                raise UnreachableError(f'{self._topic}: expected a world state, none has come yet')
            return self._latest[0]

    def wait_newer(self, robot_id: str, stamp_s: float, deadline: Deadline) -> WorldState:
        with self._changed:
            while True:
                deadline.check()
                for world in self._latest:
                    robot = world.robot(robot_id)
                    if robot is not None and robot.stamp_s > stamp_s:
                        return world
                self._changed.wait(min(POLL_S, max(deadline.remaining_s, 0.001)))

    def predict(self, world: WorldState, robot_id: str, step: Step) -> Prediction:
        return predict_step(world, robot_id, step, self._skills)

    def _receive(self, message: WorldMsg) -> None:
        world = world_from_msg(message)
        with self._changed:
            self._latest = [world]
            self._changed.notify_all()
