"""The simulated home: one pyrobosim world, its robots' bodies, liquids, people, doors, faults and time.

It holds what is true, and the one lock around it. What a robot does in it is in simulated.py and the skill files; what
a robot may know of it leaves through `sense`. It starts no thread: everything is brought up to date when asked for.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
import math
import threading

import numpy as np

from kv_agent_ros.errors import BadRequestError, CanceledError
from kv_agent_ros.robot.base import RobotState, Velocity
from kv_agent_ros.robot.body import DEADMAN_S, Body, Drive
from kv_agent_ros.robot.engine import FREE, Engine
from kv_agent_ros.robot.faults import FaultKind, Faults
from kv_agent_ros.robot.home_file import HomeSection
from kv_agent_ros.robot.pace import Pace
from kv_agent_ros.robot.people import position
from kv_agent_ros.robot.readings import (
    NO_CONTENT,
    door_readings,
    lidar_scan,
    robot_state,
    true_objects,
    with_pose_noise,
)
from kv_agent_ros.robot.sensing import DoorReading, Frame, HomeTruth, PersonPosition, Sighting
from kv_agent_ros.robot.view import gone, people_in_view, sightings

TICK_S = 0.05  # the longest time a velocity acts between two collision checks
LOOK_S = 0.001  # a look takes time, so the stamps of one robot's frames grow
EMPTY_BATTERY = 'an empty battery'
MAX_LINEAR_MPS = 1.0
MAX_ANGULAR_RADPS = 2.0


class SimulatedHome:
    """The ground truth, shared by its robots. Thread-safe. See home_setup.open_home for how to make one."""

    def __init__(
        self,
        *,
        engine: Engine,
        section: HomeSection,
        pace: Pace,
        faults: Faults,
        batteries: Mapping[str, float],
        clock: Callable[[], float],
        seed: int,
        pose_noise_m: float,
    ) -> None:
        self.section = section
        self.faults = faults
        self.pace = pace
        self._engine = engine
        self._contents = dict(section.contents)
        self._clock = clock
        self._seed = seed
        self._pose_noise_m = pose_noise_m
        self._lock = threading.Lock()
        now_s = pace.now_s()
        self._bodies = {
            name: Body(robot_id=name, battery=battery, settled_s=now_s) for name, battery in batteries.items()
        }

    @property
    def robot_ids(self) -> tuple[str, ...]:
        """The robots, in the order they were listed."""
        return tuple(self._bodies)

    def sim_time_s(self) -> float:
        """Simulated time, for /clock and for stamps."""
        return self.pace.now_s()

    def truth(self) -> HomeTruth:
        """Everything as it is now."""
        with self.engine() as engine:
            now_s = self.pace.now_s()
            return HomeTruth(
                stamp_s=now_s,
                objects=true_objects(engine, self._contents),
                robots=tuple(robot_state(engine, body, now_s) for body in self._bodies.values()),
                people=tuple(PersonPosition(person_id=n, position=p) for n, p in engine.people.items()),
                doors=door_readings(engine, self.section.doors),
            )

    def state(self, robot_id: str) -> RobotState:
        """That robot's own state, exact. Raises BadRequestError for an unknown robot."""
        with self.engine() as engine:
            return robot_state(engine, self._body(robot_id), self.pace.now_s())

    def sense(self, robot_id: str) -> Frame:
        """What that robot senses now. Raises BadRequestError for an unknown robot."""
        self.pace.skip(LOOK_S)
        with self.engine() as engine:
            body = self._body(robot_id)
            seen = self._seen(body)
            lost = gone(engine, robot_id, body.last_seen)
            for object_id in lost:
                del body.last_seen[object_id]
            body.last_seen |= {s.object_id: (s.pose.x_m, s.pose.y_m) for s in seen}
            exact = robot_state(engine, body, self.pace.now_s())
            state = with_pose_noise(exact, self._pose_noise_m, self._seed)
            return Frame(
                robot=state,
                stamp_s=state.stamp_s,
                lidar=lidar_scan(engine, robot_id),
                sightings=seen,
                gone=lost,
                people=people_in_view(engine, robot_id),
                doors=self._doors_of(state.room),
            )

    def sightings(self, robot_id: str) -> tuple[Sighting, ...]:
        """The objects that robot sees now, its current step's missed detections left out."""
        with self.engine():
            return self._seen(self._body(robot_id))

    def path_history(self, robot_id: str) -> tuple[tuple[float, float, float], ...]:
        """Where that robot has been: (time in s, x in m, y in m), oldest first."""
        with self.engine():
            return tuple(self._body(robot_id).path)

    def inject_fault(self, kind: FaultKind, target: str, count: int) -> None:
        """Let the next `count` occasions for this fault at `target` (or faults.ANY_TARGET) fail."""
        with self._lock:
            self.faults.inject(kind, target, count)

    def clear_faults(self) -> None:
        """Forget the injected faults that have not struck yet."""
        with self._lock:
            self.faults.clear()

    def strikes(self, kind: FaultKind, robot_id: str, *targets: str) -> bool:
        """Whether a fault happens to that robot on this occasion."""
        with self._lock:
            return self.faults.strikes(kind, robot_id, *targets)

    def fill_level(self, object_id: str) -> float:
        """How full an object is, 0..1; 0 for what holds nothing."""
        with self._lock:
            return self._contents.get(object_id, NO_CONTENT).fill_level

    def set_fill_level(self, object_id: str, fill_level: float) -> None:
        """Fill or empty a vessel. Raises BadRequestError when it is none, or the level is not 0..1."""
        with self._lock:
            content = self._contents.get(object_id)
            if content is None or not 0.0 <= fill_level <= 1.0:
                raise BadRequestError(
                    f'fill level: expected 0..1 of one of {sorted(self._contents)}, got {fill_level} of {object_id}'
                )
            self._contents[object_id] = replace(content, fill_level=fill_level)

    def remove_object(self, object_id: str) -> None:
        """Take an object out of the home, from wherever it is. Raises BadRequestError when there is none."""
        with self._lock:
            if not self._engine.things.remove(object_id):
                names = [thing.object_id for thing in self._engine.things.all()]
                raise BadRequestError(f'object: expected one of {names}, got {object_id}')

    @contextmanager
    def engine(self) -> Iterator[Engine]:
        """The world, up to date, for as long as the block runs; keep it short: everybody else waits."""
        with self._lock:
            self._bring_up_to_date()
            yield self._engine

    def begin_step(self, robot_id: str) -> bool:
        """Reserve the robot for one step; False when it is busy with another."""
        with self.engine() as engine:
            body = self._body(robot_id)
            if body.is_busy:
                return False
            body.stand_still()
            body.is_busy, body.is_halted = True, False
            body.unseen = frozenset()
            engine.blocked[robot_id] = frozenset()
            engine.busy.add(robot_id)
            self.pace.join(robot_id)
            return True

    def end_step(self, robot_id: str) -> None:
        """The step is over: the robot stands still and is free for the next one."""
        with self.engine() as engine:
            body = self._body(robot_id)
            body.stand_still()
            body.is_busy = False
            engine.blocked[robot_id] = frozenset()
            engine.busy.discard(robot_id)
            self.pace.leave(robot_id)

    def stop(self, robot_id: str) -> None:
        """The robot stands still when this returns; a running step ends as cancelled."""
        with self.engine():
            body = self._body(robot_id)
            body.is_halted = body.is_busy
            body.stand_still()

    def check_not_stopped(self, robot_id: str) -> None:
        """Raise CanceledError when the running step was stopped."""
        with self._lock:
            self._raise_if_halted(self._body(robot_id))

    def drive(self, robot_id: str, velocity: Velocity) -> None:
        """Hold a velocity, cut to what the motors can, until the next command, or until DEADMAN_S without one.

        Ignored while a step runs. Raises BadRequestError when it is not finite.
        """
        if not (math.isfinite(velocity.linear_mps) and math.isfinite(velocity.angular_radps)):
            raise BadRequestError(f'velocity: expected finite numbers, got {velocity}')
        with self.engine():
            body = self._body(robot_id)
            if not body.is_busy:
                now_s = self._clock()
                limited = _within_limits(velocity)
                body.velocity = limited
                body.drive = Drive(velocity=limited, since_s=now_s, until_s=now_s + DEADMAN_S)

    def move(self, robot_id: str, velocity: Velocity, duration_s: float) -> str:
        """Let a velocity act inside a step; FREE, or what stands in the way. Raises CanceledError when stopped."""
        with self.engine():
            body = self._body(robot_id)
            self._raise_if_halted(body)
            return self._move(body, velocity, duration_s)

    def rest(self, robot_id: str) -> None:
        """The robot stands still for now, inside a step."""
        with self.engine():
            self._body(robot_id).velocity = Velocity()

    def attach_charger(self, robot_id: str) -> None:
        """The robot, which stands in a bay, is docked and charges."""
        with self.engine():
            self._body(robot_id).is_docked = True

    def miss(self, robot_id: str, object_ids: frozenset[str]) -> None:
        """These objects are not detected by that robot until its next step."""
        with self._lock:
            self._body(robot_id).unseen = object_ids

    def _body(self, robot_id: str) -> Body:
        body = self._bodies.get(robot_id)
        if body is None:
            raise BadRequestError(f'robot: expected one of {sorted(self._bodies)}, got {robot_id}')
        return body

    def _raise_if_halted(self, body: Body) -> None:
        if body.is_halted:
            raise CanceledError('stopped')

    def _bring_up_to_date(self) -> None:
        for body in self._bodies.values():
            self._settle_drive(body)
            body.spend_until(self.pace.now_s())
        now_s = self.pace.now_s()
        phase = np.random.default_rng(self._seed).random()
        self._engine.people = {w.name: position(w, now_s, phase) for w in self.section.walkers}

    def _settle_drive(self, body: Body) -> None:
        """Let a driven velocity act for the time since it was last looked at, up to the deadman."""
        drive, now_s = body.drive, self._clock()
        left_s = self.pace.from_wall_s(max(0.0, min(now_s, drive.until_s) - drive.since_s))
        self.pace.skip(left_s)
        drive.since_s = min(now_s, drive.until_s)
        while left_s > 0 and self._move(body, drive.velocity, min(TICK_S, left_s)) == FREE:
            left_s -= TICK_S
        if left_s > 0 or (drive.until_s and now_s >= drive.until_s):
            body.stand_still()

    def _move(self, body: Body, velocity: Velocity, duration_s: float) -> str:
        if body.battery <= 0.0:
            return EMPTY_BATTERY
        body.velocity = velocity
        obstacle = self._engine.move(body.robot_id, velocity, duration_s)
        if obstacle != FREE:
            body.velocity = Velocity()
        elif velocity != Velocity():
            distance_m = abs(velocity.linear_mps) * duration_s
            body.has_moved(self._engine.pose(body.robot_id), distance_m, self.pace.now_s())
        return obstacle

    def _seen(self, body: Body) -> tuple[Sighting, ...]:
        visible = sightings(self._engine, self._contents, body.robot_id)
        return tuple(sighting for sighting in visible if sighting.object_id not in body.unseen)

    def _doors_of(self, room: str) -> tuple[DoorReading, ...]:
        """The doors that can be seen from a room or a hallway."""
        doors = door_readings(self._engine, self.section.doors)
        halls = self.section.doors
        return tuple(d for d in doors if room in (halls[d.name], *self._engine.hallway_rooms(halls[d.name])))


def _within_limits(velocity: Velocity) -> Velocity:
    return Velocity(
        linear_mps=max(-MAX_LINEAR_MPS, min(MAX_LINEAR_MPS, velocity.linear_mps)),
        angular_radps=max(-MAX_ANGULAR_RADPS, min(MAX_ANGULAR_RADPS, velocity.angular_radps)),
    )
