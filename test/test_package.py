"""What packagers rely on: package.xml, setup.py, the locks, the executables and the interface files agree."""

import ast
from dataclasses import fields
from importlib import metadata
from pathlib import Path
import re
import xml.etree.ElementTree as ElementTree

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
import pytest
import yaml

from kv_agent_ros import config

ROOT = Path(__file__).resolve().parent.parent
PACKAGE_XML = ElementTree.parse(ROOT / 'package.xml').getroot()
INTERFACES = sorted(path for kind in ('msg', 'srv', 'action') for path in (ROOT / kind).glob(f'*.{kind}'))
NODES = re.findall(r'\w+', re.findall(r'IN ITEMS\s+([\w\s]+)\)', (ROOT / 'CMakeLists.txt').read_text())[0])
LAUNCH_FILES = ('fleet.launch.py', 'robot.launch.py')
FOREIGN = re.compile(r'_(sglang|llama_cpp)\w*\.py')  # peers of benchmarks, run by the Python of another environment
SNAKE_CASE = re.compile(r'[a-z][a-z0-9]*(_[a-z0-9]+)*')


def assignment(path: Path, name: str) -> object:
    """The literal that a module assigns to a name."""
    for node in ast.parse(path.read_text(encoding='utf-8')).body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == name:
            return ast.literal_eval(node.value)
    raise AssertionError(f'{path} assigns no literal to {name}')


def locked(name: str) -> dict[str, str]:
    lines = (ROOT / 'requirements' / f'{name}.txt').read_text(encoding='utf-8').splitlines()
    return dict(line.split('==') for line in lines if not line.startswith('#'))


