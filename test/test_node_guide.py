"""docs/nodes.md tells of every service, action and parameter that the nodes have."""

from pathlib import Path
import re

import pytest
import yaml

ROOT = Path(__file__).resolve().parent.parent
GUIDE = (ROOT / 'docs' / 'nodes.md').read_text(encoding='utf-8')
SECTIONS = dict(re.findall(r'^### (\w+_node)\n(.*?)(?=^##|\Z)', GUIDE, re.MULTILINE | re.DOTALL))
SERVED = re.compile(r"endpoints\.(service|action)\((\w+), (?:topic\()?'([^']+)'")
MODULES = sorted((ROOT / 'kv_agent_ros' / 'nodes').glob('*.py'))


@pytest.mark.parametrize('module', MODULES, ids=lambda path: path.stem)
def test_every_service_and_action_is_told_with_its_type(module: Path) -> None:
    rows = set(re.findall(r'^\| `(?:<robot>/)?([^`]+)` \| (service|action) \| (\w+) \|', GUIDE, re.MULTILINE))
    served = {(name, kind, type_name) for kind, type_name, name in SERVED.findall(module.read_text(encoding='utf-8'))}

    assert served - rows == set()


@pytest.mark.parametrize('node', sorted(SECTIONS))
def test_every_parameter_is_told_with_its_default(node: str) -> None:
    defaults = yaml.safe_load((ROOT / 'config' / f'{node}.yaml').read_text(encoding='utf-8'))[f'/**/{node}']
    rows = re.findall(r'^\| `(\w+)` \| `([^`]*)` \|', SECTIONS[node], re.MULTILINE)

    assert {name: yaml.safe_load(told) for name, told in rows} == defaults['ros__parameters']
