"""The constants of the messages are the numbers of the Enums, no more and no fewer."""

from enum import IntEnum

import pytest

from kv_agent_ros.agent.task import StepStatus
from kv_agent_ros.errors import Outcome
from kv_agent_ros.harness.base import Decision
from kv_agent_ros.msg import InfraFinding, Location, Result, StepReport, Verdict
from kv_agent_ros.ros.conversions.task import STATUSES
from kv_agent_ros.ros.conversions.world import KINDS
from kv_agent_ros.world.state import LocationKind


def constants(message_type: type) -> dict[str, int]:
    """Names and values of a message's constants."""
    names = [name for name in vars(type(message_type)) if name.isupper() and not name.startswith('_')]
    return {name: getattr(message_type, name) for name in names}


@pytest.mark.parametrize(('message_type', 'enum_type'), [(Result, Outcome), (Verdict, Decision)])
def test_the_constants_equal_the_enum(message_type: type, enum_type: type[IntEnum]) -> None:
    assert constants(message_type) == {member.name: int(member) for member in enum_type}


def test_the_states_of_a_step_equal_the_constants() -> None:
    assert constants(StepReport) == {status.name: STATUSES.index(status) for status in StepStatus}
    assert len(STATUSES) == len(StepStatus)


def test_the_kinds_of_a_location_equal_the_constants() -> None:
    assert constants(Location) == {kind.name: KINDS.index(kind) for kind in LocationKind}
    assert len(KINDS) == len(LocationKind)


def test_the_levels_of_a_finding_are_those_of_diagnostics() -> None:
    assert constants(InfraFinding) == {'OK': 0, 'WARN': 1, 'ERROR': 2}
