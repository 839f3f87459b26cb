"""The house rules that a reader can count on: floors, sizes, words, and who may know ROS, torch and this machine."""

import ast
from collections.abc import Iterator
from pathlib import Path
import re

import pytest

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / 'kv_agent_ros'
FILES = sorted(PACKAGE.rglob('*.py'))
TREES = {path.relative_to(PACKAGE).as_posix(): ast.parse(path.read_text(encoding='utf-8')) for path in FILES}
SOURCES = {path.relative_to(PACKAGE).as_posix(): path.read_text(encoding='utf-8') for path in FILES}

FLOORS = {
    'start': 9,
    'cli': 9,
    'demo': 8,
    'nodes': 8,
    'ros': 7,
    'commands': 7,
    'build': 6,
    'inspector': 5,
    'agent': 4,
    'harness': 3,
    'scheduler': 3,
    'perception': 3,
    'inference': 2,
    'world': 2,
    'kvcache': 1,
    'robot': 1,
    'memory': 1,
    'config': 0,
    'deadline': 0,
    'errors': -1,
}
ROS_FLOORS = {'demo', 'nodes', 'ros'}
GENERATED = {'msg', 'srv', 'action'}
ROS_MODULES = {'rclpy', 'action_msgs', 'builtin_interfaces', 'lifecycle_msgs', 'rcl_interfaces', 'tf2_msgs'}
TORCH_PLACES = re.compile(r'inference/(?:local\w*|hicache_\w+)\.py|kvcache/storage/device\.py|perception/\w+\.py')

# Factories that keep an optional dependency optional: (file, function).
LATE_IMPORTS = {('kvcache/arithmetic.py', 'compiled_arithmetic')}

# They name modules in a table: two handle signals before a slow import, one looks whether a module can be imported.
STARTERS = {'start.py', 'cli.py', 'commands/doctor.py'}

# Where whatever breaks means "no", or goes to the thread that asked, or a library raises nothing narrower: (file,
# function). Elsewhere a handler for everything must raise again.
CATCH_ALL = {
    ('harness/judge.py', '_check_rehearsal'),
    ('harness/judge.py', '_apply'),
    ('inference/chat_format.py', 'read_tokenizer'),
    ('inference/gguf_convert.py', '_tokenizer'),
    ('inference/hicache_storage.py', '_answer'),
    ('inference/local_engine.py', '_guarded'),
}

MAX_FILE_LINES = 400
MAX_FUNCTION_LINES = 50
BANNED_NAME = re.compile(r'Helper|Util|Common|^Base|Impl$|Manager$|(^|_)(helper|utils?|common|info|new|v2)(_|$)|^data$')
ALLOWED_NAMES = {'KVCacheManager'}
ALLOWED_NAMES |= {
    f'{act}_v2' for act in ('batch_exists', 'batch_get', 'batch_set', 'register_mem_host_pool')
}  # SGLang's
MACHINE_PATH = re.compile(r'(?<![\w.~$}])/(?:root|home/\w+|work|farm|tmp|opt|Users/\w+)/[\w.]')
REGISTRY_HOST = re.compile(r'pypi\.org|pythonhosted|registry\.npmjs|deb\.debian|archive\.ubuntu|download\.pytorch')
TEXT_SUFFIXES = {'.action', '.cfg', '.cmake', '.in', '.json', '.jsonl', '.lock', '.md', '.msg', '.py', '.rst', '.rviz'}
TEXT_SUFFIXES |= {'.sh', '.srv', '.toml', '.txt', '.xml', '.yaml', '.yml', ''}
SKIPPED_FOLDERS = {'.git', '__pycache__', 'build', 'install', 'log', 'out', '.hypothesis'}

Function = ast.FunctionDef | ast.AsyncFunctionDef


def unit_of(name: str) -> str:
    """The folder, or the module right below the package, that a path or dotted name belongs to."""
    return re.split(r'[/.]', name)[0]


