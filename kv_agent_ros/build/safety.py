"""The harness and what it must have before it may hold a robot."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from kv_agent_ros.build.home import bundled
from kv_agent_ros.config import HarnessConfig, expand
from kv_agent_ros.harness.audit import AuditLog, open_audit_log
from kv_agent_ros.harness.audit_key import AuditKey, load_audit_key
from kv_agent_ros.harness.estop import EstopLatch, open_estop_latch
from kv_agent_ros.harness.harness import AgentHarness
from kv_agent_ros.harness.policy import Policy, load_policy
from kv_agent_ros.robot.base import Robot
from kv_agent_ros.world.base import World


@dataclass(frozen=True, kw_only=True, slots=True)
class SafetyRecords:
    """What a harness must have before it may hold a robot: its policy, its audit and its latch."""

    policy: Policy
    audit: AuditLog
    key: AuditKey
    directory: Path
    latch: EstopLatch

    def close(self) -> None:
        """Seal the audit."""
        self.audit.close()


def open_safety_records(config: HarnessConfig, clock: Callable[[], float]) -> SafetyRecords:
    """Policy, audit and latch of one robot. Raises ConfigError or AuditError: without them no robot is held."""
    path = bundled('policies', 'default.yaml') if config.policy == 'default' else expand(config.policy)
    directory = expand(config.state_dir) / 'audit' / config.robot_id
    key = load_audit_key(expand(config.audit_key_file), directory)
    return SafetyRecords(
        policy=load_policy(path),
        audit=open_audit_log(directory, key, clock),
        key=key,
        directory=directory,
        latch=open_estop_latch(expand(config.state_dir) / f'estop_{config.robot_id}.json', [config.robot_id]),
    )


def open_harness(
    config: HarnessConfig, records: SafetyRecords, robot: Robot, world: World, clock: Callable[[], float]
) -> AgentHarness:
    """The harness around its robot."""
    return AgentHarness(
        robots={config.robot_id: robot},
        world=world,
        policy=records.policy,
        audit=records.audit,
        latch=records.latch,
        clock=clock,
        observation_timeout_s=config.world_timeout_s,
        velocity_timeout_s=config.cmd_vel_timeout_s,
    )
