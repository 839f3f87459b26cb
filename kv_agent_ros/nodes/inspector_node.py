"""The inspector as a node: everybody's books to /diagnostics, to inspect_infra and to Prometheus."""

from collections.abc import Callable
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
import threading

from diagnostic_msgs.msg import DiagnosticArray

from kv_agent_ros.config import InspectorConfig
from kv_agent_ros.errors import UnreachableError
from kv_agent_ros.inspector.inspector import InfraInspector
from kv_agent_ros.inspector.metrics import Metric, Source, prometheus_text
from kv_agent_ros.ros.endpoints import Endpoints
from kv_agent_ros.ros.metrics import finding_to_msg, from_metrics, report_to_diagnostics, to_metrics
from kv_agent_ros.ros.qos import EVENT
from kv_agent_ros.ros.runtime import ManagedNode, NodeSpec, run_node
from kv_agent_ros.srv import GetStats, InspectInfra

SHARED_NODES = ('inference_node', 'kv_cache_node', 'world_model_node', 'memory_node', 'planner_node')
ROBOT_NODES = ('agent_node', 'harness_node', 'perception_node')
STATS_TIMEOUT_S = 1.0


@dataclass(frozen=True, kw_only=True, slots=True)
class InspectorCore:
    """Nothing is held open before activation."""

    def close(self) -> None:
        """Nothing to free."""


class InspectorService:
    """The callbacks."""

    def __init__(self, inspector: InfraInspector, endpoints: Endpoints) -> None:
        self._inspector = inspector
        self._endpoints = endpoints
        self._diagnostics = endpoints.publisher(DiagnosticArray, '/diagnostics', EVENT)

    def inspect(self, request: InspectInfra.Request, response: InspectInfra.Response) -> None:
        """inspect_infra: every metric under node/name."""
        report = self._inspector.inspect()
        named = [
            Metric(name=f'{node}/{metric.name}', value=metric.value, unit=metric.unit)
            for node, metrics in report.samples.items()
            for metric in metrics
        ]
        response.metrics = to_metrics(named)
        response.findings = [finding_to_msg(finding) for finding in report.findings]

    def publish(self) -> None:
        """/diagnostics."""
        self._diagnostics.publish(report_to_diagnostics(self._inspector.inspect(), self._endpoints.now_s()))

    def prometheus(self) -> str:
        """The text of the Prometheus endpoint."""
        return prometheus_text(dict(self._inspector.inspect().samples))


def _source(name: str, endpoints: Endpoints) -> Source:
    caller = endpoints.service_caller(GetStats, f'{name}/get_stats')

    def read() -> list[Metric]:
        if not caller.is_ready:
            raise UnreachableError(f'{name}: no such node in the graph')
        return from_metrics(caller.call(GetStats.Request(), STATS_TIMEOUT_S).metrics)

    return Source(name=name, read=read)


def serve(core: InspectorCore, config: InspectorConfig, endpoints: Endpoints) -> None:
    """Sources, diagnostics, service and, when asked for, the Prometheus endpoint."""
    names = [*SHARED_NODES, *(f'{robot}/{node}' for robot in config.robots for node in ROBOT_NODES)]
    service = InspectorService(InfraInspector([_source(name, endpoints) for name in names]), endpoints)
    endpoints.service(InspectInfra, 'inspect_infra', service.inspect)
    endpoints.timer(1.0 / config.rate_hz, service.publish)
    if config.prometheus_port:
        _serve_prometheus(config.prometheus_port, service.prometheus, endpoints)


def _serve_prometheus(port: int, text: Callable[[], str], endpoints: Endpoints) -> None:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body = text().encode()
            self.send_response(200)
            self.send_header('Content-Type', 'text/plain; version=0.0.4')
            self.send_header('Content-Length', str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:
            """Requests are not logged."""

    server = ThreadingHTTPServer(('127.0.0.1', port), Handler)
    threading.Thread(target=server.serve_forever, name='prometheus', daemon=True).start()
    endpoints.on_close(server.server_close)
    endpoints.on_close(server.shutdown)


def open_inspector(config: InspectorConfig, node: ManagedNode) -> InspectorCore:
    """Nothing to open."""
    return InspectorCore()


SPEC = NodeSpec(name='inspector_node', config=InspectorConfig, open=open_inspector, serve=serve)


def main() -> int:
    """Entry point."""
    return run_node(SPEC)
