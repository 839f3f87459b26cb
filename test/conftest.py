"""Every test process gets a ROS domain of its own, visible on this machine only."""

from importlib.util import find_spec
import os

from hypothesis import HealthCheck, settings

# Below 102, where the ports of a domain stay clear of those that the system hands out.
os.environ['ROS_DOMAIN_ID'] = str(1 + os.getpid() % 101)
os.environ['ROS_AUTOMATIC_DISCOVERY_RANGE'] = 'LOCALHOST'

# How fast examples are made says more about the machine than about them.
settings.register_profile('any_machine', deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile('any_machine')

# The ROS 2 wheels bring no launch.
collect_ignore_glob = [] if find_spec('launch_testing') else ['test_launch_*.py']
