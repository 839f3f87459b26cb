"""/tf and /tf_static without tf2_ros: only the message package is needed, and where it is missing nothing is sent."""

from collections.abc import Iterable

from geometry_msgs.msg import TransformStamped
from rclpy.qos import DurabilityPolicy, QoSProfile

from kv_agent_ros.robot.base import Pose
from kv_agent_ros.ros.conversions.values import pose_to_msg, time_to_msg
from kv_agent_ros.ros.endpoints import Endpoints

try:
    from tf2_msgs.msg import TFMessage
except ImportError:
    TFMessage = None

DYNAMIC = QoSProfile(depth=100)
STATIC = QoSProfile(depth=1, durability=DurabilityPolicy.TRANSIENT_LOCAL)


def transform(stamp_s: float, parent: str, child: str, pose: Pose) -> TransformStamped:
    """The planar transform parent → child (REP-105)."""
    message = TransformStamped()
    message.header.stamp, message.header.frame_id, message.child_frame_id = time_to_msg(stamp_s), parent, child
    planar = pose_to_msg(pose)
    message.transform.translation.x = planar.position.x
    message.transform.translation.y = planar.position.y
    message.transform.rotation = planar.orientation
    return message


class TfPublisher:
    """Sends transforms; says once, and then nothing, where tf2_msgs is not installed."""

    def __init__(self, endpoints: Endpoints) -> None:
        self._publishers = []
        if TFMessage is None:
            endpoints.node.get_logger().warning('tf2_msgs is not installed: no transforms are published')
            return
        self._publishers = [
            endpoints.publisher(TFMessage, '/tf', DYNAMIC),
            endpoints.publisher(TFMessage, '/tf_static', STATIC),
        ]

    def send(self, transforms: Iterable[TransformStamped]) -> None:
        """On /tf."""
        for publisher in self._publishers[:1]:
            publisher.publish(TFMessage(transforms=list(transforms)))

    def send_static(self, transforms: Iterable[TransformStamped]) -> None:
        """On /tf_static; call it once with all of a node's static transforms."""
        for publisher in self._publishers[1:]:
            publisher.publish(TFMessage(transforms=list(transforms)))
