"""The planner that needs no model: intents → the steps a careful person would write down.

Deterministic. It keeps a small picture of where the robot would be and what it would hold, adds the steps that the
sentence leaves out (find before inspect, pick before pour, put back after), and refuses what it cannot plan.
"""

from copy import deepcopy
from dataclasses import dataclass, field
from itertools import groupby

from kv_agent_ros.agent.intent import ORIGIN, Guard, Intent, Reading, Verb
from kv_agent_ros.robot.base import Argument, Step
from kv_agent_ros.robot.plan import Branch, Plan, PlanSource
from kv_agent_ros.world.geometry import distance_m, point_of
from kv_agent_ros.world.state import Location, LocationKind, ObjectState, Point, WorldState


@dataclass(frozen=True, kw_only=True, slots=True)
class Draft:
    """A plan, or the reason why there is none; `plan` is None exactly when `reason` is not empty."""

    plan: Plan | None
    reason: str = ''


def draft_plan(reading: Reading, world: WorldState, robot_id: str) -> Draft:
    """The plan for what was read; refuses an instruction of which any part was not understood."""
    if reading.unread:
        return Draft(plan=None, reason=f'not understood: {"; ".join(reading.unread)}')
    maker = _PlanMaker(world, robot_id)
    try:
        for guards, group in groupby(reading.intents, key=lambda intent: intent.guards):
            maker.add_group(guards, tuple(group))
        maker.finish(reading.intents)
    except _NoPlan as error:
        return Draft(plan=None, reason=str(error))
    return Draft(plan=Plan(steps=tuple(maker.steps), branches=tuple(maker.branches), source=PlanSource.RULE))


class _NoPlan(Exception):
    """Raised inside this module only, with the reason."""


@dataclass(slots=True)
class _Picture:
    """What the robot would know and be after the steps so far; '' = not certain."""

    place: str = ''
    holding: str = ''
    found: set[str] = field(default_factory=set)
    inspected: set[str] = field(default_factory=set)
    origins: dict[str, str] = field(default_factory=dict)


