"""Every value survives the way to its message and back; what cannot be meant is a BadRequestError."""

from collections.abc import Callable
from dataclasses import fields, is_dataclass
import math
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
import pytest
import ros_values as values

from kv_agent_ros.action import GenerateStream
from kv_agent_ros.errors import BadRequestError, Outcome, Status
from kv_agent_ros.msg import (
    Argument,
    BlockSlot,
    ChatMessage,
    Location,
    MemoryRecord,
    Plan,
    PlanBranch,
    PlanCondition,
    PlanStep,
    Result,
    TierUsage,
    Verdict,
)
from kv_agent_ros.robot.base import Pose
from kv_agent_ros.ros.conversions import inference, kv, memory, plan, sensing, world
from kv_agent_ros.ros.conversions import values as plain
from kv_agent_ros.srv import Generate, GetCacheStats

ROUND_TRIPS = [
    (values.SESSION, kv.session_to_msg, kv.session_from_msg),
    (values.NAMESPACE, kv.namespace_to_msg, kv.namespace_from_msg),
    (values.SLOT, kv.slot_to_msg, kv.slot_from_msg),
    (values.TIER, kv.tier_to_msg, kv.tier_from_msg),
    (values.SESSION_USAGE, kv.usage_to_msg, kv.usage_from_msg),
    (values.MESSAGE, inference.message_to_msg, inference.message_from_msg),
    (values.USAGE, inference.token_usage_to_msg, inference.token_usage_from_msg),
    (values.TURN, inference.turn_to_msg, inference.turn_from_msg),
    (values.RECORD, memory.record_to_msg, memory.record_from_msg),
    (values.RECOLLECTION, memory.recollection_to_msg, memory.recollection_from_msg),
    (values.PERSON, world.person_to_msg, world.person_from_msg),
    (values.DOOR, world.door_to_msg, world.door_from_msg),
    (values.VERDICT, plan.verdict_to_msg, plan.verdict_from_msg),
    (values.plans(), plan.plan_to_msg, plan.plan_from_msg),
    (values.VELOCITY, plain.velocity_to_msg, plain.velocity_from_msg),
    (values.POINT, plain.point_to_msg, plain.point_from_msg),
    (values.OUTLINE, plain.polygon_to_msg, plain.polygon_from_msg),
    (values.ARGUMENTS, plain.arguments_to_msg, plain.arguments_from_msg),
]


@pytest.mark.parametrize(
    ('strategy', 'to_msg', 'from_msg'), ROUND_TRIPS, ids=lambda part: getattr(part, '__name__', '')
)
@given(st.data())
def test_a_value_survives_the_way_to_its_message_and_back(
    strategy: st.SearchStrategy, to_msg: Callable[..., Any], from_msg: Callable[..., Any], data: st.DataObject
) -> None:
    value = data.draw(strategy)
    assert from_msg(to_msg(value)) == value


@pytest.mark.parametrize(
    ('strategy', 'to_msg', 'from_msg'),
    [
        (values.ROBOT, world.robot_to_msg, world.robot_from_msg),
        (values.OBJECT, world.object_to_msg, world.object_from_msg),
        (values.LOCATION, world.location_to_msg, world.location_from_msg),
        (values.MAP, world.map_to_msg, world.map_from_msg),
        (values.WORLD, world.world_to_msg, world.world_from_msg),
        (values.OBSERVATION, world.observation_to_msg, world.observation_from_msg),
    ],
    ids=lambda part: getattr(part, '__name__', ''),
)
@given(st.data())
def test_what_has_a_heading_survives_to_a_microradian(
    strategy: st.SearchStrategy, to_msg: Callable[..., Any], from_msg: Callable[..., Any], data: st.DataObject
) -> None:
    value = data.draw(strategy)
    assert rounded(from_msg(to_msg(value))) == rounded(value)


@given(st.floats(0.0, 2**31 - 1.0))
def test_a_time_survives_to_a_nanosecond_and_a_time_of_this_century_as_it_is(stamp_s: float) -> None:
    back = plain.time_from_msg(plain.time_to_msg(stamp_s))
    assert back == pytest.approx(stamp_s, rel=0.0, abs=1e-9)
    assert back == stamp_s or stamp_s < 1e9


@pytest.mark.parametrize('stamp_s', [math.nan, math.inf, -math.inf, -1.0])
def test_what_is_no_time_is_zero(stamp_s: float) -> None:
    assert plain.time_from_msg(plain.time_to_msg(stamp_s)) == 0.0


def test_a_time_after_the_end_of_the_message_is_its_end() -> None:
    assert plain.time_to_msg(1e12).sec == 2**31 - 1


@given(values.POSE)
def test_a_pose_survives_to_a_nanometre_and_a_nanoradian(pose: Pose) -> None:
    back = plain.pose_from_msg(plain.pose_to_msg(pose))
    assert (back.x_m, back.y_m) == (pose.x_m, pose.y_m)
    assert math.remainder(back.yaw_rad - pose.yaw_rad, math.tau) == pytest.approx(0.0, abs=1e-9)


