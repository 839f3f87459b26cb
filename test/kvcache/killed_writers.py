"""Writers that are killed at random moments, and what the survivors find: run as a program, prints one JSON object.

usage: killed_writers.py disk|remote DIRECTORY NUM_KILLS SEED
"""

from collections import Counter
from collections.abc import Callable
import json
import os
from pathlib import Path
import random
import select
import signal
import sys

import numpy as np

sys.path.insert(0, str(Path(__file__).parent / 'storage'))
from stored_blocks import block, physical_bytes

from kv_agent_ros.kvcache.storage.base import BlockRecord, BlockStore, PutResult
from kv_agent_ros.kvcache.storage.disk import DiskStore
from kv_agent_ros.kvcache.storage.remote import RemoteStore

CAPACITY_BYTES = 60 * 8192
NUM_NUMBERS = 120
MAX_VALUE_BYTES = 30_000
MAX_DELAY_S = 0.02
OPENERS: dict[str, Callable[[Path], BlockStore]] = {
    'disk': lambda path: DiskStore.open(path, CAPACITY_BYTES),
    'remote': lambda path: RemoteStore.open(path, CAPACITY_BYTES),
}


# Sizes from 1 byte to several pages; made before any fork, so that writers write all the time.
BLOCKS = [block(number, 1 + number * 7919 % MAX_VALUE_BYTES) for number in range(NUM_NUMBERS)]


def is_right(store: BlockStore, record: BlockRecord) -> bool:
    """Whether the block is a miss or exactly what was put."""
    out = np.zeros(MAX_VALUE_BYTES, dtype=np.uint8)
    found = store.get(record.key, out)
    number = int.from_bytes(record.tokens, 'little')
    expected, value = BLOCKS[number]
    return found is None or (found == expected and np.array_equal(out[: len(value)], value))


def write_for_ever(open_store: Callable[[Path], BlockStore], path: Path, seed: int, pipe: int) -> None:
    """Put, delete and read at random; a byte into the pipe when the store is open."""
    store = open_store(path)
    os.write(pipe, b'.')
    generator = random.Random(seed)
    while True:
        record, value = generator.choice(BLOCKS)
        act = generator.random()
        if act < 0.6:
            if store.put(record, value) is PutResult.FULL:
                store.delete(generator.choice(BLOCKS)[0].key)
        elif act < 0.8:
            store.delete(record.key)
        elif not is_right(store, record):
            os._exit(3)


def kill_one(open_store: Callable[[Path], BlockStore], path: Path, seed: int) -> int:
    """Fork a writer and kill it a random moment after it began; its exit status."""
    read_end, write_end = os.pipe()
    child = os.fork()
    if child == 0:
        write_for_ever(open_store, path, seed, write_end)
    os.close(write_end)
    os.read(read_end, 1)
    delay_s = random.Random(seed).uniform(0.0, MAX_DELAY_S)
    select.select([read_end], [], [], delay_s)
    os.kill(child, signal.SIGKILL)
    os.close(read_end)
    return os.waitpid(child, 0)[1]


def main() -> None:
    """Kill, look, kill again."""
    kind, directory, num_kills, seed = sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4])
    counts: Counter[str] = Counter(num_wrong=0, num_corrupt=0, num_errors=0, num_over_capacity=0, num_wrong_books=0)
    for number in range(num_kills):
        status = kill_one(OPENERS[kind], directory, seed + number)
        counts['num_wrong'] += os.WIFEXITED(status)
        counts['num_over_capacity'] += physical_bytes(directory) > CAPACITY_BYTES
        store = OPENERS[kind](directory)
        found = list(store.records())
        counts['num_served'] += len(found)
        counts['num_wrong'] += sum(not is_right(store, record) for record in found)
        usage = store.usage()
        counts['num_corrupt'] += usage.num_corrupt
        counts['num_errors'] += usage.num_errors
        counts['num_wrong_books'] += usage.used_bytes != physical_bytes(directory) or usage.num_blocks != len(found)
        store.close()
        if number % 100 == 99:
            print(f'{kind}: {number + 1} of {num_kills} kills, {dict(counts)}', file=sys.stderr, flush=True)
    print(json.dumps(counts))


if __name__ == '__main__':
    main()
