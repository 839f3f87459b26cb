"""The post-condition of each skill, read only from an observation taken after the act.

Neither the robot's "done" nor what was believed before counts: an object must have been seen, a level measured, later
than the robot's last report before the act. An unknown is a failed check, with a sentence that says what is missing.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from kv_agent_ros.robot.base import Argument, RobotState, Step
from kv_agent_ros.world.base import EffectCheck
from kv_agent_ros.world.geometry import distance_m, point_of
from kv_agent_ros.world.names import Ambiguous, Missing, resolve_door, resolve_place
from kv_agent_ros.world.properties import is_stamp, number, property_seen_s
from kv_agent_ros.world.standing import is_at
from kv_agent_ros.world.state import Location, ObjectState, WorldState

NEAR_M = 0.75  # a robot this close to its goal has arrived
CLOSE_M = 1.5  # from where an object is looked at closely
FILL_LEVEL = 'fill_level'
FILL_TOLERANCE = 0.08  # fraction; what a camera's level and a pour may be off together


@dataclass(frozen=True, kw_only=True, slots=True)
class _Scene:
    """The step, the robot after it, and what was known before and after."""

    step: Step
    robot: RobotState
    before: WorldState
    after: WorldState
    since_s: float  # the robot's last report before the act

    @property
    def target(self) -> str:
        return self.step.text('target')


def check_effect(step: Step, robot_id: str, before: WorldState, after: WorldState) -> EffectCheck:
    """Whether the world after the act is what the step promised; `evidence` is one sentence with the numbers."""
    robot, earlier = after.robot(robot_id), before.robot(robot_id)
    if robot is None:
        return _missed(f'{robot_id} was not observed after {step.skill}')
    since_s = earlier.stamp_s if earlier is not None else float('-inf')
    if robot.stamp_s <= since_s:
        return _missed(f'no observation of {robot_id} is later than the act, so {step.skill} has no evidence')
    if step.skill not in CHECKS:
        return _missed(f'no post-condition is known for {step.skill}')
    return CHECKS[step.skill](_Scene(step=step, robot=robot, before=before, after=after, since_s=since_s))


def _met(evidence: str) -> EffectCheck:
    return EffectCheck(is_met=True, evidence=evidence)


def _missed(evidence: str) -> EffectCheck:
    return EffectCheck(is_met=False, evidence=evidence)


def _check(is_met: bool, evidence: str) -> EffectCheck:
    return EffectCheck(is_met=is_met, evidence=evidence)


def _navigated(scene: _Scene) -> EffectCheck:
    place = resolve_place(scene.after.map, scene.target)
    if isinstance(place, (Missing, Ambiguous)):
        return _missed(place.reason)
    if not isinstance(place, Location):
        return _check(scene.robot.room == place.name, f'the robot is in {scene.robot.room or "no known room"}')
    away_m = distance_m(point_of(scene.robot.pose), point_of(place.approach))
    where = f'in {scene.robot.room or "no known room"}, {away_m:.2f} m from the approach to {place.name}'
    return _check(is_at(scene.robot, place, NEAR_M), f'the robot is {where}')


def _found(scene: _Scene) -> EffectCheck:
    seen = [thing for thing in scene.after.find_objects(scene.target) if thing.seen_s > scene.since_s]
    if not seen:
        return _missed(f'no {scene.target} was seen since')
    latest = max(seen, key=lambda thing: (thing.seen_s, thing.object_id))
    where = latest.location or latest.room or 'a place unknown'
    return _met(f'{latest.object_id} was seen {latest.seen_s - scene.since_s:.2f} s later, at {where}')


def _inspected(scene: _Scene) -> EffectCheck:
    """Something of it was measured; or, for a thing that shows nothing to measure, it was seen from close by."""
    things = scene.after.find_objects(scene.target)
    for thing in things:
        fresh = [name for name in thing.properties if not is_stamp(name) and _is_fresh(scene, thing, name)]
        if fresh:
            values = ', '.join(f'{name} {_shown(thing.properties[name])}' for name in sorted(fresh))
            return _met(f'{thing.object_id} was measured: {values}')
    for thing in things:
        away_m = distance_m(point_of(scene.robot.pose), point_of(thing.pose))
        if thing.seen_s > scene.since_s and away_m <= CLOSE_M and not thing.properties:
            return _met(f'{thing.object_id} was seen from {away_m:.2f} m; nothing to measure')
    return _missed(f'nothing of {scene.target} was measured since')


def _is_fresh(scene: _Scene, thing: ObjectState, name: str) -> bool:
    return property_seen_s(thing, name) > scene.since_s


def _shown(value: Argument) -> str:
    return value if isinstance(value, str) else f'{value:.2f}'


def _picked(scene: _Scene) -> EffectCheck:
    meant = {thing.object_id for thing in scene.before.find_objects(scene.target)}
    held = scene.robot.holding
    if not held:
        return _missed('the gripper is empty')
    is_right = held in meant or (not meant and held == scene.target)
    return _check(is_right, f'the gripper holds {held}')


def _placed(scene: _Scene) -> EffectCheck:
    earlier = scene.before.robot(scene.robot.robot_id)
    name = earlier.holding if earlier is not None else ''
    place = resolve_place(scene.after.map, scene.target)
    if isinstance(place, (Missing, Ambiguous)):
        return _missed(place.reason)
    if not name:
        return _missed('the gripper was empty before the act, so nothing was placed')
    if scene.robot.holding:
        return _missed(f'the gripper still holds {scene.robot.holding}')
    thing = _object(scene.after, name)
    if thing is None or thing.seen_s <= scene.since_s or not thing.location:
        return _missed(f'the gripper is empty, but {name} was not seen anywhere since')
    return _check(thing.location == place.name, f'{name} was seen on {thing.location}')


def _poured(scene: _Scene) -> EffectCheck:
    earlier = scene.before.robot(scene.robot.robot_id)
    name = earlier.holding if earlier is not None else ''
    old, new = _object(scene.before, name), _object(scene.after, name)
    level_before = None if old is None else number(old, FILL_LEVEL)
    level_after = None if new is None else number(new, FILL_LEVEL)
    if not name or level_before is None:
        return _missed(f'the fill level of {name or "the held object"} before the act is unknown')
    if new is None or level_after is None or property_seen_s(new, FILL_LEVEL) <= scene.since_s:
        return _missed(f'the fill level of {name} was not measured since')
    expected = level_before * (1.0 - scene.step.number('fraction', 0.5))
    evidence = f'{name} was {level_before:.0%} full, is {level_after:.0%} full, expected {expected:.0%}'
    return _check(abs(level_after - expected) <= FILL_TOLERANCE, evidence)


def _turned(scene: _Scene) -> EffectCheck:
    door = resolve_door(scene.after, scene.target)
    if isinstance(door, (Missing, Ambiguous)):
        return _missed(door.reason)
    if door.seen_s <= scene.since_s:
        return _missed(f'{door.name} was not seen since')
    state = 'open' if door.is_open else 'closed'
    return _check(door.is_open == (scene.step.skill == 'open'), f'{door.name} is {state}')


def _docked(scene: _Scene) -> EffectCheck:
    charge = f'battery {scene.robot.battery:.0%}'
    return _check(scene.robot.is_docked, f'the robot is {"" if scene.robot.is_docked else "not "}docked, {charge}')


def _waited(scene: _Scene) -> EffectCheck:
    return _met(f'observed {scene.robot.stamp_s - scene.since_s:.2f} s later')


def _object(world: WorldState, object_id: str) -> ObjectState | None:
    return next((thing for thing in world.objects if thing.object_id == object_id), None)


CHECKS: Mapping[str, Callable[[_Scene], EffectCheck]] = {
    'navigate': _navigated,
    'find': _found,
    'inspect': _inspected,
    'pick': _picked,
    'place': _placed,
    'pour': _poured,
    'open': _turned,
    'close': _turned,
    'dock': _docked,
    'wait': _waited,
}
