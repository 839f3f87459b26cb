"""The robots' memory as a node: remember, recall, forget."""

from kv_agent_ros.build.memory import open_memory
from kv_agent_ros.config import MemoryConfig
from kv_agent_ros.errors import Outcome, Status
from kv_agent_ros.inspector.metrics import Metric
from kv_agent_ros.memory.base import Memory
from kv_agent_ros.memory.embedding_memory import EmbeddingMemory
from kv_agent_ros.ros.conversions.memory import kind_from_text, recollection_to_msg, record_from_msg
from kv_agent_ros.ros.endpoints import Endpoints
from kv_agent_ros.ros.metrics import to_metrics
from kv_agent_ros.ros.runtime import NodeSpec, run_node
from kv_agent_ros.srv import ForgetRecord, RecallRecords, RememberRecord


class MemoryService:
    """The callbacks."""

    def __init__(self, memory: Memory) -> None:
        self._memory = memory

    def remember(self, request: RememberRecord.Request, response: RememberRecord.Response) -> None:
        """remember."""
        self._memory.remember(record_from_msg(request.record))

    def recall(self, request: RecallRecords.Request, response: RecallRecords.Response) -> None:
        """recall."""
        kind = kind_from_text(request.kind)
        found = self._memory.recall(request.text, request.robot_id, kind, request.limit)
        response.recollections = [recollection_to_msg(item) for item in found]

    def forget(self, request: ForgetRecord.Request, response: ForgetRecord.Response) -> Status:
        """forget."""
        if self._memory.forget(request.record_id):
            return Status()
        return Status(outcome=Outcome.BAD_REQUEST, message=f'no record {request.record_id!r}')

    def metrics(self) -> list[Metric]:
        """How much is remembered."""
        return [Metric(name='records', value=self._memory.count())]


def serve(memory: EmbeddingMemory, config: MemoryConfig, endpoints: Endpoints) -> None:
    """Services."""
    service = MemoryService(memory)
    endpoints.service(RememberRecord, 'remember', service.remember)
    endpoints.service(RecallRecords, 'recall', service.recall)
    endpoints.service(ForgetRecord, 'forget', service.forget)
    endpoints.stats(lambda: to_metrics(service.metrics()))


SPEC = NodeSpec(name='memory_node', config=MemoryConfig, open=lambda config, node: open_memory(config), serve=serve)


def main() -> int:
    """Entry point."""
    return run_node(SPEC)
