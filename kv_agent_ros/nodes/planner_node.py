"""The Copilot planner as a node: plan_task and explain_failure. It keeps nothing between calls."""

from dataclasses import dataclass
import threading

from kv_agent_ros.agent.base import PlanRequest
from kv_agent_ros.agent.planner import CopilotPlanner
from kv_agent_ros.agent.task import Task
from kv_agent_ros.build.planner import open_planner
from kv_agent_ros.config import PlannerConfig
from kv_agent_ros.deadline import Deadline
from kv_agent_ros.errors import Outcome, Status
from kv_agent_ros.inspector.metrics import Metric
from kv_agent_ros.ros.clients import RosBackend
from kv_agent_ros.ros.conversions.inference import message_from_msg, message_to_msg, turn_to_msg
from kv_agent_ros.ros.conversions.kv import session_from_msg
from kv_agent_ros.ros.conversions.memory import recollection_from_msg
from kv_agent_ros.ros.conversions.plan import plan_to_msg
from kv_agent_ros.ros.conversions.world import world_from_msg
from kv_agent_ros.ros.endpoints import Endpoints
from kv_agent_ros.ros.metrics import to_metrics
from kv_agent_ros.ros.runtime import ManagedNode, NodeSpec, run_node
from kv_agent_ros.srv import ExplainFailure, PlanTask


@dataclass(frozen=True, kw_only=True, slots=True)
class PlannerCore:
    """Nothing is held open before activation."""

    def close(self) -> None:
        """Nothing to free."""


class PlannerService:
    """The callbacks, and how many plans came from whom."""

    def __init__(self, planner: CopilotPlanner) -> None:
        self._planner = planner
        self._lock = threading.Lock()
        self._sources: dict[str, int] = {'model': 0, 'rule': 0, 'none': 0}

    def plan(self, request: PlanTask.Request, response: PlanTask.Response) -> Status:
        """plan_task."""
        proposal = self._planner.plan(_plan_request(request, request.refusal), Deadline(request.timeout_s))
        with self._lock:
            self._sources[proposal.plan.source.value if proposal.plan else 'none'] += 1
        if proposal.plan is not None:
            response.plan = plan_to_msg(proposal.plan)
        response.appended = [message_to_msg(message) for message in proposal.appended]
        response.turns = [turn_to_msg(turn) for turn in proposal.turns]
        response.notes = list(proposal.notes)
        return Status(outcome=proposal.outcome, message=proposal.message)

    def explain(self, request: ExplainFailure.Request, response: ExplainFailure.Response) -> Status:
        """explain_failure."""
        deadline = Deadline(request.timeout_s)
        explanation = self._planner.explain(_plan_request(request, ''), request.facts, deadline)
        response.text = explanation.text
        response.appended = [message_to_msg(message) for message in explanation.appended]
        response.turns = [turn_to_msg(turn) for turn in explanation.turns]
        if explanation.text:
            return Status()
        return Status(outcome=Outcome.MODEL_UNAVAILABLE, message='the model gave no explanation')

    def metrics(self) -> list[Metric]:
        """Plans by source."""
        with self._lock:
            return [Metric(name=f'plans_by_{source}', value=count) for source, count in self._sources.items()]


def _plan_request(request: PlanTask.Request | ExplainFailure.Request, refusal: str) -> PlanRequest:
    session = session_from_msg(request.session)
    recollections = request.recollections if isinstance(request, PlanTask.Request) else ()
    return PlanRequest(
        session=session,
        history=tuple(message_from_msg(message) for message in request.history),
        task=Task(task_id=request.task_id, robot_id=session.robot_id, instruction=request.instruction),
        world=world_from_msg(request.world),
        recollections=tuple(recollection_from_msg(item) for item in recollections),
        refusal=refusal,
    )


def open_core(config: PlannerConfig, node: ManagedNode) -> PlannerCore:
    """Nothing to open."""
    return PlannerCore()


def serve(core: PlannerCore, config: PlannerConfig, endpoints: Endpoints) -> None:
    """The planner around the engine's client, then its services."""
    service = PlannerService(open_planner(config, RosBackend(endpoints, '')))
    endpoints.service(PlanTask, 'plan_task', service.plan)
    endpoints.service(ExplainFailure, 'explain_failure', service.explain)
    endpoints.stats(lambda: to_metrics(service.metrics()))


SPEC = NodeSpec(name='planner_node', config=PlannerConfig, open=open_core, serve=serve)


def main() -> int:
    """Entry point."""
    return run_node(SPEC)
