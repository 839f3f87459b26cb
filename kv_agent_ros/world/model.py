"""The shared world model: observations in, snapshots out, rehearsals on the side.

It owns the ledger behind one lock; the rules of merging (update.py) and of rehearsing (predict.py) are pure functions.
"""

import math
import threading

from kv_agent_ros.deadline import Deadline
from kv_agent_ros.errors import BadRequestError
from kv_agent_ros.robot.base import Skill, Step
from kv_agent_ros.robot.skills import HOUSEHOLD_SKILLS
from kv_agent_ros.world.predict import predict_step
from kv_agent_ros.world.rehearsal import DEFAULT_COSTS, RobotCosts
from kv_agent_ros.world.state import Observation, Prediction, WorldMap, WorldState
from kv_agent_ros.world.update import Ledger, apply_observation

CANCEL_POLL_S = 0.05  # a Deadline's cancel cannot wake a condition variable; this bounds how late it is noticed


class WorldModel:
    """A World in this process."""

    def __init__(
        self,
        world_map: WorldMap,
        *,
        skills: tuple[Skill, ...] = HOUSEHOLD_SKILLS,
        costs: RobotCosts = DEFAULT_COSTS,
    ) -> None:
        self._skills = skills
        self._costs = costs
        self._ledger = Ledger(world=WorldState(map=world_map, doors=world_map.doors))
        self._changed = threading.Condition()

    def apply(self, observation: Observation) -> WorldState:
        """Merge one observation and wake the waiters; returns the state after it.

        Raises BadRequestError when a stamp or a place is not finite or the robot has no name.
        """
        _check(observation)
        with self._changed:
            self._ledger = apply_observation(self._ledger, observation)
            self._changed.notify_all()
            return self._ledger.world

    def snapshot(self) -> WorldState:
        """The latest state; before the first observation, the bare map."""
        with self._changed:
            return self._ledger.world

    def wait_newer(self, robot_id: str, stamp_s: float, deadline: Deadline) -> WorldState:
        """A state in which that robot was observed later than `stamp_s`. Raises DeadlineError or CanceledError."""
        with self._changed:
            while True:
                world = self._ledger.world
                robot = world.robot(robot_id)
                if robot is not None and robot.stamp_s > stamp_s:
                    return world
                deadline.check()
                self._changed.wait(min(CANCEL_POLL_S, deadline.remaining_s))

    def predict(self, world: WorldState, robot_id: str, step: Step) -> Prediction:
        """Rehearse one step in a state, without changing it."""
        return predict_step(world, robot_id, step, self._skills, self._costs)


def _check(observation: Observation) -> None:
    if not observation.robot.robot_id:
        raise BadRequestError('observation: expected the name of the robot that saw it, got none')
    stamps = [observation.stamp_s, observation.robot.stamp_s]
    stamps += [thing.seen_s for thing in observation.objects] + [person.seen_s for person in observation.people]
    poses = [observation.robot.pose, *(thing.pose for thing in observation.objects)]
    places = [(pose.x_m, pose.y_m, pose.yaw_rad) for pose in poses] + [person.position for person in observation.people]
    _expect_finite(observation, 'stamps', stamps)
    _expect_finite(observation, 'places', [value for place in places for value in place])


def _expect_finite(observation: Observation, what: str, values: list[float]) -> None:
    bad = [value for value in values if not math.isfinite(value)]
    if bad:
        raise BadRequestError(f'observation of {observation.robot.robot_id}: expected finite {what}, got {bad[0]}')
