"""Small values that many messages share: times, poses, arguments, outcomes."""

from collections.abc import Iterable, Mapping
from enum import Enum
import math
from typing import TypeVar

from builtin_interfaces.msg import Time
from geometry_msgs.msg import Point, Point32, Polygon, Quaternion, Twist
from geometry_msgs.msg import Pose as PoseMsg

from kv_agent_ros.errors import BadRequestError, Outcome, Status
from kv_agent_ros.msg import Argument as ArgumentMsg
from kv_agent_ros.msg import Result
from kv_agent_ros.robot.base import Argument, Pose, Velocity

EnumT = TypeVar('EnumT', bound=Enum)
LAST_S = 2**31 - 1


def member(enum_type: type[EnumT], value: str | int, field: str) -> EnumT:
    """The member of that value. Raises BadRequestError naming the field and what it may be."""
    for known in enum_type:
        if known.value == value:
            return known
    raise BadRequestError(f'{field}: expected {", ".join(str(known.value) for known in enum_type)}, got {value!r}')


def time_to_msg(stamp_s: float) -> Time:
    """Seconds → Time; what is not a finite time ≥ 0 becomes 0, what the message cannot hold its last second."""
    if not math.isfinite(stamp_s) or stamp_s < 0:
        return Time()
    whole_s = min(int(stamp_s), LAST_S)
    carry, nanosec = divmod(round((stamp_s - int(stamp_s)) * 1e9), 10**9)  # in two parts: no digit is lost
    return Time(sec=min(whole_s + carry, LAST_S), nanosec=nanosec)


def time_from_msg(stamp: Time) -> float:
    """Time → seconds."""
    return (stamp.sec * 10**9 + stamp.nanosec) / 10**9  # the nearest float, so that a time survives the way


def pose_to_msg(pose: Pose) -> PoseMsg:
    """Planar pose → Pose with z = 0 and the yaw as quaternion."""
    half = pose.yaw_rad / 2
    orientation = Quaternion(x=0.0, y=0.0, z=math.sin(half), w=math.cos(half))
    return PoseMsg(position=Point(x=pose.x_m, y=pose.y_m, z=0.0), orientation=orientation)


def pose_from_msg(pose: PoseMsg) -> Pose:
    """Pose → planar pose: the yaw of the quaternion, z ignored."""
    q = pose.orientation
    yaw = math.atan2(2 * (q.w * q.z + q.x * q.y), 1 - 2 * (q.y * q.y + q.z * q.z))
    return Pose(x_m=pose.position.x, y_m=pose.position.y, yaw_rad=yaw)


def velocity_to_msg(velocity: Velocity) -> Twist:
    """Planar velocity → Twist."""
    twist = Twist()
    twist.linear.x, twist.angular.z = velocity.linear_mps, velocity.angular_radps
    return twist


def velocity_from_msg(twist: Twist) -> Velocity:
    """Twist → planar velocity; the other axes are ignored."""
    return Velocity(linear_mps=twist.linear.x, angular_radps=twist.angular.z)


def point_to_msg(point: tuple[float, float]) -> Point:
    """(x, y) in metres → Point with z = 0."""
    return Point(x=float(point[0]), y=float(point[1]), z=0.0)


def point_from_msg(point: Point) -> tuple[float, float]:
    """Point → (x, y) in metres."""
    return (point.x, point.y)


def polygon_to_msg(outline: Iterable[tuple[float, float]]) -> Polygon:
    """Outline in metres → Polygon (float32)."""
    return Polygon(points=[Point32(x=float(x), y=float(y), z=0.0) for x, y in outline])


def polygon_from_msg(polygon: Polygon) -> tuple[tuple[float, float], ...]:
    """Polygon → outline in metres."""
    return tuple((float(point.x), float(point.y)) for point in polygon.points)


def arguments_to_msg(arguments: Mapping[str, Argument]) -> list[ArgumentMsg]:
    """Named values → messages, in order."""
    return [argument_to_msg(name, value) for name, value in arguments.items()]


def argument_to_msg(name: str, value: Argument) -> ArgumentMsg:
    """A named value → message."""
    if isinstance(value, str):
        return ArgumentMsg(name=name, kind=ArgumentMsg.TEXT, text=value)
    return ArgumentMsg(name=name, kind=ArgumentMsg.NUMBER, number=float(value))


def argument_from_msg(message: ArgumentMsg) -> Argument:
    """The value of a message. Raises BadRequestError for an unknown kind."""
    if message.kind not in (ArgumentMsg.TEXT, ArgumentMsg.NUMBER):
        raise BadRequestError(f'argument {message.name!r}: kind: expected TEXT or NUMBER, got {message.kind}')
    return str(message.text) if message.kind == ArgumentMsg.TEXT else float(message.number)


def arguments_from_msg(messages: Iterable[ArgumentMsg]) -> dict[str, Argument]:
    """Messages → named values; of equal names the last counts."""
    return {message.name: argument_from_msg(message) for message in messages}


def result_to_msg(outcome: Outcome, message: str) -> Result:
    """An outcome on the wire."""
    return Result(error_code=int(outcome), error_msg=message)


def status_from_msg(result: Result) -> Status:
    """An outcome from the wire; a code that we do not know is INTERNAL, with the number in the text."""
    if result.error_code in {int(outcome) for outcome in Outcome}:
        return Status(outcome=Outcome(result.error_code), message=result.error_msg)
    return Status(outcome=Outcome.INTERNAL, message=f'unknown error code {result.error_code}: {result.error_msg}')
