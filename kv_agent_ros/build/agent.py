"""The agent of a robot."""

from collections.abc import Callable

from kv_agent_ros.agent.base import Planner, SessionCache
from kv_agent_ros.agent.robot_agent import RobotAgent
from kv_agent_ros.agent.session_store import FileSessions
from kv_agent_ros.config import AgentConfig, expand
from kv_agent_ros.harness.base import Gate
from kv_agent_ros.memory.base import Memory
from kv_agent_ros.world.base import World


def open_agent(
    config: AgentConfig,
    *,
    planner: Planner,
    gate: Gate,
    world: World,
    memory: Memory,
    cache: SessionCache,
    clock: Callable[[], float],
) -> RobotAgent:
    """The agent with its sessions below the state folder. `clock`: ROS time in seconds."""
    sessions = FileSessions(expand(config.state_dir) / 'sessions', context_tokens=config.context_tokens)
    return RobotAgent(
        planner=planner, gate=gate, world=world, memory=memory, sessions=sessions, cache=cache, clock=clock
    )
