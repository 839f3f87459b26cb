"""The way that a plan leads, by rehearsal: for people to look at before the robot goes."""

from kv_agent_ros.agent.rehearsal import Predict
from kv_agent_ros.robot.plan import Plan
from kv_agent_ros.world.state import Point, WorldState


def planned_route(plan: Plan, world: WorldState, robot_id: str, predict: Predict) -> tuple[Point, ...]:
    """Way points in `map` of the steps whose then-arms are taken, up to the first that cannot be foreseen."""
    points: list[Point] = []
    for step in plan.steps:
        if not step.arm:
            continue
        prediction = predict(world, robot_id, step)
        if not prediction.is_feasible:
            break
        points += prediction.path
        world = prediction.world
    return tuple(points)
