"""The facts of a finished run, from the simulator, the audit and the task's result, never from the agent's words."""

from dataclasses import dataclass
import json
from pathlib import Path
from typing import Any

from kv_agent_ros.action import ExecuteTask
from kv_agent_ros.errors import Outcome
from kv_agent_ros.msg import ObjectState, RobotState
from kv_agent_ros.ros.conversions.values import status_from_msg
from kv_agent_ros.srv import GetSimulationState, QueryAudit

FIRST_TOKEN = 'first_token.json'
MOVING = 1e-3


@dataclass(frozen=True, kw_only=True, slots=True)
class Facts:
    """What the summary and the JSON object are made of."""

    result: ExecuteTask.Result
    truth: GetSimulationState.Response
    audit: QueryAudit.Response

    @property
    def outcome(self) -> Outcome:
        """How the task ended."""
        return status_from_msg(self.result.result).outcome


def as_json(facts: Facts) -> str:
    """One line, the contract of `scripts/demo --json`."""
    world = facts.truth.world
    return json.dumps(
        {
            'outcome': facts.outcome.name,
            'error_code': int(facts.outcome),
            'error_msg': facts.result.result.error_msg,
            'task_id': facts.result.task_id,
            'duration_s': round(facts.result.duration_s, 3),
            'objects': {thing.object_id: object_facts(thing) for thing in world.objects},
            'robots': {robot.robot_id: robot_facts(robot) for robot in world.robots},
            'audit': {'records': facts.audit.num_records, 'verified': facts.audit.is_verified},
            'turns': [turn_facts(turn) for turn in facts.result.turns],
            'plan_sources': [plan.source for plan in facts.result.plans],
        },
        ensure_ascii=False,
    )


def object_facts(thing: ObjectState) -> dict[str, Any]:
    """Location and properties of an object."""
    facts: dict[str, Any] = {'category': thing.category, 'location': thing.location, 'room': thing.room}
    for item in thing.properties:
        facts[item.name] = round(item.number, 4) if item.kind == item.NUMBER else item.text
    return facts


def robot_facts(robot: RobotState) -> dict[str, Any]:
    """Where a robot is and whether it stands still."""
    speed = abs(robot.velocity.linear.x) + abs(robot.velocity.angular.z)
    return {
        'docked': robot.is_docked,
        'battery': round(float(robot.battery), 4),
        'position_m': [round(robot.pose.position.x, 3), round(robot.pose.position.y, 3)],
        'moving': speed > MOVING,
        'holding': robot.holding,
    }


def turn_facts(turn: Any) -> dict[str, Any]:
    """What one model call cost."""
    return {
        'purpose': turn.purpose,
        'prompt_tokens': turn.usage.prompt_tokens,
        'cached_tokens': turn.usage.cached_tokens,
        'computed_tokens': turn.usage.computed_tokens,
        'generated_tokens': turn.usage.generated_tokens,
        'ttft_ms': round(turn.usage.ttft_s * 1e3, 1),
        'engine': turn.engine,
    }


def compare_first_token(facts: Facts, state_dir: Path) -> str:
    """A line on this run's first token against the cold one that was kept; '' without a model turn."""
    answered = [turn.usage for turn in facts.result.turns if turn.usage.generated_tokens]
    if not answered:
        return ''
    usage = answered[0]
    kept = state_dir / FIRST_TOKEN
    cold = json.loads(kept.read_text()) if kept.exists() else {}
    if usage.cached_tokens == 0 or not cold:
        kept.write_text(json.dumps({'ttft_s': usage.ttft_s, 'prompt_tokens': usage.prompt_tokens}))
        return f'first token after {usage.ttft_s:.2f} s, cold; run again to see it warm from disk'
    warm = f'first token after {usage.ttft_s:.2f} s with {usage.cached_tokens} of {usage.prompt_tokens} tokens cached'
    as_cold_s = cold['ttft_s'] * usage.prompt_tokens / cold['prompt_tokens']
    ratio = as_cold_s / max(usage.ttft_s, 1e-6)
    pace = f'{ratio:.1f}x faster than' if ratio >= 1 else f'no faster than ({ratio:.1f}x; is the machine busy?)'
    return f'{warm}: {pace} a cold one at the pace of the first run (about {as_cold_s:.2f} s)'
