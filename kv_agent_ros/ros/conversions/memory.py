"""Memories ↔ messages."""

from kv_agent_ros.memory.base import MemoryKind, MemoryRecord, Recollection
from kv_agent_ros.msg import MemoryRecord as RecordMsg
from kv_agent_ros.msg import Recollection as RecollectionMsg
from kv_agent_ros.ros.conversions.values import member, time_from_msg, time_to_msg


def kind_from_text(text: str) -> MemoryKind:
    """The kind of that name. Raises BadRequestError naming the kinds."""
    return member(MemoryKind, text, 'kind')


def record_to_msg(record: MemoryRecord) -> RecordMsg:
    """MemoryRecord → message."""
    return RecordMsg(
        record_id=record.record_id,
        kind=record.kind.value,
        robot_id=record.robot_id,
        text=record.text,
        payload=record.payload,
        stamp=time_to_msg(record.stamp_s),
        is_success=record.is_success,
    )


def record_from_msg(message: RecordMsg) -> MemoryRecord:
    """Message → MemoryRecord. Raises BadRequestError for an unknown kind."""
    return MemoryRecord(
        record_id=message.record_id,
        kind=kind_from_text(message.kind),
        robot_id=message.robot_id,
        text=message.text,
        payload=message.payload,
        stamp_s=time_from_msg(message.stamp),
        is_success=message.is_success,
    )


def recollection_to_msg(recollection: Recollection) -> RecollectionMsg:
    """Recollection → message."""
    return RecollectionMsg(record=record_to_msg(recollection.record), similarity=float(recollection.similarity))


def recollection_from_msg(message: RecollectionMsg) -> Recollection:
    """Message → Recollection."""
    return Recollection(record=record_from_msg(message.record), similarity=float(message.similarity))
