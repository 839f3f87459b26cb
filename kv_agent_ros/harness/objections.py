"""What every rule is made of: the law it judges by, the objections it yields, and what a step touches or passes."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import pairwise

from kv_agent_ros.harness.base import Decision, Finding, StepContext
from kv_agent_ros.harness.policy import Policy
from kv_agent_ros.robot.base import Step
from kv_agent_ros.world.geometry import distance_m
from kv_agent_ros.world.state import ObjectState, Point, Prediction, WorldState

SAMPLE_M = 0.05  # spacing of the points at which a path is looked at
HELD_SKILLS = frozenset({'place', 'pour'})  # skills that act on what the gripper holds

Predict = Callable[[WorldState, str, Step], Prediction]


@dataclass(frozen=True, kw_only=True, slots=True)
class Law:
    """The policy in force and the pure rehearsal of a step."""

    policy: Policy
    predict: Predict


@dataclass(frozen=True, kw_only=True, slots=True)
class Objection:
    """Why a step may not just go ahead."""

    decision: Decision
    message: str


Test = Callable[[Law, StepContext], Iterator[Objection]]


@dataclass(frozen=True, slots=True)
class FunctionRule:
    """A Rule made of a stable id, the law and a function that yields its objections."""

    rule_id: str
    law: Law
    test: Test

    def check(self, context: StepContext) -> tuple[Finding, ...]:
        return tuple(
            Finding(
                rule_id=self.rule_id,
                decision=objection.decision,
                message=objection.message,
                step_index=context.step_index,
            )
            for objection in self.test(self.law, context)
        )


def reject(message: str) -> Objection:
    """No."""
    return Objection(decision=Decision.REJECT, message=message)


def defer(message: str) -> Objection:
    """Not without a person."""
    return Objection(decision=Decision.DEFER, message=message)


def touched_objects(context: StepContext) -> tuple[ObjectState, ...]:
    """The objects a step may act on: its target by id or category, and what the gripper holds when it acts on that."""
    touched = context.world.find_objects(context.step.text('target'))
    robot = context.world.robot(context.robot_id)
    if robot is not None and robot.holding and context.step.skill in HELD_SKILLS:
        touched += context.world.find_objects(robot.holding)
    return touched


def sampled(path: tuple[Point, ...]) -> tuple[Point, ...]:
    """The path as points at most SAMPLE_M apart, both ends included."""
    points = list(path[:1])
    for a, b in pairwise(path):
        pieces = int(distance_m(a, b) / SAMPLE_M) + 1
        points += [(a[0] + (b[0] - a[0]) * i / pieces, a[1] + (b[1] - a[1]) * i / pieces) for i in range(1, pieces + 1)]
    return tuple(points)
