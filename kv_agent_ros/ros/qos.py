"""The QoS profiles of the suite, one per use; ROBOT conventions of ROS 2 (docs.ros.org, About QoS)."""

from rclpy.qos import DurabilityPolicy, QoSProfile, ReliabilityPolicy

SENSOR = QoSProfile(depth=5, reliability=ReliabilityPolicy.BEST_EFFORT)
"""Scan, odometry, detections: the newest counts, a lost one does not."""

STATE = QoSProfile(depth=1, reliability=ReliabilityPolicy.RELIABLE, durability=DurabilityPolicy.TRANSIENT_LOCAL)
"""World state, map, markers, safety state: late joiners get the last one."""

EVENT = QoSProfile(depth=100, reliability=ReliabilityPolicy.RELIABLE)
"""Streams in which each message counts: observations, KV events, /tf, /diagnostics."""

COMMAND = QoSProfile(depth=1, reliability=ReliabilityPolicy.RELIABLE)
"""Velocity commands: only the newest, stamped."""

NEWEST = QoSProfile(depth=1, reliability=ReliabilityPolicy.RELIABLE)
"""Of a stream only the newest, for who acts on what is so now: observations at the velocity guard."""
