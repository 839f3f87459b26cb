"""Rules about what a step would do to the robot, people and things, judged on its rehearsal in the world as known."""

from collections.abc import Iterator, Sequence
from itertools import pairwise

from kv_agent_ros.harness.base import StepContext
from kv_agent_ros.harness.objections import Law, Objection, defer, reject, sampled, touched_objects
from kv_agent_ros.robot.base import Step
from kv_agent_ros.world.geometry import contains, distance_m, point_of
from kv_agent_ros.world.names import resolve_place
from kv_agent_ros.world.state import Location, PersonState, Point

DOCK = Step(skill='dock')
MAX_FUTURE_S = 1.0  # a stamp further ahead of our clock than this means that two clocks disagree


def world_is_fresh(law: Law, context: StepContext) -> Iterator[Objection]:
    """world.stale: the robot was observed recently enough, by a clock that agrees with ours."""
    robot = context.world.robot(context.robot_id)
    if robot is None:
        yield reject(f'{context.robot_id} has never been observed')
        return
    age_s = context.now_s - robot.stamp_s
    if age_s > law.policy.world_max_age_s:
        yield reject(f'the last observation is {age_s:.1f} s old, the limit is {law.policy.world_max_age_s:g} s')
    elif age_s < -MAX_FUTURE_S:
        yield reject(f'the last observation is {-age_s:.1f} s in the future; the clocks disagree')


def step_is_possible(law: Law, context: StepContext) -> Iterator[Objection]:
    """precondition: the rehearsal succeeds."""
    if not context.prediction.is_feasible:
        yield reject(context.prediction.reason)


def path_keeps_out(law: Law, context: StepContext) -> Iterator[Objection]:
    """zone.keep_out: neither the way nor the target lies in a zone of the map or in a room of the policy's list."""
    points = sampled(context.prediction.path)
    goals = _goals(context)
    for name, outline in _forbidden_areas(law, context):
        if any(contains(outline, goal) for goal in goals) or _enters(points, outline):
            yield reject(f'{context.step} would reach into {name}, where robots keep out')
    for room in law.policy.keep_out.rooms:
        if context.world.map.room(room) is None:
            yield reject(f'the policy keeps robots out of {room!r}, which this map does not have; correct the policy')


def people_are_clear(law: Law, context: StepContext) -> Iterator[Objection]:
    """person.near: the skill's clearance is kept, except by a way that only leads away from the person."""
    clearance_m = law.policy.people.clearance_m.get(context.step.skill, 0.0)
    path = sampled(context.prediction.path)
    for person in context.world.people:
        is_present = context.now_s - person.seen_s <= law.policy.people.memory_s
        if is_present and path and _comes_near(path, person, clearance_m):
            nearest_m = min(distance_m(point, person.position) for point in path)
            yield reject(
                f'{person.person_id} is {nearest_m:.2f} m from {context.step}, expected {clearance_m:g} m; wait'
            )


def battery_reaches_the_dock(law: Law, context: StepContext) -> Iterator[Objection]:
    """battery.reserve: after the step the robot can still reach the dock with the reserve left. Docking may always."""
    if context.step.skill == DOCK.skill or not context.prediction.is_feasible:
        return
    after = context.prediction.world.robot(context.robot_id)
    if after is None or DOCK.skill not in {skill.name for skill in context.skills}:
        return
    way_back = law.predict(context.prediction.world, context.robot_id, DOCK)
    if not way_back.is_feasible:
        if law.predict(context.world, context.robot_id, DOCK).is_feasible:
            yield reject(f'after {context.step} there is no way back to the dock: {way_back.reason}')
        return
    left = after.battery - way_back.battery_used
    if not left >= law.policy.battery_reserve:  # a charge that is not known is no charge
        yield reject(f'{left:.0%} would be left at the dock, the reserve is {law.policy.battery_reserve:.0%}; dock now')


def pour_goes_where_it_may(law: Law, context: StepContext) -> Iterator[Objection]:
    """pour.target: only into allowed furniture, and never onto, or over, an electrical thing."""
    if context.step.skill != 'pour':
        return
    place = resolve_place(context.world.map, context.step.text('target'))
    if not isinstance(place, Location):
        yield reject('pouring needs one piece of furniture as its target')
        return
    pour = law.policy.pour
    if place.category in pour.electrical:
        yield reject(f'{place.name} is electrical; no liquid onto it')
    elif place.kind not in pour.kinds and place.category not in pour.categories:
        yield reject(f'{place.name} is a {place.kind.value}; expected {", ".join(kind.value for kind in pour.kinds)}')
    for thing in context.world.objects:
        if thing.location == place.name and thing.category in pour.electrical:
            yield reject(f'{thing.object_id} is electrical and at {place.name}; take it away first')


def category_is_permitted(law: Law, context: StepContext) -> Iterator[Objection]:
    """category.forbidden: some things are never touched."""
    for thing in touched_objects(context):
        if thing.category in law.policy.forbidden_categories:
            yield reject(f'{thing.object_id} is a {thing.category}, which robots do not touch')


def person_has_approved(law: Law, context: StepContext) -> Iterator[Objection]:
    """approval.required: a person must approve this skill, or this kind of thing."""
    if context.step.skill in law.policy.approval.skills:
        yield defer(f'{context.step.skill} needs the approval of a person')
    for thing in touched_objects(context):
        if thing.category in law.policy.approval.categories:
            yield defer(f'{context.step} touches a {thing.category}, which needs the approval of a person')


def _forbidden_areas(law: Law, context: StepContext) -> list[tuple[str, tuple[Point, ...]]]:
    zones = [(f'the zone {zone.name}', zone.outline) for zone in context.world.map.zones]
    rooms = (context.world.map.room(name) for name in law.policy.keep_out.rooms)
    return zones + [(f'the room {room.name}', room.outline) for room in rooms if room is not None]


def _goals(context: StepContext) -> tuple[Point, ...]:
    target = context.step.text('target')
    place = resolve_place(context.world.map, target)
    places = (point_of(place.pose),) if isinstance(place, Location) else ()
    return places + tuple(point_of(thing.pose) for thing in context.world.find_objects(target))


def _enters(points: Sequence[Point], outline: Sequence[Point]) -> bool:
    """Whether the way goes into, or ends in, the area; one that begins there may lead out."""
    inside = [contains(outline, point) for point in points]
    if not inside:
        return False
    return inside[-1] or any(not a and b for a, b in pairwise(inside))


def _comes_near(path: Sequence[Point], person: PersonState, clearance_m: float) -> bool:
    distances = [distance_m(point, person.position) for point in path]
    nearest_m = min(distances)
    if nearest_m >= clearance_m:
        return False
    leads_away = len(path) > 1 and nearest_m == distances[0] and distances[-1] >= clearance_m
    return not leads_away