class _PlanMaker:
    """Collects steps and branches, group by group of equal guards."""

    def __init__(self, world: WorldState, robot_id: str) -> None:
        self.steps: list[Step] = []
        self.branches: list[Branch] = []
        self._world = world
        robot = world.robot(robot_id)
        self._here: Point = point_of(robot.pose) if robot is not None else (0.0, 0.0)
        self._room = robot.room if robot is not None else ''
        self._at = _Picture(holding=robot.holding if robot is not None else '')
        self._at_branch = _Picture()
        self._arm: tuple[int, bool] = (0, True)

    def add_group(self, guards: tuple[Guard, ...], intents: tuple[Intent, ...]) -> None:
        """Add consecutive intents under the same guards."""
        if guards and len(guards) != 1:
            raise _NoPlan('more than one condition at once')
        if guards:
            self._enter(guards[0])
        for intent in intents:
            _DOERS[intent.verb](self, intent)
        if guards:
            self._at.place = ''
            self._arm = (0, True)

    def finish(self, intents: tuple[Intent, ...]) -> None:
        """Refuse a plan that does nothing."""
        if not self.steps:
            raise _NoPlan(f'nothing to do for {", ".join(map(str, intents)) or "this instruction"}')

    def _enter(self, guard: Guard) -> None:
        """Open a branch, or the other arm of the one just read: then nothing of the first arm has happened."""
        is_other_arm = bool(self.branches) and self.branches[-1].condition == guard.condition
        if is_other_arm and self.steps[-1].branch_id:
            self._at = deepcopy(self._at_branch)
        else:
            self._see(guard.condition.target, is_close=True)
            self._at_branch = deepcopy(self._at)
            self.branches.append(Branch(branch_id=len(self.branches) + 1, condition=guard.condition))
        self._arm = (len(self.branches), guard.arm)

    def _do(self, skill: str, **arguments: Argument) -> None:
        branch_id, arm = self._arm
        self.steps.append(Step(skill=skill, arguments=arguments, branch_id=branch_id, arm=arm))

    def _go(self, place: str) -> None:
        if self._at.place != place:
            self._do('navigate', target=place)
            self._at.place = place

    def _see(self, subject: str, *, is_close: bool) -> None:
        """Find the object, and look at it closely where its state or a grasp depends on it."""
        if self._at.holding and self._holds(subject):
            self._at.inspected.add(subject)
            return
        if subject not in self._at.found:
            self._approach(subject)
            self._do('find', target=subject)
            self._at.found.add(subject)
        if is_close and subject not in self._at.inspected:
            self._do('inspect', target=subject)
            self._at.inspected.add(subject)
            self._at.origins[subject] = self._surface_of(subject)
            self._at.place = self._at.origins[subject] or self._at.place

    def _approach(self, subject: str) -> None:
        known = self._known(subject)
        if any(step.skill == 'navigate' for step in self.steps):
            return
        place = known.location if known and self._world.map.location(known.location) else known.room if known else ''
        if not place:
            raise _NoPlan(f'where is the {subject}? Nobody has seen one; say in which room to look')
        self._go(place)

    def _known(self, subject: str) -> ObjectState | None:
        found = self._world.find_objects(subject)
        return found[0] if len(found) == 1 else None

    def _holds(self, subject: str) -> bool:
        held = self._at.holding
        return held == subject or any(thing.object_id == held for thing in self._world.find_objects(subject))

    def _surface_of(self, subject: str) -> str:
        """Where the object stands now, as far as known; '' otherwise."""
        known = self._known(subject)
        place = self._world.map.location(known.location) if known else None
        return place.name if place is not None and place.kind is LocationKind.SURFACE else ''

    def _take(self, subject: str) -> None:
        if self._at.holding and self._holds(subject):
            return
        if self._at.holding:
            raise _NoPlan(f'the gripper holds {self._at.holding}; say where to put it first')
        self._see(subject, is_close=True)
        self._do('pick', target=subject)
        self._at.holding = subject

    def _put(self, subject: str, place: str) -> None:
        self._take(subject)
        room = self._world.map.room(place)
        target = place if room is None else self._surface_in(room.name)
        if not target:
            raise _NoPlan(f'nothing in {place} to put the {subject} on')
        self._go(target)
        self._do('place', target=target)
        self._at.holding = ''

    def _origin(self, subject: str) -> str:
        origin = self._at.origins.get(subject) or self._surface_in(self._room_of_last_go())
        if not origin:
            raise _NoPlan(f'where to put the {subject} back? No surface is known near it')
        return origin

    def _room_of_last_go(self) -> str:
        places = [step.text('target') for step in self.steps if step.skill == 'navigate']
        for name in places:
            location = self._world.map.location(name)
            if location is None or location.kind is LocationKind.SURFACE:
                return name if location is None else location.room
        return self._at.place or self._room

    def _surface_in(self, room: str) -> str:
        return next(
            (p.name for p in self._world.map.locations if p.room == room and p.kind is LocationKind.SURFACE), ''
        )

    def _sink(self) -> str:
        """The sink of the room the robot works in, else the nearest one."""
        room = self._room_of_last_go()
        sinks = [place for place in self._world.map.locations if place.kind is LocationKind.SINK]
        if not sinks:
            raise _NoPlan('pour: this home has no sink')
        centre = self._centre(room)
        return min(sinks, key=lambda sink: (sink.room != room, distance_m(centre, point_of(sink.approach)))).name

    def _centre(self, room: str) -> Point:
        outlined = self._world.map.room(room)
        if outlined is None:
            return self._here
        xs, ys = zip(*outlined.outline, strict=True)
        return (sum(xs) / len(xs), sum(ys) / len(ys))

    def go(self, intent: Intent) -> None:
        self._go(intent.place)

    def find(self, intent: Intent) -> None:
        self._see(intent.subject, is_close=False)

    def check(self, intent: Intent) -> None:
        self._see(intent.subject, is_close=True)

    def pick(self, intent: Intent) -> None:
        self._take(intent.subject)

    def put(self, intent: Intent) -> None:
        self._take(intent.subject)
        self._put(intent.subject, self._origin(intent.subject) if intent.place == ORIGIN else intent.place)

    def pour(self, intent: Intent) -> None:
        self._take(intent.subject)
        sink = intent.place or self._sink()
        self._go(sink)
        self._do('pour', target=sink, fraction=intent.amount)

    def turn_door(self, intent: Intent) -> None:
        door = next((door for door in self._world.map.doors if door.name == intent.subject), None)
        if door is None:
            raise _NoPlan(f'there is no door {intent.subject}')
        if (self._room_of(self._at.place) or self._room) not in door.rooms:
            self._go(door.rooms[0])
        self._do(intent.verb.value, target=intent.subject)

    def wait(self, intent: Intent) -> None:
        self._do('wait', duration_s=intent.amount)

    def dock(self, intent: Intent) -> None:
        self._do('dock')
        self._at.place = ''

    def _room_of(self, place: str) -> str:
        location: Location | None = self._world.map.location(place)
        return location.room if location is not None else place


_DOERS = {
    Verb.GO: _PlanMaker.go,
    Verb.FIND: _PlanMaker.find,
    Verb.CHECK: _PlanMaker.check,
    Verb.PICK: _PlanMaker.pick,
    Verb.PUT: _PlanMaker.put,
    Verb.POUR: _PlanMaker.pour,
    Verb.OPEN: _PlanMaker.turn_door,
    Verb.CLOSE: _PlanMaker.turn_door,
    Verb.WAIT: _PlanMaker.wait,
    Verb.DOCK: _PlanMaker.dock,
}
