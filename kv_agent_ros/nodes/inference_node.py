"""A language model as a node: `generate` by service, `generate_stream` by action, KV reuse through kv_cache_node."""

from rclpy.action.server import ServerGoalHandle

from kv_agent_ros.action import GenerateStream
from kv_agent_ros.build.engine import EngineFactory, open_engine
from kv_agent_ros.config import InferenceConfig
from kv_agent_ros.deadline import Deadline
from kv_agent_ros.errors import Status
from kv_agent_ros.inference.base import InferenceBackend
from kv_agent_ros.inspector.metrics import engine_metrics
from kv_agent_ros.nodes.session_services import serve_sessions
from kv_agent_ros.ros.clients import RosPrefixCache
from kv_agent_ros.ros.conversions.inference import fill_generation, read_generation_request
from kv_agent_ros.ros.endpoints import Endpoints
from kv_agent_ros.ros.goals import cancel_with
from kv_agent_ros.ros.metrics import to_metrics
from kv_agent_ros.ros.runtime import NodeSpec, run_node
from kv_agent_ros.srv import Generate


class InferenceService:
    """The callbacks."""

    def __init__(self, backend: InferenceBackend) -> None:
        self._backend = backend

    def generate(self, request: Generate.Request, response: Generate.Response) -> Status:
        """generate."""
        generation = self._backend.generate(read_generation_request(request), Deadline(request.timeout_s))
        fill_generation(generation, response)
        return Status(outcome=generation.outcome, message=generation.message)

    def stream(self, goal: ServerGoalHandle, result: GenerateStream.Result) -> Status:
        """generate_stream."""

        def send(text: str) -> None:
            goal.publish_feedback(GenerateStream.Feedback(text=text))

        with cancel_with(goal, Deadline(goal.request.timeout_s)) as deadline:
            generation = self._backend.generate(read_generation_request(goal.request), deadline, send)
        fill_generation(generation, result)
        return Status(outcome=generation.outcome, message=generation.message)


def serve(engine: EngineFactory, config: InferenceConfig, endpoints: Endpoints) -> None:
    """The engine around the cache's client, then service and action."""
    backend = engine.make(RosPrefixCache(endpoints, '', config.cache_timeout_s))
    for sessions in engine.sessions:
        serve_sessions(sessions, endpoints)
    endpoints.on_close(backend.close)
    service = InferenceService(backend)
    endpoints.service(Generate, 'generate', service.generate)
    endpoints.action(GenerateStream, 'generate_stream', service.stream)
    endpoints.stats(lambda: to_metrics(engine_metrics(backend.stats())))


SPEC = NodeSpec(
    name='inference_node',
    config=InferenceConfig,
    open=lambda config, node: open_engine(config, node.get_logger().info),
    serve=serve,
)


def main() -> int:
    """Entry point."""
    return run_node(SPEC)
