"""Arbitrary values of the core that fit on the wire, for the round trips of this folder."""

import math

from hypothesis import strategies as st
import numpy as np

from kv_agent_ros.errors import Outcome
from kv_agent_ros.harness.base import Decision, Finding, Verdict
from kv_agent_ros.inference.base import FinishReason, Generation, GenerationRequest, Message, Role, Turn, Usage
from kv_agent_ros.kvcache.block import (
    BlockSlot,
    CacheStats,
    KVNamespace,
    SessionKey,
    SessionUsage,
    Tier,
    TierUsage,
)
from kv_agent_ros.memory.base import MemoryKind, MemoryRecord, Recollection
from kv_agent_ros.robot.base import Pose, RobotState, Step, Velocity
from kv_agent_ros.robot.plan import Branch, Condition, Operator, Plan, PlanSource
from kv_agent_ros.robot.sensing import LidarScan
from kv_agent_ros.world.state import (
    Door,
    Location,
    LocationKind,
    ObjectState,
    Observation,
    PersonState,
    Room,
    WorldMap,
    WorldState,
    Zone,
)

TEXT = st.text(st.characters(codec='utf-8', exclude_characters='\0'), max_size=12)
UINT16 = st.integers(0, 2**16 - 1)
UINT32 = st.integers(0, 2**32 - 1)
UINT64 = st.integers(0, 2**64 - 1)
INT32 = st.integers(-(2**31), 2**31 - 1)
NUMBER = st.floats(allow_nan=False)
FLOAT32 = st.floats(allow_nan=False, width=32)
METRES = st.floats(-1e6, 1e6)
METRES32 = st.floats(-1e6, 1e6, width=32)
STAMP = st.integers(0, 2**33).map(lambda eighths: eighths / 8)  # such times are exact on both sides
POINT = st.tuples(METRES, METRES)
POINT32 = st.tuples(METRES32, METRES32)
ARGUMENTS = st.dictionaries(TEXT, st.one_of(TEXT, NUMBER), max_size=3)

POSE = st.builds(Pose, x_m=METRES, y_m=METRES, yaw_rad=st.floats(-math.pi, math.pi))
VELOCITY = st.builds(Velocity, linear_mps=NUMBER, angular_radps=NUMBER)
ROBOT = st.builds(
    RobotState,
    robot_id=TEXT,
    stamp_s=STAMP,
    pose=POSE,
    velocity=VELOCITY,
    battery=FLOAT32,
    is_docked=st.booleans(),
    holding=TEXT,
    room=TEXT,
)
OBJECT = st.builds(
    ObjectState,
    object_id=TEXT,
    category=TEXT,
    seen_s=STAMP,
    pose=POSE,
    location=TEXT,
    room=TEXT,
    confidence=FLOAT32,
    properties=ARGUMENTS,
)
PERSON = st.builds(PersonState, person_id=TEXT, seen_s=STAMP, position=POINT)
DOOR = st.builds(Door, name=TEXT, rooms=st.tuples(TEXT, TEXT), position=POINT, is_open=st.booleans(), seen_s=STAMP)
LOCATION = st.builds(
    Location, name=TEXT, category=TEXT, room=TEXT, kind=st.sampled_from(LocationKind), pose=POSE, approach=POSE
)
OUTLINE = st.lists(POINT32, min_size=3, max_size=5).map(tuple)


def some(values: st.SearchStrategy) -> st.SearchStrategy:
    """A short tuple of them."""
    return st.lists(values, max_size=3).map(tuple)


MAP = st.builds(
    WorldMap,
    name=TEXT,
    rooms=some(st.builds(Room, name=TEXT, outline=OUTLINE, is_hallway=st.booleans())),
    locations=some(LOCATION),
    doors=some(DOOR),
    zones=some(st.builds(Zone, name=TEXT, outline=OUTLINE)),
    categories=some(TEXT),
)
WORLD = st.builds(
    WorldState,
    map=MAP,
    stamp_s=STAMP,
    sequence=UINT64,
    robots=some(ROBOT),
    objects=some(OBJECT),
    people=some(PERSON),
    doors=some(DOOR),
)
OBSERVATION = st.builds(
    Observation,
    robot=ROBOT,
    stamp_s=STAMP,
    objects=some(OBJECT),
    people=some(PERSON),
    doors=some(DOOR),
    gone=some(TEXT),
    nearest_obstacle_m=st.floats(0.0, width=32),
)
SCAN = st.builds(
    LidarScan,
    angle_min_rad=st.floats(-3.0, 3.0, width=32),
    angle_increment_rad=st.floats(0.0, 1.0, width=32),
    range_max_m=st.just(12.0),
    ranges_m=st.lists(st.floats(0.0, 12.0, width=32), min_size=1, max_size=8).map(
        lambda ranges: np.array(ranges, np.float32)
    ),
)

