"""EmbeddingMemory on real chromadb folders."""

from collections.abc import Iterator
from dataclasses import replace
import math
from pathlib import Path
import shutil
import subprocess
import sys
import threading

import pytest

from kv_agent_ros.errors import BadRequestError, StoreError
from kv_agent_ros.memory.base import SHARED, MemoryKind, MemoryRecord
from kv_agent_ros.memory.embedder import load_e5
from kv_agent_ros.memory.embedding_memory import EmbeddingMemory, open_memory
from kv_agent_ros.memory.fake import HashingEmbedder

TASK = MemoryKind.TASK


def record(record_id: str, text: str, robot_id: str = 'robot1', kind: MemoryKind = TASK) -> MemoryRecord:
    """A record with a payload of its own."""
    return MemoryRecord(
        record_id=record_id, kind=kind, robot_id=robot_id, text=text, payload=f'{{"id": "{record_id}"}}', stamp_s=12.5
    )


@pytest.fixture
def memory(tmp_path: Path) -> Iterator[EmbeddingMemory]:
    with open_memory(tmp_path / 'memory', HashingEmbedder()) as opened:
        yield opened


def recalled(memory: EmbeddingMemory, text: str, robot_id: str = 'robot1', kind: MemoryKind = TASK) -> list[str]:
    """The ids of what comes back, best first."""
    return [each.record.record_id for each in memory.recall(text, robot_id, kind, 10)]


def test_a_record_comes_back_whole(memory: EmbeddingMemory) -> None:
    kept = replace(record('a', '把杯子里的水倒掉一半'), is_success=False)
    memory.remember(kept)
    found = memory.recall('把杯子里的水倒掉一半', 'robot1', TASK, 1)[0]
    assert found.record == kept
    assert found.similarity == pytest.approx(1.0, abs=1e-5)


def test_the_nearest_comes_first(memory: EmbeddingMemory) -> None:
    memory.remember(record('water', 'pour out half of the water'))
    memory.remember(record('dock', 'return to the charging dock'))
    found = memory.recall('return to the dock', 'robot1', TASK, 10)
    assert [each.record.record_id for each in found] == ['dock', 'water']
    assert found[0].similarity > found[1].similarity


def test_another_robots_private_record_is_never_returned(memory: EmbeddingMemory) -> None:
    memory.remember(record('own', 'return to the dock'))
    memory.remember(record('other', 'return to the dock', robot_id='robot2'))
    memory.remember(record('shared', 'return to the dock', robot_id=SHARED))
    assert sorted(recalled(memory, 'return to the dock', 'robot1')) == ['own', 'shared']
    assert sorted(recalled(memory, 'return to the dock', 'robot2')) == ['other', 'shared']
    assert recalled(memory, 'return to the dock', SHARED) == ['shared']


def test_private_records_stay_private_among_many(memory: EmbeddingMemory) -> None:
    for index in range(60):
        memory.remember(record(f'other_{index}', 'return to the dock', robot_id='robot2'))
    memory.remember(record('own', 'something else entirely'))
    assert recalled(memory, 'return to the dock', 'robot1') == ['own']


def test_only_the_asked_kind_is_returned(memory: EmbeddingMemory) -> None:
    memory.remember(record('task', 'pour water'))
    memory.remember(record('scene', 'pour water', kind=MemoryKind.SCENE))
    assert recalled(memory, 'pour water', kind=MemoryKind.SCENE) == ['scene']


def test_the_same_id_replaces(memory: EmbeddingMemory) -> None:
    memory.remember(record('a', 'pour water'))
    memory.remember(record('a', 'return to the dock', robot_id='robot2'))
    assert memory.count() == 1
    assert recalled(memory, 'pour water', 'robot1') == []
    assert recalled(memory, 'return to the dock', 'robot2') == ['a']


def test_forget_deletes_once(memory: EmbeddingMemory) -> None:
    memory.remember(record('a', 'pour water'))
    assert memory.forget('a')
    assert not memory.forget('a')
    assert (memory.count(), recalled(memory, 'pour water')) == (0, [])


def test_an_empty_memory_recalls_nothing(memory: EmbeddingMemory) -> None:
    assert recalled(memory, 'anything') == []


def test_records_survive_a_reopen(tmp_path: Path) -> None:
    with open_memory(tmp_path, HashingEmbedder()) as first:
        first.remember(record('a', 'pour water'))
    with open_memory(tmp_path, HashingEmbedder()) as second:
        assert recalled(second, 'pour water') == ['a']


