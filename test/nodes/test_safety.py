"""What stops a robot and what never moves it, over a real graph with the simulator at twice real time."""

from collections.abc import Callable, Iterator
import math
from pathlib import Path
import time

from geometry_msgs.msg import TwistStamped
import pytest
from running_graph import RunningGoal, RunningGraph, poll

from kv_agent_ros.action import ExecuteStep
from kv_agent_ros.errors import Outcome
from kv_agent_ros.msg import Argument, Plan, PlanStep, SafetyState
from kv_agent_ros.ros.qos import COMMAND, STATE
from kv_agent_ros.srv import CheckPlan, QueryAudit, ResetEmergencyStop, TriggerEmergencyStop

STILL_S = 1.0
WATCHED_S = 1.0
GATE_TIMEOUT_S = 2.0
POLICY = Path(__file__).parents[2] / 'config' / 'policies' / 'default.yaml'


@pytest.fixture(scope='module')
def running_home(
    open_graph: Callable[..., RunningGraph], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[RunningGraph]:
    """One robot whose policy keeps it out of the bathroom."""
    policy = tmp_path_factory.mktemp('policy') / 'no_bathroom.yaml'
    text = POLICY.read_text()
    assert 'rooms: []' in text
    policy.write_text(text.replace('rooms: []', 'rooms: [bathroom]'))
    yield open_graph(
        {
            'simulator_node': {'realtime_factor': 2.0, 'gate_timeout_s': GATE_TIMEOUT_S},
            'harness_node': {'policy': str(policy)},
        }
    )


@pytest.fixture
def graph(running_home: RunningGraph) -> RunningGraph:
    """That graph with no task running and no latch set."""
    running_home.call(ResetEmergencyStop, '/robot1/reset_estop', operator_name='tester')
    poll(lambda: not is_moving(running_home), 5.0, 'a robot that stands')
    return running_home


def is_moving(graph: RunningGraph) -> bool:
    """By the simulator's truth."""
    velocity = graph.robot().velocity
    return abs(velocity.linear.x) > 1e-3 or abs(velocity.angular.z) > 1e-3


def stays(graph: RunningGraph) -> bool:
    """Whether the robot is at the same place after being watched for a while."""
    before = graph.position()
    ends_at = time.monotonic() + WATCHED_S
    poll(lambda: time.monotonic() > ends_at or graph.position() != before, WATCHED_S + 5.0, 'a watched robot')
    return graph.position() == before


def navigation(graph: RunningGraph) -> RunningGoal:
    """A long way that the robot is on."""
    place = 'bedroom' if graph.position()[0] < 5.0 else 'kitchen'
    begun = graph.position()
    task = graph.start_task(f'go to the {place}')
    poll(lambda: math.dist(begun, graph.position()) > 0.3 or task.future.done(), 30.0, 'a robot under way')
    assert not task.future.done(), task.result()
    return task


def plan_of(skill: str, **arguments: str | float) -> Plan:
    """A plan of one step."""
    step = PlanStep(skill=skill)
    for name, value in arguments.items():
        is_text = isinstance(value, str)
        kind = Argument.TEXT if is_text else Argument.NUMBER
        step.arguments.append(
            Argument(name=name, kind=kind, text=value if is_text else '', number=0.0 if is_text else value)
        )
    return Plan(source='operator', steps=[step])


def test_a_cancel_in_the_middle_of_a_navigation_stands_the_robot_still_within_a_second(graph: RunningGraph) -> None:
    task = navigation(graph)
    task.cancel()
    poll(lambda: not is_moving(graph), STILL_S, 'a robot that stands after a cancel')
    assert stays(graph)
    assert Outcome(task.result().result.error_code) is Outcome.CANCELED


def test_an_emergency_stop_in_motion_stops_latches_and_ends_the_task(graph: RunningGraph) -> None:
    states: list[SafetyState] = []
    graph.endpoints.subscription(SafetyState, '/robot1/safety_state', STATE, states.append)
    task = navigation(graph)
    stopped = graph.call(TriggerEmergencyStop, '/robot1/estop', reason='a test')
    assert Outcome(stopped.result.error_code) is Outcome.SUCCESS, stopped.result.error_msg
    assert not is_moving(graph)
    assert Outcome(task.result().result.error_code) is Outcome.EMERGENCY_STOPPED
    poll(lambda: states and states[-1].is_estopped, 5.0, 'the latched safety state')
    assert states[-1].reason == 'a test'


def test_nothing_moves_a_latched_robot_until_a_named_person_resets_it(graph: RunningGraph) -> None:
    graph.call(TriggerEmergencyStop, '/robot1/estop', reason='a test')
    before = graph.position()
    refused = graph.call(CheckPlan, '/robot1/check_plan', plan=plan_of('navigate', target='bedroom'))
    assert 'estop.latched' in refused.result.error_msg
    task = graph.do_task('go to the bedroom')
    assert Outcome(task.result.error_code) in (Outcome.EMERGENCY_STOPPED, Outcome.REJECTED_BY_GATE)
    assert 'estop' in task.result.error_msg
    nameless = graph.call(ResetEmergencyStop, '/robot1/reset_estop', operator_name=' ')
    assert Outcome(nameless.result.error_code) is Outcome.BAD_REQUEST
    still_refused = graph.call(CheckPlan, '/robot1/check_plan', plan=plan_of('navigate', target='bedroom'))
    assert 'estop.latched' in still_refused.result.error_msg
    reset = graph.call(ResetEmergencyStop, '/robot1/reset_estop', operator_name='tester')
    assert Outcome(reset.result.error_code) is Outcome.SUCCESS
    assert stays(graph)
    assert graph.position() == before
    allowed = graph.call(CheckPlan, '/robot1/check_plan', plan=plan_of('navigate', target='bedroom'))
    assert Outcome(allowed.result.error_code) is Outcome.SUCCESS, allowed.result.error_msg


@pytest.mark.parametrize(
    ('plan', 'rule_id'),
    [
        pytest.param(plan_of('explode', target='kitchen'), 'skill.unknown', id='an unknown skill'),
        pytest.param(plan_of('navigate', target='kitchen', speed_mps=50.0), 'argument.range', id='an absurd speed'),
        pytest.param(plan_of('navigate', target='kitchen', speed_mps=math.nan), 'argument.range', id='a speed of NaN'),
        pytest.param(plan_of('navigate', target='kitchen', speed_mps=math.inf), 'argument.range', id='infinite speed'),
        pytest.param(plan_of('navigate', target='kitchen', speed_mps=-0.5), 'argument.range', id='a negative speed'),
        pytest.param(plan_of('navigate', target='bathroom'), 'zone.keep_out', id='a keep-out room'),
        pytest.param(plan_of('navigate', target='washing_machine'), 'zone.keep_out', id='a keep-out zone'),
        pytest.param(plan_of('navigate', target='atlantis'), 'name.unknown', id='an unknown place'),
        pytest.param(plan_of('navigate'), 'argument.schema', id='a missing argument'),
        pytest.param(Plan(source='operator'), 'plan', id='an empty plan'),
    ],
)
def test_a_plan_that_must_not_be_is_refused_with_its_rule_and_nothing_moves(
    graph: RunningGraph, plan: Plan, rule_id: str
) -> None:
    before = graph.position()
    refused = graph.call(CheckPlan, '/robot1/check_plan', plan=plan)
    assert Outcome(refused.result.error_code) in (Outcome.REJECTED_BY_GATE, Outcome.BAD_REQUEST), refused
    assert rule_id in refused.result.error_msg
    done = graph.send(ExecuteStep, '/robot1/execute_step', plan_id=refused.verdict.plan_id or 'none').result()
    assert Outcome(done.result.error_code) is Outcome.REJECTED_BY_GATE
    assert 'plan.expired' in done.result.error_msg
    assert not is_moving(graph)
    assert graph.position() == before


def test_a_step_of_an_unknown_plan_is_refused_and_recorded(graph: RunningGraph) -> None:
    before = graph.position()
    done = graph.send(ExecuteStep, '/robot1/execute_step', plan_id='0123456789abcdef', task_id='t-unknown').result()
    assert Outcome(done.result.error_code) is Outcome.REJECTED_BY_GATE
    assert done.result.error_msg.startswith('plan.expired')
    assert graph.position() == before
    audit = graph.call(QueryAudit, '/robot1/query_audit', task_id='t-unknown', limit=5, verify=True)
    assert audit.is_verified, audit.result.error_msg
    assert [record.task_id for record in audit.records] == ['t-unknown']


def test_commanded_velocities_are_limited_and_end_with_their_commander(graph: RunningGraph) -> None:
    sent: list[tuple[float, float]] = []

    def note(message: TwistStamped) -> None:
        sent.append((message.twist.linear.x, message.twist.angular.z))

    graph.endpoints.subscription(TwistStamped, '/robot1/cmd_vel', COMMAND, note)
    commander = graph.endpoints.publisher(TwistStamped, '/robot1/cmd_vel_in', COMMAND)
    poll(lambda: commander.get_subscription_count() > 0, 10.0, 'the harness on cmd_vel_in')
    command = TwistStamped()
    command.twist.angular.z = 9.0

    def drive() -> bool:
        commander.publish(command)
        return len(sent) > 12 and is_moving(graph)

    poll(drive, 10.0, 'a robot that turns')
    assert 0.0 < max(abs(angular) for _, angular in sent) <= 1.2 + 1e-6
    assert max(abs(linear) for linear, _ in sent) <= 0.6 + 1e-6
    poll(lambda: sent[-1] == (0.0, 0.0) and not is_moving(graph), 3.0, 'zero velocity after silence')
    poll(drive, 10.0, 'a robot that turns again')
    graph.call(TriggerEmergencyStop, '/robot1/estop', reason='a test')
    commander.publish(command)
    poll(lambda: sent[-1] == (0.0, 0.0), 3.0, 'zero velocity on an e-stop')
    count = len(sent)

    def keep_commanding() -> bool:
        commander.publish(command)
        return time.monotonic() > ends_at

    ends_at = time.monotonic() + WATCHED_S
    poll(keep_commanding, WATCHED_S + 5.0, 'a commander that goes on')
    assert all(velocity == (0.0, 0.0) for velocity in sent[count:])
    assert not is_moving(graph)


def test_a_dead_harness_ends_the_task_as_a_typed_failure_and_nothing_moves(graph: RunningGraph) -> None:
    before = graph.position()
    graph.graph.kill('robot1/harness_node')
    try:
        result = graph.do_task('go to the bedroom', timeout_s=60.0)
    finally:
        graph.graph.start('robot1/harness_node')
    assert Outcome(result.result.error_code) in (Outcome.TIMEOUT, Outcome.REJECTED_BY_GATE), result.result
    assert 'check_plan' in result.result.error_msg
    assert graph.position() == before
    poll(lambda: is_allowed(graph, plan_of('navigate', target='bedroom')), 60.0, 'a harness that allows again')


def test_a_robot_whose_harness_dies_in_motion_stands_still_and_does_not_go_on(graph: RunningGraph) -> None:
    task = navigation(graph)
    graph.graph.kill('robot1/harness_node')
    try:
        poll(lambda: not is_moving(graph), GATE_TIMEOUT_S + STILL_S, 'a robot that stands without its gate')
        room = graph.robot().room
        assert stays(graph)
        ended = task.result()
    finally:
        graph.graph.start('robot1/harness_node')
    assert room not in ('bedroom', 'kitchen')
    assert Outcome(ended.result.error_code) is not Outcome.SUCCESS
    poll(lambda: is_allowed(graph, plan_of('navigate', target='bedroom')), 60.0, 'a harness that allows again')


def test_without_a_world_model_plans_and_steps_are_stale_and_nothing_moves(graph: RunningGraph) -> None:
    allowed = graph.call(CheckPlan, '/robot1/check_plan', plan=plan_of('navigate', target='bedroom'))
    assert Outcome(allowed.result.error_code) is Outcome.SUCCESS, allowed.result.error_msg
    before = graph.position()
    graph.graph.kill('world_model_node')
    try:
        poll(lambda: 'world.stale' in refusal_of(graph, plan_of('navigate', target='kitchen')), 20.0, 'world.stale')
        done = graph.send(ExecuteStep, '/robot1/execute_step', plan_id=allowed.verdict.plan_id).result()
    finally:
        graph.graph.start('world_model_node')
    assert Outcome(done.result.error_code) is Outcome.REJECTED_BY_GATE
    assert 'world.stale' in done.result.error_msg
    assert graph.position() == before
    poll(lambda: is_allowed(graph, plan_of('navigate', target='kitchen')), 60.0, 'a world model that sees again')


def refusal_of(graph: RunningGraph, plan: Plan) -> str:
    """What the gate has against a plan, '' when it allows it."""
    return str(graph.call(CheckPlan, '/robot1/check_plan', plan=plan).result.error_msg)


def is_allowed(graph: RunningGraph, plan: Plan) -> bool:
    """Whether the gate answers and allows a plan."""
    answer = graph.answered(CheckPlan, '/robot1/check_plan', plan=plan)
    return answer is not None and Outcome(answer.result.error_code) is Outcome.SUCCESS
