"""The Copilot planner."""

from kv_agent_ros.agent.planner import CopilotPlanner, ModelLimits
from kv_agent_ros.config import PlannerConfig
from kv_agent_ros.inference.base import InferenceBackend
from kv_agent_ros.robot.skills import HOUSEHOLD_SKILLS
from kv_agent_ros.world.predict import predict_step


def open_planner(config: PlannerConfig, backend: InferenceBackend) -> CopilotPlanner:
    """The planner over an engine; it rehearses with the pure prediction, so it needs no other node."""
    return CopilotPlanner(
        backend=backend,
        skills=HOUSEHOLD_SKILLS,
        predict=lambda world, robot_id, step: predict_step(world, robot_id, step, HOUSEHOLD_SKILLS),
        limits=ModelLimits(plan_timeout_s=config.draft_timeout_s),
    )