CONDITION = st.builds(
    Condition, target=TEXT, property=TEXT, operator=st.sampled_from(Operator), value=st.one_of(TEXT, NUMBER)
)


@st.composite
def plans(draw: st.DrawFn) -> Plan:
    """Plans whose branches are numbered as they must be."""
    branches = tuple(
        Branch(
            branch_id=number,
            condition=draw(CONDITION),
            parent_id=draw(st.integers(0, number - 1)),
            parent_arm=draw(st.booleans()),
        )
        for number in range(1, draw(st.integers(0, 4)) + 1)
    )
    step = st.builds(Step, skill=TEXT, arguments=ARGUMENTS, branch_id=st.integers(0, len(branches)), arm=st.booleans())
    return Plan(steps=draw(some(step)), branches=branches, source=draw(st.sampled_from(PlanSource)))


FINDING = st.builds(Finding, rule_id=TEXT, decision=st.sampled_from(Decision), message=TEXT, step_index=INT32)
VERDICT = st.builds(
    Verdict,
    decision=st.sampled_from(Decision),
    findings=some(FINDING),
    plan_id=TEXT,
    policy_hash=TEXT,
    world_sequence=UINT64,
    expires_s=STAMP,
)

SESSION = st.builds(SessionKey, robot_id=TEXT, session_id=TEXT)
NAMESPACE = st.builds(
    KVNamespace,
    model=TEXT,
    revision=TEXT,
    dtype=st.sampled_from(['float32', 'float16']),
    num_layers=UINT16,
    num_kv_heads=UINT16,
    head_dim=UINT16,
    block_tokens=UINT16,
    adapter=TEXT,
    bits=st.sampled_from([2, 4, 8, 16]),
    variant=TEXT,
)
SLOT = st.builds(
    BlockSlot,
    block_key=st.binary(min_size=32, max_size=32),
    segment=TEXT,
    offset_bytes=UINT64,
    length_bytes=UINT64,
    checksum=st.one_of(st.just(b''), st.binary(min_size=16, max_size=16)),
    bits=st.sampled_from([2, 4, 8, 16]),
    tier=st.sampled_from(Tier),
)
TIER = st.builds(
    TierUsage,
    tier=st.sampled_from(Tier),
    capacity_bytes=UINT64,
    used_bytes=UINT64,
    evictable_bytes=UINT64,
    num_blocks=UINT64,
    num_hits=UINT64,
    num_evictions=UINT64,
    num_errors=UINT64,
)
SESSION_USAGE = st.builds(
    SessionUsage,
    session=SESSION,
    num_blocks=UINT32,
    is_pinned=st.booleans(),
    prompt_tokens=UINT64,
    cached_tokens=UINT64,
)
CACHE_STATS = st.builds(
    CacheStats,
    tiers=some(TIER),
    sessions=some(SESSION_USAGE),
    num_blocks=UINT64,
    num_leases=UINT32,
    num_expired_leases=UINT64,
    prompt_tokens=UINT64,
    cached_tokens=UINT64,
    num_checksum_failures=UINT64,
)

MESSAGE = st.builds(Message, role=st.sampled_from(Role), content=TEXT, token_ids=some(INT32))
USAGE = st.builds(
    Usage,
    prompt_tokens=UINT32,
    cached_tokens=UINT32,
    cached_host_tokens=UINT32,
    cached_storage_tokens=UINT32,
    computed_tokens=UINT32,
    generated_tokens=UINT32,
    ttft_s=NUMBER,
    total_s=NUMBER,
)
TURN = st.builds(Turn, purpose=TEXT, usage=USAGE, engine=TEXT, outcome=st.sampled_from(Outcome))
REQUEST = st.builds(
    GenerationRequest,
    session=SESSION,
    messages=some(MESSAGE),
    max_new_tokens=UINT32,
    json_schema=TEXT,
    temperature=FLOAT32,
    seed=UINT64,
    priority=INT32,
    purpose=TEXT,
)
GENERATION = st.builds(
    Generation,
    outcome=st.sampled_from(Outcome),
    text=TEXT,
    token_ids=some(INT32),
    finish_reason=st.sampled_from(FinishReason),
    usage=USAGE,
    engine=TEXT,
    model=TEXT,
    message=TEXT,
)
RECORD = st.builds(
    MemoryRecord,
    record_id=TEXT,
    kind=st.sampled_from(MemoryKind),
    robot_id=TEXT,
    text=TEXT,
    payload=TEXT,
    stamp_s=STAMP,
    is_success=st.booleans(),
)
RECOLLECTION = st.builds(Recollection, record=RECORD, similarity=FLOAT32)
