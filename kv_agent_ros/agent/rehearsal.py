"""A plan on trial before anything moves: each case of its conditions is walked through the world's predictions."""

from collections.abc import Callable, Sequence

from kv_agent_ros.agent.goal import cases, plan_fault, steps_in
from kv_agent_ros.agent.intent import Intent
from kv_agent_ros.robot.base import Step
from kv_agent_ros.robot.plan import Plan
from kv_agent_ros.world.state import Prediction, WorldState

Predict = Callable[[WorldState, str, Step], Prediction]


def draft_fault(plan: Plan, intents: Sequence[Intent], world: WorldState, robot_id: str, predict: Predict) -> str:
    """'' when the plan serves the intents and each of its steps can be done, else what is wrong, in one sentence."""
    robot = world.robot(robot_id)
    holding = robot.holding if robot is not None else ''
    return plan_fault(intents, plan, world, holding) or rehearsal_fault(plan, intents, world, robot_id, predict)


def rehearsal_fault(plan: Plan, intents: Sequence[Intent], world: WorldState, robot_id: str, predict: Predict) -> str:
    """The first step that cannot be done in some case, with the reason; '' when there is none."""
    walks: list[tuple[Step, ...]] = []
    for case in cases(intents, plan, world):
        steps = steps_in(case, plan, world)
        if steps not in walks:
            walks.append(steps)
    return next((fault for steps in walks if (fault := _walk(steps, world, robot_id, predict))), '')


def _walk(steps: Sequence[Step], world: WorldState, robot_id: str, predict: Predict) -> str:
    for step in steps:
        prediction = predict(world, robot_id, step)
        if not prediction.is_feasible:
            return f'{step}: {prediction.reason}'
        world = prediction.world
    return ''
