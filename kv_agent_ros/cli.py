"""`kv_agent`: the command line around the graph. Signals first, the rest of the imports when a command needs them."""

import importlib
import os
import signal
import sys

COMMANDS = {
    'demo': ('kv_agent_ros.demo.main', 'a simulated robot does a task over a real ROS 2 graph'),
    'prepare': ('kv_agent_ros.commands.prepare', 'convert the bundled model into the cache folder, once'),
    'doctor': ('kv_agent_ros.commands.doctor', 'check this installation and say what is missing'),
    'audit': ('kv_agent_ros.commands.audit', 'verify an audit log: chain, checkpoints, torn lines'),
}


def main() -> int:
    """Entry point."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: os._exit(0))
    if len(sys.argv) < 2 or sys.argv[1] not in COMMANDS:
        print('usage: kv_agent COMMAND [options]\n')
        print('\n'.join(f'  {name:<9} {text}' for name, (_, text) in COMMANDS.items()))
        return 0 if {'-h', '--help'} & set(sys.argv[1:2]) else 2
    module = importlib.import_module(COMMANDS[sys.argv[1]][0])
    return int(module.main(sys.argv[2:]))


if __name__ == '__main__':
    sys.exit(main())
