"""Records in a folder, found again by meaning: chromadb for the index and the files, an Embedder for the meaning.

Nothing leaves the machine: chromadb's telemetry is off, and it never gets to choose (and download) an embedder. One
process owns a folder. Importing this file takes over a second, so only the memory node does.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
import re
import sqlite3
import threading
from types import TracebackType
from typing import Literal

from chromadb.api.client import Client
from chromadb.api.models.Collection import Collection
from chromadb.config import Settings
from chromadb.errors import ChromaError

from kv_agent_ros.errors import StoreError
from kv_agent_ros.memory.base import SHARED, Embedder, MemoryKind, MemoryRecord, Recollection
from kv_agent_ros.memory.limits import MAX_ID_CHARS, check_query, check_record, check_text

Scalar = str | int | float | bool
Metadata = Mapping[str, Scalar]
InScopes = dict[Literal['$in', '$nin'], list[Scalar]]


class EmbeddingMemory:
    """A Memory in a folder; survives restarts and a killed process. Open it with `open_memory`."""

    def __init__(self, client: Client, collection: Collection, embedder: Embedder, path: Path) -> None:
        self._client = client
        self._collection = collection
        self._embedder = embedder
        self._path = path
        self._lock = threading.Lock()

    def __enter__(self) -> 'EmbeddingMemory':
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Release the folder; idempotent."""
        with self._lock, _store_errors(self._path):
            self._client.close()

    def remember(self, record: MemoryRecord) -> None:
        """Keep it; the same record_id replaces. Raises BadRequestError or StoreError."""
        check_record(record)
        vector = self._embedder.embed([record.text])
        with self._lock, _store_errors(self._path):
            self._collection.upsert(
                ids=[record.record_id], embeddings=vector, documents=[record.text], metadatas=[_to_metadata(record)]
            )

    def recall(self, text: str, robot_id: str, kind: MemoryKind, limit: int) -> tuple[Recollection, ...]:
        """The nearest records of that kind that this robot may read, best first. Raises as `remember` does."""
        check_query(text, robot_id, limit)
        vector = self._embedder.embed([text])
        scopes: InScopes = {'$in': [robot_id, SHARED]}
        with self._lock, _store_errors(self._path):
            found = self._collection.query(
                query_embeddings=vector,
                n_results=limit,
                where={'$and': [{'kind': kind.value}, {'robot_id': scopes}]},
                include=['documents', 'metadatas', 'distances'],
            )
        documents, metadatas, distances = found['documents'], found['metadatas'], found['distances']
        if documents is None or metadatas is None or distances is None:
            return ()
        rows = zip(found['ids'][0], documents[0], metadatas[0], distances[0], strict=True)
        recalled = (
            Recollection(record=_from_row(record_id, document, metadata), similarity=1.0 - float(distance))
            for record_id, document, metadata, distance in rows
        )
        return tuple(sorted(recalled, key=lambda each: (-each.similarity, each.record.record_id)))

    def forget(self, record_id: str) -> bool:
        """Delete one record; False when there was none."""
        check_text('record_id', record_id, MAX_ID_CHARS)
        with self._lock, _store_errors(self._path):
            if not self._collection.get(ids=[record_id], include=[])['ids']:
                return False
            self._collection.delete(ids=[record_id])
            return True

    def count(self) -> int:
        """How many records there are."""
        with self._lock, _store_errors(self._path):
            return self._collection.count()


def open_memory(path: Path, embedder: Embedder) -> EmbeddingMemory:
    """The memory in that folder, made when missing. Raises StoreError, with advice, when the folder is unusable.

    Each embedder has its own collection, since vectors of different spaces cannot be compared.
    """
    with _store_errors(path):
        path.mkdir(parents=True, exist_ok=True)
        client = Client(settings=Settings(is_persistent=True, persist_directory=str(path), anonymized_telemetry=False))
        collection = client.get_or_create_collection(
            'memory-' + re.sub(r'[^a-zA-Z0-9.-]', '-', embedder.name) + '-v1',
            embedding_function=None,
            configuration={'hnsw': {'space': 'cosine'}},
        )
    return EmbeddingMemory(client, collection, embedder, path)


@contextmanager
def _store_errors(path: Path) -> Iterator[None]:
    try:
        yield
    except (ChromaError, sqlite3.Error, OSError, ValueError, RuntimeError) as error:
        raise StoreError(
            f'memory in {path}: expected a readable and writable chromadb folder of this embedder, got: {error}; '
            'check permissions and free space, or move the folder away to start an empty memory'
        ) from error


def _to_metadata(record: MemoryRecord) -> Metadata:
    return {
        'kind': record.kind.value,
        'robot_id': record.robot_id,
        'payload': record.payload,
        'stamp_s': float(record.stamp_s),
        'is_success': record.is_success,
    }


def _from_row(record_id: str, document: str, row: Mapping[str, object]) -> MemoryRecord:
    return MemoryRecord(
        record_id=record_id,
        kind=MemoryKind(row['kind']),
        robot_id=str(row['robot_id']),
        text=document,
        payload=str(row['payload']),
        stamp_s=float(str(row['stamp_s'])),
        is_success=row['is_success'] is True,
    )
