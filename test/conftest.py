"""Every test process gets a ROS domain of its own, visible on this machine only."""

import os

# Below 102, where the ports of a domain stay clear of those that the system hands out.
os.environ['ROS_DOMAIN_ID'] = str(1 + os.getpid() % 101)
os.environ['ROS_AUTOMATIC_DISCOVERY_RANGE'] = 'LOCALHOST'
