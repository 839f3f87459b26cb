"""The stage on which predict.py rehearses a step: the robot's costs, its reach, its moves, and the verdicts.

Everything here is a pure function of frozen values.
"""

from dataclasses import dataclass, replace

from kv_agent_ros.robot.base import Pose, RobotState, Skill, Step, Velocity
from kv_agent_ros.world.geometry import distance_m, point_of, short_of
from kv_agent_ros.world.properties import SEEN_SUFFIX, with_stamps
from kv_agent_ros.world.routes import NoRoute, find_route
from kv_agent_ros.world.state import Door, ObjectState, Point, Prediction, WorldState
from kv_agent_ros.world.update import carried_by

FILL_LEVEL = 'fill_level'


@dataclass(frozen=True, kw_only=True, slots=True)
class RobotCosts:
    """What the robot's acts take, at the pace of the simulated robot; the gate's budgets are checked against these."""

    speed_mps: float = 0.5
    detour: float = 1.25  # a real way against the straight one, turns included, in time and battery
    reach_m: float = 1.0
    find_s: float = 6.0
    inspect_s: float = 2.5
    pick_s: float = 2.5
    place_s: float = 2.5
    pour_s: float = 4.0
    door_s: float = 2.0
    dock_s: float = 2.0
    battery_per_m: float = 0.002  # fraction of a full battery
    battery_per_s: float = 0.00002  # fraction of a full battery, moving or not


DEFAULT_COSTS = RobotCosts()


@dataclass(frozen=True, kw_only=True, slots=True)
class Rehearsal:
    """One step about to be rehearsed by one robot in one world."""

    world: WorldState
    robot: RobotState
    step: Step
    skill: Skill
    costs: RobotCosts

    def fail(self, reason: str) -> Prediction:
        """The step cannot be done now."""
        return Prediction(is_feasible=False, reason=reason, world=self.world)

    def done(self, world: WorldState, act_s: float) -> Prediction:
        """The step takes `act_s` on the spot and leaves that world."""
        return self._spend(world, act_s, (point_of(self.robot.pose),), 0.0)

    def drive_to(self, goal: Pose, room: str, speed_mps: float, act_s: float) -> Prediction:
        """Drive to a pose, then act for `act_s`; infeasible when there is no way."""
        route = find_route(self.world, point_of(self.robot.pose), self.robot.room, point_of(goal), room)
        if isinstance(route, NoRoute):
            return self.fail(route.reason)
        robot = replace(self.robot, pose=goal, room=room, velocity=Velocity(), is_docked=False)
        return self._spend(
            with_robot(self.world, robot),
            self.costs.detour * route.length_m / speed_mps + act_s,
            route.path,
            route.length_m,
        )

    def drive_near(self, goal: Point, room: str, act_s: float) -> Prediction:
        """Drive until the goal is within reach, then act for `act_s`."""
        here = point_of(self.robot.pose)
        away_m = distance_m(here, goal)
        if self.robot.room == room and away_m <= self.costs.reach_m:
            return self.done(self.world, act_s)
        route = find_route(self.world, here, self.robot.room, goal, room)
        if isinstance(route, NoRoute):
            return self.fail(route.reason)
        stop = short_of(route.path[-2], goal, self.costs.reach_m)
        return self.drive_to(Pose(x_m=stop[0], y_m=stop[1]), room, self.costs.speed_mps, act_s)

    def _spend(self, world: WorldState, duration_s: float, path: tuple[Point, ...], length_m: float) -> Prediction:
        robot = world.robot(self.robot.robot_id) or self.robot
        used = self.costs.detour * length_m * self.costs.battery_per_m + duration_s * self.costs.battery_per_s
        if used > robot.battery:
            return self.fail(f'needs {used:.1%} of battery, {robot.battery:.1%} is left')
        stamp_s = self.world.stamp_s + duration_s
        spent = replace(robot, battery=robot.battery - used, stamp_s=stamp_s)
        return Prediction(
            is_feasible=True,
            reason='',
            world=replace(with_robot(world, spent), stamp_s=stamp_s),
            duration_s=duration_s,
            distance_m=length_m,
            battery_used=used,
            path=path,
        )


def with_robot(world: WorldState, robot: RobotState) -> WorldState:
    """The world with that robot's state, and what it holds moved along."""
    robots = tuple(robot if each.robot_id == robot.robot_id else each for each in world.robots)
    objects = tuple(
        carried_by(robot, thing, thing.seen_s) if thing.object_id == robot.holding else thing for thing in world.objects
    )
    return replace(world, robots=robots, objects=objects)


def with_object(world: WorldState, thing: ObjectState) -> WorldState:
    """The world with that object added, or replaced by id."""
    objects = {each.object_id: each for each in (*world.objects, thing)}
    return replace(world, objects=tuple(objects[object_id] for object_id in sorted(objects)))


def with_door(world: WorldState, door: Door) -> WorldState:
    """The world with that door's state."""
    doors = {each.name: each for each in (*world.doors, door)}
    return replace(world, doors=tuple(doors.values()))


def hypothetical(category: str, robot: RobotState, stamp_s: float) -> ObjectState:
    """The object a `find` may turn up: its category as id, confidence 0, before the robot, no property known."""
    return ObjectState(
        object_id=category, category=category, seen_s=stamp_s, pose=robot.pose, room=robot.room, confidence=0.0
    )


def is_hypothetical(thing: ObjectState) -> bool:
    """Whether the object was only rehearsed, never seen."""
    return thing.confidence == 0.0


def measured(thing: ObjectState, stamp_s: float) -> ObjectState:
    """The object after a rehearsed look: its fill level has a later stamp; a value that was unknown is not guessed."""
    stamped = with_stamps(thing)
    return replace(stamped, seen_s=stamp_s, properties={**stamped.properties, FILL_LEVEL + SEEN_SUFFIX: stamp_s})