def test_records_survive_a_process_that_dies_without_closing(tmp_path: Path) -> None:
    program = (
        'import os, sys, pathlib\n'
        'from kv_agent_ros.memory.base import MemoryKind, MemoryRecord\n'
        'from kv_agent_ros.memory.embedding_memory import open_memory\n'
        'from kv_agent_ros.memory.fake import HashingEmbedder\n'
        'memory = open_memory(pathlib.Path(sys.argv[1]), HashingEmbedder())\n'
        "memory.remember(MemoryRecord(record_id='a', kind=MemoryKind.TASK, robot_id='robot1', text='pour water'))\n"
        'os._exit(9)\n'
    )
    died = subprocess.run([sys.executable, '-c', program, str(tmp_path)], timeout=60, check=False)
    assert died.returncode == 9
    with open_memory(tmp_path, HashingEmbedder()) as opened:
        assert recalled(opened, 'pour water') == ['a']


def test_each_embedder_has_its_own_records(tmp_path: Path) -> None:
    with open_memory(tmp_path, HashingEmbedder(64)) as small:
        small.remember(record('a', 'pour water'))
    with open_memory(tmp_path, HashingEmbedder(128)) as large:
        assert large.count() == 0


@pytest.mark.parametrize(
    ('changes', 'complaint'),
    [
        ({'text': ''}, 'text: expected some text'),
        ({'text': ' \n'}, 'text: expected some text'),
        ({'text': 'x' * 10_000}, 'text: expected at most 2000 characters, got 10000'),
        ({'text': 'a\0b'}, 'NUL'),
        ({'text': '\ud800'}, 'surrogate'),
        ({'payload': 'x' * 64_001}, 'payload: expected at most 64000'),
        ({'record_id': ''}, 'record_id: expected some text'),
        ({'robot_id': 'r' * 201}, 'robot_id: expected at most 200'),
        ({'stamp_s': math.nan}, 'stamp_s: expected seconds, got nan'),
    ],
)
def test_a_malformed_record_is_refused_with_the_reason(
    memory: EmbeddingMemory, changes: dict[str, str | float], complaint: str
) -> None:
    malformed = replace(record('a', 'pour water'), **changes)  # type: ignore[arg-type]
    with pytest.raises(BadRequestError, match=complaint):
        memory.remember(malformed)
    assert memory.count() == 0


def test_a_malformed_question_is_refused(memory: EmbeddingMemory) -> None:
    with pytest.raises(BadRequestError, match='some text'):
        memory.recall('', 'robot1', TASK, 5)
    with pytest.raises(BadRequestError, match='at most 2000'):
        memory.recall('x' * 10_000, 'robot1', TASK, 5)
    for limit in (0, -1, 101, True):
        with pytest.raises(BadRequestError, match='limit'):
            memory.recall('pour water', 'robot1', TASK, limit)


@pytest.mark.parametrize('damage', ['garbage', 'no_folder'])
def test_an_unusable_folder_is_a_store_error_with_advice(tmp_path: Path, damage: str) -> None:
    path = tmp_path / 'memory'
    if damage == 'garbage':
        path.mkdir()
        (path / 'chroma.sqlite3').write_bytes(b'garbage' * 1000)
    else:
        path.write_text('a file where a folder should be')
    with pytest.raises(StoreError, match='move the folder away'):
        open_memory(path, HashingEmbedder())


def test_a_folder_that_vanishes_is_a_store_error(tmp_path: Path) -> None:
    path = tmp_path / 'memory'
    opened = open_memory(path, HashingEmbedder())
    shutil.rmtree(path)
    with pytest.raises(StoreError):
        opened.remember(record('a', 'pour water'))


def test_eight_threads_share_one_memory(memory: EmbeddingMemory) -> None:
    def work(robot_id: str) -> None:
        for index in range(10):
            memory.remember(record(f'{robot_id}_{index}', f'task {index}', robot_id=robot_id))
            memory.recall('task', robot_id, TASK, 3)

    workers = [threading.Thread(target=work, args=(f'robot{index}',)) for index in range(8)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(60.0)
    assert memory.count() == 80
    assert len(recalled(memory, 'task', 'robot3')) == 10


def test_a_chinese_question_finds_the_english_record_and_the_other_way_round(tmp_path: Path) -> None:
    with open_memory(tmp_path, load_e5()) as memory:
        memory.remember(record('dock', 'return to the charging dock'))
        memory.remember(record('water', 'pour out half of the water in the cup'))
        memory.remember(record('door', '关上厨房的门'))
        assert recalled(memory, '回去充电')[0] == 'dock'
        assert recalled(memory, '把杯子里的水倒掉一半')[0] == 'water'
        assert recalled(memory, 'close the kitchen door')[0] == 'door'
