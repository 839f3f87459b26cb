"""What scripts/test shows of ctest's output, also when several folders run at a time."""

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

SCRIPT = Path(__file__).resolve().parent.parent / 'tools/test_progress.py'
OUTPUT = """\
      Start  1: agent
      Start  2: build
1: test/agent/test_a.py ..
2: test/build/test_b.py F
1: ============================== 2 passed in 1.50s ===============================
1/3 Test  #1: agent ............................   Passed    2.04 sec
2: E assert 1 == 2
2: ========================= 1 failed, 4 passed in 0.50s ==========================
2/3 Test  #2: build ............................***Failed    1.00 sec
      Start  3: nodes
3: Fatal Python error: Segmentation fault
3/3 Test  #3: nodes ............................***Timeout 600.00 sec
"""
RESULTS = """\
<testsuites><testsuite><testcase classname="kv.test.build.test_b" name="test_one"><failure/></testcase>
<testcase classname="kv.test.build.test_b" name="test_two"/></testsuite></testsuites>"""


@pytest.fixture
def progress() -> ModuleType:
    spec = importlib.util.spec_from_file_location('kv_test_progress', SCRIPT)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_every_folder_has_its_own_counts_and_only_a_failed_one_its_output(
    progress: ModuleType, capsys: pytest.CaptureFixture[str]
) -> None:
    broken = progress.follow(OUTPUT.splitlines())

    shown = capsys.readouterr().out
    assert broken == ['build', 'nodes']
    assert 'test/agent: 2 passed in 2.0 s' in shown
    assert 'test/build: 1 failed, 4 passed in 1.0 s' in shown
    assert 'test/nodes: Timeout in 600.0 s' in shown
    assert 'test/agent/test_a.py' not in shown
    assert '  | E assert 1 == 2' in shown
    assert '  | Fatal Python error: Segmentation fault' in shown


def test_counts_come_from_the_result_files(progress: ModuleType, tmp_path: Path) -> None:
    (tmp_path / 'build.xunit.xml').write_text(RESULTS)

    counts, failed = progress.count(tmp_path)

    assert (counts['failed'], counts['passed']) == (1, 1)
    assert failed == ['kv.test.build.test_b::test_one']
