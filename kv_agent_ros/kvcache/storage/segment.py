"""Named shared memory: a file below /dev/shm (or the temporary directory) that other processes can map.

The owner holds a file lock on it for as long as it lives, so that segments of killed owners are found and removed. The
names are ours alone: `kv_agent_ros.<pid of the owner>.<16 random hex digits>`.
"""

from collections.abc import Sequence
import fcntl
import logging
import mmap
import os
from pathlib import Path
import re
import secrets
import tempfile

import numpy as np

from kv_agent_ros.errors import ConfigError, StoreError
from kv_agent_ros.kvcache.block import BlockSlot
from kv_agent_ros.kvcache.storage.base import ByteArray

_log = logging.getLogger(__name__)

_NAME = re.compile(r'kv_agent_ros\.([0-9]{1,10})\.[0-9a-f]{16}')


def segment_directories() -> tuple[Path, ...]:
    """Where segments may be, best first: /dev/shm where it exists, then the temporary directory."""
    places = (Path('/dev/shm'), Path(tempfile.gettempdir()))
    return tuple(place for place in places if place.is_dir())


class Segment:
    """One segment of `capacity_bytes`, created and owned by this process, mapped at `memory`."""

    def __init__(self, path: Path, descriptor: int, memory: ByteArray) -> None:
        self.name = path.name
        self.memory = memory
        self._path = path
        self._descriptor = descriptor

    @classmethod
    def create(cls, capacity_bytes: int, directories: Sequence[Path] = ()) -> 'Segment':
        """Remove segments of dead owners, then make one in the first directory with room.

        `directories` empty = segment_directories(). Raises ConfigError when no directory has room.
        """
        if capacity_bytes <= 0:
            raise ConfigError(f'capacity_bytes: expected > 0, got {capacity_bytes}')
        reasons = []
        for directory in directories or segment_directories():
            remove_dead_segments(directory)
            try:
                return cls._create_in(directory, capacity_bytes)
            except OSError as error:
                reasons.append(f'{directory}: {error.strerror}')
        raise ConfigError(
            f'shared memory: expected {capacity_bytes} bytes of room, got {"; ".join(reasons)}; '
            'lower the DRAM budget or give /dev/shm more room (docker: --shm-size)'
        )

    @classmethod
    def _create_in(cls, directory: Path, capacity_bytes: int) -> 'Segment':
        path = directory / f'kv_agent_ros.{os.getpid()}.{secrets.token_hex(8)}'
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            # Claimed now: a sparse file would end the process with SIGBUS when memory runs out later.
            os.posix_fallocate(descriptor, 0, capacity_bytes)
            memory = np.frombuffer(mmap.mmap(descriptor, capacity_bytes), dtype=np.uint8)
        except OSError:
            path.unlink()
            os.close(descriptor)
            raise
        return cls(path, descriptor, memory)

    def close(self) -> None:
        """Remove the name; the memory goes when the last view of it does. Idempotent."""
        if self._descriptor >= 0:
            self._path.unlink(missing_ok=True)
            os.close(self._descriptor)
            self._descriptor = -1


def remove_dead_segments(directory: Path) -> int:
    """Remove our segments whose owner is gone; returns how many. Living owners hold a lock on theirs."""
    num_removed = 0
    for path in directory.glob('kv_agent_ros.*'):
        match = _NAME.fullmatch(path.name)
        if match is None or _is_alive(int(match[1])):
            continue
        try:
            descriptor = os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
        except OSError:  # another user's, or just removed by somebody else
            continue
        try:
            # The process id alone is no proof: a container with its own ids can share /dev/shm with us.
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            path.unlink(missing_ok=True)
            num_removed += 1
        except OSError:
            _log.debug('segment %s is in use', path)
        finally:
            os.close(descriptor)
    return num_removed


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except (PermissionError, OverflowError):
        return True
    return True


class SegmentMap:
    """Any process's door to leased slots: maps segments by name, once each. Thread-safe by the atomicity of dict."""

    def __init__(self, directories: Sequence[Path] = ()) -> None:
        self._directories = tuple(directories) or segment_directories()
        self._views: dict[str, ByteArray] = {}

    def view(self, segment: str) -> ByteArray:
        """The whole segment, writable. Raises StoreError for names that are not ours and segments that are gone."""
        found = self._views.get(segment)
        if found is None:
            found = self._map(segment)
            # A manager that restarts has a new segment; keeping the old one mapped would keep its memory.
            self._views = {name: view for name, view in self._views.items() if self._paths(name)}
            self._views[segment] = found
        return found

    def slot(self, slot: BlockSlot) -> ByteArray:
        """The bytes of one slot, writable. Raises StoreError also for a slot outside its segment."""
        whole = self.view(slot.segment)
        end = slot.offset_bytes + slot.length_bytes
        if slot.offset_bytes < 0 or slot.length_bytes <= 0 or end > len(whole):
            raise StoreError(f'slot: expected within 0..{len(whole)} of {slot.segment}, got {slot.offset_bytes}..{end}')
        return whole[slot.offset_bytes : end]

    def close(self) -> None:
        """Forget all mappings; memory is unmapped when the last view goes."""
        self._views = {}

    def _paths(self, name: str) -> list[Path]:
        return [place / name for place in self._directories if (place / name).exists()]

    def _map(self, name: str) -> ByteArray:
        if _NAME.fullmatch(name) is None:
            raise StoreError(f'segment: expected a name like kv_agent_ros.<pid>.<hex>, got {name!r}')
        for path in self._paths(name):
            try:
                descriptor = os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
            except OSError as error:
                raise StoreError(f'segment {name}: cannot open {path} ({error.strerror})') from error
            try:
                return np.frombuffer(mmap.mmap(descriptor, 0), dtype=np.uint8)
            except (OSError, ValueError) as error:
                raise StoreError(f'segment {name}: cannot map {path} ({error})') from error
            finally:
                os.close(descriptor)
        raise StoreError(f'segment {name}: not found; its owner has ended, ask the cache again')