def imported_roots(path: Path) -> set[str]:
    """The first names of all modules that a file imports."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text(encoding='utf-8'))):
        if isinstance(node, ast.Import):
            found |= {alias.name.split('.')[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            found.add((node.module or '').split('.')[0])
    return found


def config_of(node: str) -> set[str]:
    """The parameters of a node."""
    wanted = node.replace('_', '').removesuffix('node') + 'config'
    classes = {name.lower(): value for name, value in vars(config).items() if name.endswith('Config')}
    return {item.name for item in fields(classes[wanted])}


def field_lines(path: Path) -> list[tuple[int, str, str]]:
    """Line number, declaration and comment (on the line, or the block above) of every field and constant."""
    found, block, has_field_below = [], '', False
    for number, line in enumerate(path.read_text(encoding='utf-8').splitlines(), 1):
        declaration, _, comment = (part.strip() for part in line.partition('#'))
        if declaration and declaration != '---':
            found.append((number, declaration, comment or block))
            has_field_below = True
        elif comment and not declaration:
            block, has_field_below = (comment if has_field_below else f'{block} {comment}'.strip()), False
        else:
            block, has_field_below = '', False
    return found


def test_package_xml_is_valid():
    catkin_package = pytest.importorskip('catkin_pkg.package')

    package = catkin_package.parse_package(str(ROOT / 'package.xml'))

    package.validate()
    assert package.package_format == 3
    assert package.get_build_type() == 'ament_cmake'


def test_setup_py_takes_name_and_version_from_package_xml():
    text = (ROOT / 'setup.py').read_text(encoding='utf-8')

    assert "version=PACKAGE.findtext('version')" in text
    assert assignment(ROOT / 'setup.py', 'NAME') == PACKAGE_XML.findtext('name')
    assert re.fullmatch(r'\d+\.\d+\.\d+', PACKAGE_XML.findtext('version') or '')


@pytest.mark.parametrize('node', NODES)
def test_every_executable_is_a_module_with_a_main(node: str):
    tree = ast.parse((ROOT / 'kv_agent_ros' / 'nodes' / f'{node}.py').read_text(encoding='utf-8'))

    assert 'main' in [item.name for item in tree.body if isinstance(item, ast.FunctionDef)]


def test_every_node_module_is_an_executable():
    modules = {path.stem for path in (ROOT / 'kv_agent_ros' / 'nodes').glob('*.py')} - {'__init__'}

    assert {name for name in modules if name.endswith('_node')} <= set(NODES)


@pytest.mark.parametrize('path', INTERFACES, ids=lambda path: path.name)
def test_every_interface_field_says_what_it_means(path: Path):
    silent = [f'{path.name}:{number} {declaration}' for number, declaration, text in field_lines(path) if not text]

    assert silent == []


@pytest.mark.parametrize('path', INTERFACES, ids=lambda path: path.name)
def test_every_interface_is_named_as_ros_expects(path: Path):
    names = [declaration.split()[1] for _, declaration, _ in field_lines(path) if '=' not in declaration]

    assert re.fullmatch(r'([A-Z]+[a-z0-9]*)+', path.stem)
    assert [name for name in names if not SNAKE_CASE.fullmatch(name)] == []


def test_every_message_package_in_use_is_declared():
    declared = {item.text for item in PACKAGE_XML.iter() if item.tag.endswith('depend')}
    used = {
        alias.split('.')[0]
        for path in (ROOT / 'kv_agent_ros').rglob('*.py')
        for node in ast.walk(ast.parse(path.read_text(encoding='utf-8')))
        for alias in (
            [name.name for name in node.names]
            if isinstance(node, ast.Import)
            else [node.module or '']
            if isinstance(node, ast.ImportFrom)
            else []
        )
    }
    ros = {name for name in used if name.endswith(('_msgs', '_interfaces', '_srvs')) or name == 'rclpy'}

    assert ros - declared - {'rcl_interfaces'} == set(), 'missing in package.xml'


def test_every_pip_dependency_is_locked_within_its_range():
    setup = ROOT / 'setup.py'
    groups = {'': assignment(setup, 'INSTALL_REQUIRES'), **assignment(setup, 'EXTRAS_REQUIRE')}
    versions = locked('runtime') | locked('models') | locked('dev')
    wrong = []
    for texts in groups.values():
        for requirement in map(Requirement, texts):
            version = versions.get(canonicalize_name(requirement.name), 'missing')
            if version == 'missing' or version not in requirement.specifier:
                wrong.append(f'{requirement} but {version} in requirements/')

    assert wrong == []


def test_nothing_is_imported_that_only_this_environment_happens_to_have():
    """What the package, its tests and its benchmarks import comes from the locks, or a fresh environment lacks it."""
    names = {name for lock in ('ros', 'runtime', 'models', 'dev') for name in locked(lock)}
    unlocked = {
        module: distribution.metadata['Name']
        for module, names_here in metadata.packages_distributions().items()
        for distribution in map(metadata.distribution, names_here)
        if (distribution.read_text('INSTALLER') or '').strip() and canonicalize_name(distribution.name) not in names
    }
    sources = [path for folder in ('kv_agent_ros', 'test', 'benchmarks') for path in (ROOT / folder).rglob('*.py')]

    wrong = {
        f'{path.relative_to(ROOT)}: {module} of {unlocked[module]}'
        for path in sources
        if not FOREIGN.fullmatch(path.name)
        for module in imported_roots(path)
        if module in unlocked
    }

    assert wrong == set()


def test_the_locks_agree_on_every_version():
    seen: dict[str, str] = {}
    for name in ('ros', 'runtime', 'models', 'dev'):
        for package, version in locked(name).items():
            assert seen.setdefault(package, version) == version, package


@pytest.mark.parametrize('launch_file', LAUNCH_FILES)
def test_launch_files_pass_only_parameters_that_the_node_declares(launch_file: str):
    nodes = assignment(ROOT / 'launch' / launch_file, 'NODES')

    assert {name: set(passed) - config_of(name) for name, passed in nodes.items()} == {name: set() for name in nodes}


def test_launch_files_start_every_node():
    started = [name for path in LAUNCH_FILES for name in assignment(ROOT / 'launch' / path, 'NODES')]

    assert sorted(started) == sorted(set(NODES) - {'bringup'})


def test_launch_offers_the_engines_that_the_inference_node_takes():
    _, engine = config.meanings(config.InferenceConfig)['engine']

    assert assignment(ROOT / 'launch' / 'fleet.launch.py', 'ENGINES') == engine.choices


def test_rviz_listens_to_latched_topics_as_a_late_joiner():
    displays = yaml.safe_load((ROOT / 'config' / 'kv_agent.rviz').read_text())['Visualization Manager']['Displays']
    durability = {d['Topic']['Value']: d['Topic']['Durability Policy'] for d in displays if 'Topic' in d}

    assert durability['/map'] == 'Transient Local'
    assert durability['/world_markers'] == 'Transient Local'
    assert durability['/robot1/scan'] == 'Volatile'
