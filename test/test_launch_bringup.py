"""bringup.launch.py really runs: every node becomes active, and Ctrl-C ends all of them with exit code 0."""

from pathlib import Path
import tempfile
import time
import unittest

from launch import LaunchDescription
from launch.actions import IncludeLaunchDescription
from launch.launch_description_sources import PythonLaunchDescriptionSource
import launch_testing.actions
import launch_testing.asserts
from lifecycle_msgs.msg import State
from lifecycle_msgs.srv import GetState
import pytest
import rclpy
from rclpy.client import Client
import yaml

BRINGUP = Path(__file__).resolve().parent.parent / 'launch' / 'bringup.launch.py'
STATEFUL = ('memory_node', 'kv_cache_node', 'harness_node', 'agent_node')
NODES = (
    '/simulator_node',
    '/inference_node',
    '/inspector_node',
    '/kv_cache_node',
    '/memory_node',
    '/planner_node',
    '/world_model_node',
    '/robot1/agent_node',
    '/robot1/harness_node',
    '/robot1/perception_node',
)
START_TIMEOUT_S = 90.0


@pytest.mark.launch_test
def generate_test_description() -> LaunchDescription:
    folder = Path(tempfile.mkdtemp())
    settings = {f'/**/{name}': {'ros__parameters': {'state_dir': str(folder)}} for name in STATEFUL}
    params_file = folder / 'params.yaml'
    params_file.write_text(yaml.safe_dump(settings), encoding='utf-8')
    arguments = {'engine': 'none', 'params_file': str(params_file)}
    bringup = IncludeLaunchDescription(PythonLaunchDescriptionSource(str(BRINGUP)), launch_arguments=arguments.items())
    return LaunchDescription([bringup, launch_testing.actions.ReadyToTest()])


class TestRunning(unittest.TestCase):
    def setUp(self) -> None:
        rclpy.init()
        self.node = rclpy.create_node('visitor')

    def tearDown(self) -> None:
        self.node.destroy_node()
        rclpy.try_shutdown()

    def test_every_node_becomes_active(self) -> None:
        ends_at = time.monotonic() + START_TIMEOUT_S
        for name in NODES:
            client = self.node.create_client(GetState, f'{name}/get_state')
            self.assertTrue(client.wait_for_service(timeout_sec=ends_at - time.monotonic()), f'{name} is not there')
            state = self.state_of(client)
            while state != State.PRIMARY_STATE_ACTIVE and time.monotonic() < ends_at:
                state = self.state_of(client)
            self.assertEqual(state, State.PRIMARY_STATE_ACTIVE, name)

    def state_of(self, client: Client) -> int:
        reply = client.call_async(GetState.Request())
        rclpy.spin_until_future_complete(self.node, reply, timeout_sec=5.0)
        return reply.result().current_state.id if reply.done() else State.PRIMARY_STATE_UNKNOWN


@launch_testing.post_shutdown_test()
class TestStopped(unittest.TestCase):
    def test_every_process_ended_on_request(self, proc_info) -> None:
        launch_testing.asserts.assertExitCodes(proc_info)

    def test_no_traceback_was_printed(self, proc_output) -> None:
        for process in proc_output.processes():
            text = ''.join(part.text.decode(errors='replace') for part in proc_output[process])
            self.assertNotIn('Traceback', text)
