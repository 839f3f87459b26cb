"""A Robot in a SimulatedHome: checks a step, does it with the skill's function, and always ends standing still."""

from collections.abc import Callable, Mapping
import math
from types import MappingProxyType

from kv_agent_ros.deadline import Deadline
from kv_agent_ros.errors import CanceledError, DeadlineError, Outcome
from kv_agent_ros.robot.act import DONE, Act, failure
from kv_agent_ros.robot.base import ArgumentKind, Parameter, RobotState, Skill, Step, StepResult, Velocity
from kv_agent_ros.robot.handling import find, inspect, pick, place, pour
from kv_agent_ros.robot.home import SimulatedHome
from kv_agent_ros.robot.skills import HOUSEHOLD_SKILLS, skill_by_name
from kv_agent_ros.robot.travel import SPEED_MPS, go_to

TURN_DOOR_S = 1.0
DOCKING_S = 1.0
DOCK_KIND = 'dock'
SINK_KIND = 'sink'


class SimulatedRobot:
    """One robot of a home. Thread-safe; one step at a time."""

    def __init__(self, home: SimulatedHome, robot_id: str) -> None:
        home.state(robot_id)
        self._home = home
        self._robot_id = robot_id
        self._skills = skill_by_name(HOUSEHOLD_SKILLS)

    def skills(self) -> tuple[Skill, ...]:
        return HOUSEHOLD_SKILLS

    def state(self) -> RobotState:
        return self._home.state(self._robot_id)

    def execute(self, step: Step, deadline: Deadline) -> StepResult:
        problem = self._problem(step)
        if problem:
            return failure(Outcome.INVALID_ACTION, problem)
        if not self._home.begin_step(self._robot_id):
            return failure(Outcome.EXECUTION_FAILURE, f'busy: {self._robot_id} is doing another step')
        act = Act(self._home, self._robot_id, step, deadline)
        try:
            result = SKILL_FUNCTIONS[step.skill](act)
        except (CanceledError, DeadlineError) as ending:
            result = failure(ending.outcome, f'{step}: {ending}')
        finally:
            self._home.end_step(self._robot_id)
        return StepResult(outcome=result.outcome, message=result.message, duration_s=round(act.elapsed_s, 3))

    def drive(self, velocity: Velocity) -> None:
        self._home.drive(self._robot_id, velocity)

    def stop(self) -> None:
        self._home.stop(self._robot_id)

    def _problem(self, step: Step) -> str:
        """Why a step is no valid call of a skill; '' when it is one."""
        skill = self._skills.get(step.skill)
        if skill is None:
            return f'skill: expected one of {sorted(self._skills)}, got {step.skill!r}'
        unknown = set(step.arguments) - {parameter.name for parameter in skill.parameters}
        if unknown:
            return f'{step.skill}: unknown arguments {sorted(unknown)}'
        problems = (self._argument_problem(step, parameter) for parameter in skill.parameters)
        return next((problem for problem in problems if problem), '')

    def _argument_problem(self, step: Step, parameter: Parameter) -> str:
        name = parameter.name
        if name not in step.arguments and parameter.kind is not ArgumentKind.NUMBER:
            return f'{step.skill}: {name} is missing'
        if parameter.kind is ArgumentKind.NUMBER:
            return _number_problem(step, parameter)
        if parameter.kind is ArgumentKind.DOOR and step.text(name) not in self._home.section.doors:
            return (
                f'{step.skill}: expected one of the doors {sorted(self._home.section.doors)}, got {step.text(name)!r}'
            )
        if parameter.kind is ArgumentKind.PLACE:
            return self._place_problem(step, step.text(name))
        return ''

    def _place_problem(self, step: Step, place: str) -> str:
        with self._home.engine() as engine:
            if not engine.stands(place):
                return f'{step.skill}: no place {place!r} in this home'
            category = engine.locations().get(engine.place(place), '')
        kind = self._home.section.kinds.get(category, 'room')
        if step.skill == 'pour' and kind != SINK_KIND:
            return f'pour: {place} is no sink'
        if step.skill == 'place' and kind in ('room', DOCK_KIND):
            return f'place: nothing can be put on {place}'
        return ''


def _number_problem(step: Step, parameter: Parameter) -> str:
    try:
        value = step.number(parameter.name, parameter.default)
    except ValueError:
        value = math.nan
    if parameter.minimum <= value <= parameter.maximum:
        return ''
    return f'{step.skill}: {parameter.name}: expected {parameter.minimum}..{parameter.maximum}, got {value}'


def navigate(act: Act) -> StepResult:
    """Drive to a room or a location."""
    with act.home.engine() as engine:
        stands = engine.stands(act.step.text('target'))
    return go_to(act, stands, act.step.number('speed_mps', SPEED_MPS))


def dock(act: Act) -> StepResult:
    """Drive into the first free bay and charge."""
    kinds = act.home.section.kinds
    with act.home.engine() as engine:
        docks = [name for name, category in engine.locations().items() if kinds.get(category) == DOCK_KIND]
        bays = [bay for name in docks for bay in engine.stands(name)]
    arrived = go_to(act, bays)
    if arrived.is_success:
        act.stand(DOCKING_S)
        act.home.attach_charger(act.robot_id)
    return arrived


def open_door(act: Act) -> StepResult:
    """Go to a door and open it."""
    return _turn_door(act, 'open')


def close_door(act: Act) -> StepResult:
    """Go to a door and close it."""
    return _turn_door(act, 'close')


def _turn_door(act: Act, verb: str) -> StepResult:
    door = act.step.text('target')
    hallway = act.home.section.doors[door]
    here = act.pose()
    with act.home.engine() as engine:
        ends = engine.hallway_ends(hallway)
    arrived = go_to(act, sorted(ends, key=lambda end: math.dist((end.x_m, end.y_m), (here.x_m, here.y_m))))
    if not arrived.is_success:
        return arrived
    act.stand(TURN_DOOR_S)
    with act.home.engine() as engine:
        is_turned = engine.open_door(hallway) if verb == 'open' else engine.close_door(hallway)
    return DONE if is_turned else failure(Outcome.PRECONDITION_FAILURE, f'{door}: a robot stands in the doorway')


def wait(act: Act) -> StepResult:
    """Stand still for a while."""
    act.stand(act.step.number('duration_s', 1.0))
    return DONE


SKILL_FUNCTIONS: Mapping[str, Callable[[Act], StepResult]] = MappingProxyType(
    {
        'navigate': navigate,
        'find': find,
        'inspect': inspect,
        'pick': pick,
        'place': place,
        'pour': pour,
        'open': open_door,
        'close': close_door,
        'wait': wait,
        'dock': dock,
    }
)
