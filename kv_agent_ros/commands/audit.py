"""`kv_agent audit verify DIR --key FILE`: is this audit log whole, and if not, where does it break?"""

import argparse
from collections.abc import Sequence
from pathlib import Path

from kv_agent_ros.config import expand
from kv_agent_ros.errors import KvAgentError
from kv_agent_ros.harness.audit_key import load_audit_key
from kv_agent_ros.harness.audit_verify import verify

DEFAULT_KEY = '~/.config/kv_agent_ros/audit.key'


def main(arguments: Sequence[str]) -> int:
    """0 = whole, 1 = broken, 2 = cannot be read."""
    parser = argparse.ArgumentParser(prog='kv_agent audit', description='Verify an audit log.')
    parser.add_argument('command', choices=['verify'])
    parser.add_argument('directory', help='folder of the log, e.g. ~/.local/state/kv_agent_ros/audit/robot1')
    parser.add_argument('--key', default=DEFAULT_KEY, help=f'file of the key ({DEFAULT_KEY})')
    options = parser.parse_args(arguments)
    directory, key_file = expand(options.directory), expand(options.key)
    for path in (directory, key_file):
        if not path.exists():
            print(f'{path}: does not exist')
            return 2
    return _report(directory, key_file)


def _report(directory: Path, key_file: Path) -> int:
    try:
        report = verify(directory, load_audit_key(key_file, directory))
    except KvAgentError as error:
        print(error)
        return 2
    torn = f', a torn last line of {report.torn_bytes} bytes (a crash)' if report.torn_bytes else ''
    if report.is_ok:
        print(f'ok: {report.num_records} records, {report.num_sealed} sealed by the key{torn}')
        return 0
    if 'not made with this key' in report.reason:
        print(f"{report.first_bad}: {report.reason}; is it another log's key? Name the right one with --key")
        return 2
    print(f'BROKEN at {report.first_bad}: {report.reason}; {report.num_records} records before it hold')
    return 1
