"""All rules of the gate, in one list. A rule more is a function in one of the two rule files and a line here.

Ids are part of the interface: planners, people and the audit know rules by them.
"""

from kv_agent_ros.harness.base import Rule
from kv_agent_ros.harness.objections import FunctionRule, Law, Test
from kv_agent_ros.harness.request_rules import (
    arguments_fit_the_skill,
    names_are_known,
    names_mean_one_thing,
    numbers_are_in_range,
    skill_is_known,
)
from kv_agent_ros.harness.world_rules import (
    battery_reaches_the_dock,
    category_is_permitted,
    path_keeps_out,
    people_are_clear,
    person_has_approved,
    pour_goes_where_it_may,
    step_is_possible,
    world_is_fresh,
)

GATE_ERROR = 'gate.error'  # a rule or the rehearsal broke: no
PLAN_BUDGET = 'plan.budget'  # too many steps, too long, too many ways through
PLAN_EXPIRED = 'plan.expired'  # unknown, void or denied: check it again
STEP_ORDER = 'step.order'  # a step that was done already, or after a later one was
BRANCH_CONDITION = 'branch.condition'  # the world does not say what the branch needs
ROBOT_BUSY = 'robot.busy'  # another step is being done
ROBOT_UNKNOWN = 'robot.unknown'  # this harness holds no such robot
AUDIT_FAILED = 'audit.failed'  # what cannot be recorded is not done
PERSON_NEAR = 'person.near'
WORLD_STALE = 'world.stale'  # also: the world model does not answer
APPROVAL_PENDING = 'approval.pending'  # a person has not decided yet
ESTOP_LATCHED = 'estop.latched'  # a person must reset the emergency stop first

TRANSIENT = frozenset({PERSON_NEAR, WORLD_STALE})  # what may pass by itself while the robot stands and waits

REQUEST_RULES: tuple[tuple[str, Test], ...] = (
    ('skill.unknown', skill_is_known),
    ('argument.schema', arguments_fit_the_skill),
    ('argument.range', numbers_are_in_range),
    ('name.unknown', names_are_known),
    ('object.ambiguous', names_mean_one_thing),
)
WORLD_RULES: tuple[tuple[str, Test], ...] = (
    (WORLD_STALE, world_is_fresh),
    ('pour.target', pour_goes_where_it_may),
    ('category.forbidden', category_is_permitted),
    ('precondition', step_is_possible),
    ('zone.keep_out', path_keeps_out),
    (PERSON_NEAR, people_are_clear),
    ('battery.reserve', battery_reaches_the_dock),
    ('approval.required', person_has_approved),
)
"""The first list judges a step as it is written, the second on its rehearsal."""


def bind_rules(tests: tuple[tuple[str, Test], ...], law: Law) -> tuple[Rule, ...]:
    """The rules of a list under a law."""
    return tuple(FunctionRule(rule_id, law, test) for rule_id, test in tests)
