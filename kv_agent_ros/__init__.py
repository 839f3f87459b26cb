"""An LLM plans for robots and its KV cache is a managed robot resource; start reading at agent/robot_agent.py."""

from pkgutil import extend_path

# From the source tree (pytest, pip install -e) the generated kv_agent_ros.msg, .srv and .action are in another folder
# of the same package name: let them be found there.
__path__ = extend_path(__path__, __name__)
