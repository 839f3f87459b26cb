"""world_model_node as a World: the newest `world_state`, and a rehearsal computed here, so that it works offline.

States come many times a second and are looked at seldom: a message becomes a WorldState when somebody asks.
"""

import threading

from kv_agent_ros.deadline import Deadline
from kv_agent_ros.errors import UnreachableError
from kv_agent_ros.msg import WorldState as WorldMsg
from kv_agent_ros.robot.base import Skill, Step
from kv_agent_ros.ros.conversions.values import time_from_msg
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
        self._messages: list[WorldMsg] = []  # the newest one
        self._worlds: list[WorldState] = []  # the same as a value, once asked for
        self._topic = f'{namespace}world_state'
        endpoints.subscription(WorldMsg, self._topic, STATE, self._receive)

    def snapshot(self) -> WorldState:
        with self._changed:
            if not self._messages:
                raise UnreachableError(f'{self._topic}: expected a world state, none has come yet')
            return self._newest()

    def wait_newer(self, robot_id: str, stamp_s: float, deadline: Deadline) -> WorldState:
        with self._changed:
            while not self._is_newer(robot_id, stamp_s):
                deadline.check()
                self._changed.wait(min(POLL_S, max(deadline.remaining_s, 0.001)))
            return self._newest()

    def predict(self, world: WorldState, robot_id: str, step: Step) -> Prediction:
        return predict_step(world, robot_id, step, self._skills)

    def _is_newer(self, robot_id: str, stamp_s: float) -> bool:
        return any(
            robot.robot_id == robot_id and time_from_msg(robot.header.stamp) > stamp_s
            for message in self._messages
            for robot in message.robots
        )

    def _newest(self) -> WorldState:
        if not self._worlds:
            self._worlds = [world_from_msg(message) for message in self._messages]
        return self._worlds[0]

    def _receive(self, message: WorldMsg) -> None:
        with self._changed:
            self._messages, self._worlds = [message], []
            self._changed.notify_all()
