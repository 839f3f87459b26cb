"""What a tier has forgotten and not yet deleted: its residue, and the thread that deletes it behind.

Until that has ended nothing is written to the store and nothing of other owners found there, so that no block is taken
for written that is about to go. What is forgotten changes with the tier's tree, so the tier's lock guards it.
"""

from collections.abc import Iterable
from enum import Enum
import threading

from kv_agent_ros.kvcache.storage.base import BlockStore
from kv_agent_ros.kvcache.worker import Worker


class Sharing(Enum):
    """Who else puts blocks into a tier's store."""

    OWN = 'own'
    """Nobody."""
    SHARED = 'shared'
    """Processes of this machine and others. What they put there is found when somebody asks for it."""


class Sweep:
    """The residue of one store; of a shared one, also blocks of others that the tier does not know."""

    def __init__(
        self, *, name: str, store: BlockStore, sharing: Sharing, lock: threading.Lock, writing: threading.Lock
    ) -> None:
        self._store = store
        self._is_shared = sharing is Sharing.SHARED
        self._lock = lock  # the tier's
        self._writing = writing  # one writer at a time; taken before the lock
        self._worker = Worker(name=name, work=self._work, max_queued=1)
        self._forgotten: set[bytes] = set()
        self._swept_epoch = 0
        self.epoch = 0  # begin() begins one, run() catches up

    def begin(self, keys: Iterable[bytes]) -> None:
        """Everything is forgotten, these keys and what others put there until now; called with the lock."""
        self.epoch += 1
        self._forgotten.update(keys)

    def forget(self, keys: Iterable[bytes]) -> None:
        """These are to be deleted; called with the lock."""
        self._forgotten.update(keys)

    def keep(self, keys: Iterable[bytes]) -> None:
        """These were put again meanwhile; called with the lock."""
        self._forgotten.difference_update(keys)

    def has(self, key: bytes) -> bool:
        """Whether this block is to be deleted; called with the lock."""
        return key in self._forgotten

    def wait(self, timeout_s: float) -> bool:
        """Have it all deleted; False when that takes longer, and then it goes on behind."""
        if not self._is_over:
            self._worker.submit(self.epoch)  # refused where one waits already, who will see all of it
            self._worker.flush(timeout_s)
        return self._is_over

    def run(self) -> bool:
        """Delete it all now; whether that was complete. Called by whoever writes, without the lock."""
        with self._lock:
            epoch, gone = self.epoch, tuple(self._forgotten)
        self._delete(gone)
        with self._lock:
            self._forgotten.difference_update(gone)
        if self._swept_epoch == epoch:
            return True
        if self._is_shared:
            num_errors = self._store.usage().num_errors
            self._delete([record.key for record in self._store.records()])
            if self._store.usage().num_errors > num_errors:
                return False
        self._swept_epoch = epoch
        return True

    def flush(self, timeout_s: float) -> bool:
        """Wait for what is deleted behind."""
        return self._worker.flush(timeout_s)

    def close(self, timeout_s: float) -> None:
        """End the thread."""
        self._worker.close(timeout_s)

    @property
    def _is_over(self) -> bool:
        return not self._forgotten and self._swept_epoch == self.epoch

    def _work(self, _: int) -> None:
        with self._writing:
            self.run()

    def _delete(self, keys: Iterable[bytes]) -> None:
        for key in keys:
            self._store.delete(key)
