"""The name by which a server knows a robot's session: one string for both parts of the key."""

from urllib.parse import quote

from kv_agent_ros.kvcache.block import SessionKey


def session_name(session: SessionKey) -> str:
    """Robot and session as one string; no two sessions share one, whatever characters they hold."""
    return f'{quote(session.robot_id, safe="")}/{quote(session.session_id, safe="")}'
