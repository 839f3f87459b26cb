"""The world model as a node: observations in, `world_state`, markers and map out, rehearsals as a service."""

from dataclasses import dataclass
from functools import partial

from nav_msgs.msg import OccupancyGrid
from visualization_msgs.msg import MarkerArray

from kv_agent_ros.build.home import load_world, world_path
from kv_agent_ros.config import WorldModelConfig
from kv_agent_ros.errors import BadRequestError, Outcome, Status
from kv_agent_ros.inspector.metrics import Metric
from kv_agent_ros.msg import Observation as ObservationMsg
from kv_agent_ros.msg import WorldState as WorldMsg
from kv_agent_ros.ros.conversions.plan import step_from_msg
from kv_agent_ros.ros.conversions.values import point_to_msg
from kv_agent_ros.ros.conversions.world import observation_from_msg, world_to_msg
from kv_agent_ros.ros.endpoints import Endpoints
from kv_agent_ros.ros.markers import occupancy_grid, world_markers
from kv_agent_ros.ros.metrics import to_metrics
from kv_agent_ros.ros.qos import EVENT, STATE
from kv_agent_ros.ros.runtime import ManagedNode, NodeSpec, run_node
from kv_agent_ros.srv import GetWorldState, PredictStep
from kv_agent_ros.world.describe import describe_map, describe_state
from kv_agent_ros.world.grid import occupancy
from kv_agent_ros.world.map_file import load_furniture
from kv_agent_ros.world.model import WorldModel


@dataclass(frozen=True, kw_only=True, slots=True)
class WorldCore:
    """The model; it holds nothing open."""

    model: WorldModel

    def close(self) -> None:
        """Nothing to free."""


def open_world(config: WorldModelConfig, node: ManagedNode) -> WorldCore:
    """The model around the configured map."""
    return WorldCore(model=WorldModel(load_world(config.world)))


class WorldService:
    """The callbacks."""

    def __init__(self, model: WorldModel, config: WorldModelConfig, endpoints: Endpoints) -> None:
        self._model = model
        self._config = config
        self._state = endpoints.publisher(WorldMsg, 'world_state', STATE)
        self._markers = endpoints.publisher(MarkerArray, 'world_markers', STATE)
        self._grid = endpoints.publisher(OccupancyGrid, 'map', STATE)

    def publish_map(self) -> None:
        """The occupancy grid, once."""
        furniture = load_furniture(world_path(self._config.world))
        grid = occupancy(self._model.snapshot().map, furniture, self._config.grid_resolution_m)
        self._grid.publish(occupancy_grid(grid.origin, grid.cells, grid.resolution_m))

    def observe(self, robot_id: str, message: ObservationMsg) -> None:
        """Apply an observation of that robot and publish the state that it makes."""
        if message.robot.robot_id != robot_id:
            raise BadRequestError(
                f'{robot_id}/observation: expected {robot_id}, got {message.robot.robot_id!r}; dropped'
            )
        self._state.publish(world_to_msg(self._model.apply(observation_from_msg(message))))

    def publish(self) -> None:
        """State and markers, at the configured rate."""
        world = self._model.snapshot()
        self._state.publish(world_to_msg(world))
        self._markers.publish(world_markers(world))

    def get(self, request: GetWorldState.Request, response: GetWorldState.Response) -> None:
        """get_world_state."""
        world = self._model.snapshot()
        response.world = world_to_msg(world)
        states = [describe_state(world, robot.robot_id) for robot in world.robots]
        response.description = '\n'.join([describe_map(world.map), *states])

    def predict(self, request: PredictStep.Request, response: PredictStep.Response) -> Status:
        """predict_step."""
        world = self._model.snapshot()
        prediction = self._model.predict(world, request.robot_id, step_from_msg(request.step))
        response.is_feasible, response.reason = prediction.is_feasible, prediction.reason
        response.duration_s, response.distance_m = prediction.duration_s, prediction.distance_m
        response.battery_used = prediction.battery_used
        response.path = [point_to_msg(point) for point in prediction.path]
        outcome = Outcome.SUCCESS if prediction.is_feasible else Outcome.PRECONDITION_FAILURE
        return Status(outcome=outcome, message=prediction.reason)

    def metrics(self) -> list[Metric]:
        """What is known."""
        world = self._model.snapshot()
        return [
            Metric(name='sequence', value=world.sequence),
            Metric(name='robots', value=len(world.robots)),
            Metric(name='objects', value=len(world.objects)),
            Metric(name='people', value=len(world.people)),
        ]


def serve(core: WorldCore, config: WorldModelConfig, endpoints: Endpoints) -> None:
    """Topics and services."""
    service = WorldService(core.model, config, endpoints)
    for robot in config.robots:
        endpoints.subscription(ObservationMsg, f'{robot}/observation', EVENT, partial(service.observe, robot))
    endpoints.service(GetWorldState, 'get_world_state', service.get)
    endpoints.service(PredictStep, 'predict_step', service.predict)
    endpoints.stats(lambda: to_metrics(service.metrics()))
    endpoints.timer(1.0 / config.rate_hz, service.publish)
    service.publish_map()


SPEC = NodeSpec(name='world_model_node', config=WorldModelConfig, open=open_world, serve=serve)


def main() -> int:
    """Entry point."""
    return run_node(SPEC)