@given(values.SCAN)
def test_a_scan_survives_with_its_rays_without_echo(scan: Any) -> None:
    message = sensing.scan_to_msg(scan, 1.0, 'laser')
    back = sensing.scan_from_msg(message)
    assert back.ranges_m.tolist() == scan.ranges_m.tolist()
    assert (back.angle_min_rad, back.angle_increment_rad, back.range_max_m) == (
        scan.angle_min_rad,
        scan.angle_increment_rad,
        scan.range_max_m,
    )
    assert all(distance < 12.0 or distance == math.inf for distance in message.ranges)


@pytest.mark.parametrize('message_type', [Generate.Request, GenerateStream.Goal])
@given(st.data())
def test_a_generation_request_survives_as_service_and_as_goal(message_type: type, data: st.DataObject) -> None:
    request, message = data.draw(values.REQUEST), message_type()
    inference.fill_generation_request(request, 3.0, message)
    assert inference.read_generation_request(message) == request
    assert message.timeout_s == 3.0


@pytest.mark.parametrize('message_type', [Generate.Response, GenerateStream.Result])
@given(st.data())
def test_a_generation_survives_as_response_and_as_result(message_type: type, data: st.DataObject) -> None:
    generation, message = data.draw(values.GENERATION), message_type()
    inference.fill_generation(generation, message)
    assert inference.read_generation(message) == generation


@given(values.CACHE_STATS)
def test_cache_stats_survive(stats: Any) -> None:
    response = GetCacheStats.Response()
    kv.fill_stats(stats, response)
    assert kv.read_stats(response) == stats


@given(values.plans())
def test_a_plan_keeps_its_id_on_the_way(drawn: Any) -> None:
    assert plan.plan_from_msg(plan.plan_to_msg(drawn)).plan_id == drawn.plan_id


@given(st.sampled_from(Outcome), values.TEXT)
def test_an_outcome_survives_with_its_words(outcome: Outcome, message: str) -> None:
    assert plain.status_from_msg(plain.result_to_msg(outcome, message)) == Status(outcome=outcome, message=message)


def test_an_unknown_error_code_is_internal_with_its_number() -> None:
    status = plain.status_from_msg(Result(error_code=999, error_msg='odd'))
    assert status.outcome is Outcome.INTERNAL
    assert '999' in status.message


@given(st.lists(st.binary(min_size=16, max_size=16), max_size=4), st.binary(max_size=15))
def test_checksums_are_read_sixteen_bytes_each_without_an_incomplete_tail(sums: list[bytes], tail: bytes) -> None:
    assert kv.checksums_to_bytes(list(b''.join(sums) + tail)) == sums


STEP = PlanStep(skill='dock')
BRANCH = PlanBranch(branch_id=1, condition=PlanCondition(comparison='>='))


@pytest.mark.parametrize(
    ('from_msg', 'message'),
    [
        pytest.param(inference.message_from_msg, ChatMessage(role='boss'), id='role'),
        pytest.param(kv.slot_from_msg, BlockSlot(tier='cloud'), id='tier of a slot'),
        pytest.param(kv.tier_from_msg, TierUsage(tier=''), id='tier'),
        pytest.param(memory.record_from_msg, MemoryRecord(kind='dream'), id='kind of a memory'),
        pytest.param(world.location_from_msg, Location(kind=9), id='kind of a location'),
        pytest.param(plan.step_from_msg, PlanStep(arguments=[Argument(kind=2)]), id='kind of an argument'),
        pytest.param(plan.verdict_from_msg, Verdict(decision=7), id='decision'),
        pytest.param(plan.plan_from_msg, Plan(source='oracle', steps=[STEP]), id='source'),
        pytest.param(plan.plan_from_msg, Plan(source='rule', steps=[PlanStep(branch_id=1)]), id='missing branch'),
        pytest.param(plan.branch_from_msg, PlanBranch(condition=PlanCondition(comparison='!=')), id='comparison'),
        pytest.param(
            plan.plan_from_msg,
            Plan(source='rule', branches=[PlanBranch(branch_id=1, parent_id=1, condition=BRANCH.condition)]),
            id='a branch around itself',
        ),
        pytest.param(plan.plan_from_msg, Plan(source='rule', branches=[BRANCH, BRANCH]), id='branches of equal number'),
    ],
)
def test_what_cannot_be_meant_is_a_bad_request(from_msg: Callable[..., Any], message: Any) -> None:
    with pytest.raises(BadRequestError, match=r'expected|malformed|not there'):
        from_msg(message)


def rounded(value: Any) -> Any:
    """The same with every heading to six digits; half a turn left and half a turn right are one."""
    if isinstance(value, Pose):
        return value.x_m, value.y_m, round(math.cos(value.yaw_rad), 6), round(math.sin(value.yaw_rad), 6) + 0.0
    if isinstance(value, tuple):
        return tuple(rounded(item) for item in value)
    if is_dataclass(value):
        return {item.name: rounded(getattr(value, item.name)) for item in fields(value)}
    return value