def imported(tree: ast.AST) -> Iterator[tuple[str, int]]:
    """Every imported module name with its line; `from a import b` gives a.b for the package's own root."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((alias.name, node.lineno) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            name = '.' * node.level + (node.module or '')
            if name == 'kv_agent_ros':
                yield from ((f'{name}.{alias.name}', node.lineno) for alias in node.names)
            else:
                yield name, node.lineno


def functions(tree: ast.AST) -> Iterator[Function]:
    return (node for node in ast.walk(tree) if isinstance(node, Function))


def core() -> dict[str, ast.Module]:
    """Everything below the ROS floor."""
    return {name: tree for name, tree in TREES.items() if unit_of(name) not in ROS_FLOORS}


def texts() -> Iterator[tuple[str, str]]:
    """Path and content of every text file of the repository."""
    for path in sorted(ROOT.rglob('*')):
        place = path.relative_to(ROOT)
        hidden = any(part in SKIPPED_FOLDERS or part.endswith('_cache') for part in place.parts)
        if not hidden and path.is_file() and path.suffix in TEXT_SUFFIXES:
            yield place.as_posix(), path.read_text(encoding='utf-8', errors='replace')


def test_every_folder_and_module_stands_on_a_floor():
    units = {unit_of(name).removesuffix('.py') for name in TREES} - {'__init__'}

    assert units <= set(FLOORS), f'without a floor: {sorted(units - set(FLOORS))}'


def test_imports_point_to_a_lower_floor_and_never_to_a_neighbour():
    wrong = []
    for name, tree in TREES.items():
        here = unit_of(name.removesuffix('.py'))
        for module, line in imported(tree):
            there = unit_of(module.removeprefix('kv_agent_ros.'))
            if not module.startswith('kv_agent_ros.') or there in (here, *GENERATED):
                continue
            if FLOORS[there] >= FLOORS[here]:
                wrong.append(f'{name}:{line} imports {module} (floor {FLOORS[there]} from {FLOORS[here]})')

    assert wrong == []


def test_imports_name_the_whole_path():
    relative = [f'{n}:{line} {m}' for n, tree in TREES.items() for m, line in imported(tree) if m.startswith('.')]

    assert relative == []


def test_imports_make_no_cycle_between_modules():
    graph: dict[str, set[str]] = {}
    for name, tree in TREES.items():
        module = 'kv_agent_ros.' + name.removesuffix('.py').removesuffix('/__init__').replace('/', '.')
        graph[module] = {m for m, _ in imported(tree) if m.startswith('kv_agent_ros.')}
    done: set[str] = set()

    def visit(module: str, path: tuple[str, ...]) -> None:
        assert module not in path, ' -> '.join([*path, module])
        if module not in done:
            for target in sorted(graph.get(module, ())):
                visit(target, (*path, module))
            done.add(module)

    for module in sorted(graph):
        visit(module, ())


def test_only_the_ros_floors_know_ros():
    wrong = []
    for name, tree in core().items():
        for module, line in imported(tree):
            parts = module.split('.')
            generated = parts[0] == 'kv_agent_ros' and len(parts) > 1 and parts[1] in GENERATED
            if generated or parts[0] in ROS_MODULES or parts[0].endswith('_msgs'):
                wrong.append(f'{name}:{line} {module}')

    assert wrong == []


def test_torch_stays_where_tensors_live():
    wrong = [
        f'{name}:{line} {module}'
        for name, tree in TREES.items()
        for module, line in imported(tree)
        if unit_of(module) == 'torch' and not TORCH_PLACES.fullmatch(name)
    ]

    assert wrong == []


def test_imports_stand_at_the_top():
    wrong = []
    for name, tree in TREES.items():
        for function in functions(tree):
            late = [line for _, line in imported(function)]
            if late and (name, function.name) not in LATE_IMPORTS:
                wrong.append(f'{name}:{late[0]} in {function.name}()')

    assert wrong == []


def test_only_the_starters_import_our_modules_by_a_text():
    wrong = []
    for name, tree in TREES.items():
        for node in ast.walk(tree):
            if isinstance(node, ast.Call) and ast.unparse(node.func).endswith(('import_module', '__import__')):
                is_foreign = isinstance(node.args[0], ast.Constant) and 'kv_agent_ros' not in str(node.args[0].value)
                wrong += [] if is_foreign or name in STARTERS else [f'{name}:{node.lineno}']

    assert wrong == []


def test_no_file_is_longer_than_four_hundred_lines():
    long = {name: text.count('\n') for name, text in SOURCES.items() if text.count('\n') > MAX_FILE_LINES}

    assert long == {}


def test_no_function_is_longer_than_fifty_lines():
    long = [
        f'{name}:{f.lineno} {f.name}() {f.end_lineno - f.lineno + 1} lines'
        for name, tree in TREES.items()
        for f in functions(tree)
        if f.end_lineno is not None and f.end_lineno - f.lineno + 1 > MAX_FUNCTION_LINES
    ]

    assert long == []


def test_every_module_says_what_it_is():
    silent = [name for name, tree in TREES.items() if SOURCES[name].strip() and not ast.get_docstring(tree)]

    assert silent == []


def handlers(tree: ast.AST) -> Iterator[tuple[str, ast.ExceptHandler]]:
    """Every `except`, with the name of the function around it."""
    for function in functions(tree):
        yield from ((function.name, node) for node in ast.walk(function) if isinstance(node, ast.ExceptHandler))


def catches_everything(handler: ast.ExceptHandler) -> bool:
    if handler.type is None:
        return True
    names = {node.id for node in ast.walk(handler.type) if isinstance(node, ast.Name)}
    return bool(names & {'Exception', 'BaseException'})


def raises_again(handler: ast.ExceptHandler) -> bool:
    return isinstance(handler.body[-1], ast.Raise) and handler.body[-1].exc is None


def test_the_core_catches_what_it_expects_and_nothing_else():
    wrong = [
        f'{name}:{handler.lineno} in {function}()'
        for name, tree in core().items()
        for function, handler in handlers(tree)
        if catches_everything(handler) and not raises_again(handler) and (name, function) not in CATCH_ALL
    ]

    assert wrong == []


def test_the_core_does_not_probe_for_attributes():
    wrong = [
        f'{name}:{node.lineno} {node.func.id}'
        for name, tree in core().items()
        for node in ast.walk(tree)
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Name)
        and node.func.id in ('hasattr', 'setattr', 'delattr')
    ]
    wrong += [
        f'{name}:{node.lineno} getattr with a constant or a default'
        for name, tree in core().items()
        for node in ast.walk(tree)
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Name)
        and node.func.id == 'getattr'
        and (len(node.args) > 2 or isinstance(node.args[1], ast.Constant))
    ]

    assert wrong == []


def test_names_say_what_a_thing_is():
    wrong = []
    for name, tree in TREES.items():
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef | Function) and node.name not in ALLOWED_NAMES:
                wrong += [f'{name}:{node.lineno} {node.name}'] if BANNED_NAME.search(node.name) else []

    assert wrong == []


def test_no_command_goes_through_a_shell():
    wrong = [
        f'{name}:{node.value.lineno}'
        for name, tree in TREES.items()
        for node in ast.walk(tree)
        if isinstance(node, ast.keyword) and node.arg == 'shell'
    ]
    wrong += [
        f'{name}:{node.lineno}'
        for name, tree in TREES.items()
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute) and ast.unparse(node) in ('os.system', 'os.popen')
    ]

    assert wrong == []


def test_type_checking_hides_no_import():
    assert [name for name, text in SOURCES.items() if 'TYPE_CHECKING' in text] == []


@pytest.mark.parametrize('pattern', [MACHINE_PATH, REGISTRY_HOST], ids=['machine path', 'registry host'])
def test_nothing_in_the_repository_names_one_machine(pattern: re.Pattern[str]):
    found = [
        f'{place}:{number} {line.strip()[:100]}'
        for place, text in texts()
        if place != 'test/test_architecture.py'
        for number, line in enumerate(text.splitlines(), 1)
        if pattern.search(line)
    ]

    assert found == []
