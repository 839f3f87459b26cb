"""Pages of another engine's KV cache in one of our block stores: with few bits, checked, and never another model's.

An engine names a page by a hash over all tokens up to its end. Here every page is the child of the page before it, and
the first one of a namespace, so that a shared store evicts tails before heads and a page of another layout, model or
tenant has another key. Knows neither torch nor the engine.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
import hashlib
from itertools import groupby
import logging
from pathlib import Path
import threading
import time

import numpy as np
import numpy.typing as npt

from kv_agent_ros.errors import BadRequestError, ConfigError, StoreError
from kv_agent_ros.kvcache.arithmetic import Lines
from kv_agent_ros.kvcache.block import BlockLayout, block_key
from kv_agent_ros.kvcache.codec import KEYS_8, BlockCodec, BlockLines, Float16Codec, RawCodec, codec_named
from kv_agent_ros.kvcache.codec_policy import codec_for
from kv_agent_ros.kvcache.storage.base import BlockRecord, ByteArray, PutResult, checksum
from kv_agent_ros.kvcache.storage.guarded import GuardedStore

_log = logging.getLogger(__name__)

BITS = (2, 4, 8, 16, 32)  # 16: float16, exact where the engine has that; 32: the engine's own bytes
_RUN_BYTES = 4 << 20  # of stored pages that are waited for together
_SAMPLE_BYTES = 64 << 10
_NUM_SAMPLES = 16

Stored = npt.NDArray[np.uint8]  # (pages, bytes of each)


@dataclass(frozen=True, kw_only=True, slots=True)
class PageKey:
    """Where a page stands: under its own key, after its parent."""

    key: bytes
    parent: bytes
    tokens: bytes  # what makes the key out of the parent: the engine's page hash
    index: int  # in the prompt


@dataclass(frozen=True, kw_only=True, slots=True)
class PageStats:
    """What was asked of the store since the process began."""

    num_read: int = 0
    num_missed: int = 0  # asked for and not there, damaged ones included
    num_written: int = 0
    num_refused: int = 0  # that the store did not take: full or failing
    read_s: float = 0.0
    write_s: float = 0.0


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class PageLines:
    """Where pages are wanted: in an engine's memory, of which every line is one head's vector of one token."""

    memory: npt.NDArray[np.float32] | npt.NDArray[np.float16]  # (lines, channels), C-contiguous
    pattern: npt.NDArray[np.int64]  # (2, layers * heads * tokens), lines of the keys and values of a page at line 0
    starts: npt.NDArray[np.int64]  # (pages,), the line that each page begins at

    def check(self, num_pages: int) -> None:
        """Raise BadRequestError unless so many pages have all their lines in the memory: compiled loops do not look."""
        starts, pattern = self.starts[:num_pages], self.pattern
        if len(starts) < num_pages:
            raise BadRequestError(f'lines: expected those of {num_pages} pages, got {len(starts)}')
        if num_pages and not 0 <= starts.min() + pattern.min() <= starts.max() + pattern.max() < len(self.memory):
            raise BadRequestError(
                f'lines: expected some below {len(self.memory)}, got pages at {starts.min()} to {starts.max()}'
            )

    def part(self, first: int, num_pages: int) -> BlockLines:
        """For some of the pages."""
        starts = self.starts[first : first + num_pages, None]
        keys, values = ((starts + lines).reshape(-1) for lines in self.pattern)
        return BlockLines(keys=Lines(memory=self.memory, places=keys), values=Lines(memory=self.memory, places=values))


class PageStore:
    """The pages of one namespace. Thread-safe as its store is; a failing store only misses."""

    def __init__(self, store: GuardedStore, root: bytes) -> None:
        self._store = store
        self._root = root  # KVNamespace.digest
        self._lock = threading.Lock()  # guards the books
        self._stats = PageStats()

    def keys(self, prefix: Sequence[str], hashes: Sequence[str]) -> list[PageKey]:
        """Where the pages `hashes` stand that follow those of `prefix`, which begins with the first page."""
        parent, made = self._root, []
        for index, text in enumerate((*prefix, *hashes)):
            tokens = _hash_bytes(text)
            key = block_key(parent, tokens)
            made.append(PageKey(key=key, parent=parent, tokens=tokens, index=index))
            parent = key
        return made[len(prefix) :]

    def find(self, keys: Sequence[PageKey]) -> int:
        """How many of these pages are there, up to the first that is not."""
        return self._store.find([place.key for place in keys])

    def put(self, place: PageKey, page: ByteArray, layout: BlockLayout) -> bool:
        """Keep a page; whether it is there now. Ask find() before: to encode a page costs more than to look for it."""
        begun_s = time.perf_counter()
        codec, stored = _encoded(_codec(layout, place.index), page, layout)
        record = BlockRecord(
            key=place.key,
            parent_key=place.parent,
            root=self._root,
            tokens=place.tokens,
            length_bytes=len(stored),
            checksum=checksum(stored),
            codec=codec.name,
        )
        is_stored = self._store.put(record, stored) is PutResult.STORED
        duration_s = time.perf_counter() - begun_s
        self._count(PageStats(num_written=is_stored, num_refused=not is_stored, write_s=duration_s))
        return is_stored

    def read(self, places: Sequence[PageKey], layout: BlockLayout, take: Callable[[int, ByteArray], None]) -> int:
        """Hand over these pages, up to the first miss, as the engine wrote them, to the precision of the namespace.

        `take` gets the number of the page and its bytes, which are valid until it returns. Returns how many there were.
        """
        page = np.empty(layout.num_bytes, np.uint8)

        def hand_over(codec: BlockCodec, stored: Stored, first: int) -> None:
            for number, block in enumerate(stored, first):
                codec.decode(block, layout, page)
                take(number, page)

        return self._read_all(places, layout, hand_over)

    def read_lines(self, places: Sequence[PageKey], layout: BlockLayout, out: PageLines) -> int:
        """Write these pages, up to the first miss, to where they are wanted; returns how many there were.

        After a miss nothing of that page has been written. Raises BadRequestError for lines that are not there.
        """
        out.check(len(places))

        def write(codec: BlockCodec, stored: Stored, first: int) -> None:
            codec.decode_all(stored, layout, out.part(first, len(stored)))

        return self._read_all(places, layout, write)

    def clear(self) -> int:
        """Delete the pages of this namespace, those that other engines put included; returns how many."""
        ours = [record.key for record in self._store.records() if record.root == self._root]
        for key in ours:
            self._store.delete(key)
        return len(ours)

    def warm_up(self, layout: BlockLayout) -> None:
        """Encode and decode pages of every kind, so that compiled loops are there before a request waits for them."""
        page = np.zeros(layout.num_bytes, np.uint8)
        for index in (0, 1):
            codec, stored = _encoded(_codec(layout, index), page, layout)
            codec.decode(stored, layout, page)
            if layout.shape[0] == 2:  # opaque_layout() has no lines
                memory = page.view(layout.dtype).reshape(-1, layout.shape[4])
                pattern, starts = np.arange(len(memory)).reshape(2, -1), np.zeros(2, np.int64)
                lines = PageLines(memory=memory, pattern=pattern, starts=starts).part(0, 2)
                codec.decode_all(np.stack([stored, stored]), layout, lines)

    def stats(self) -> PageStats:
        """What was asked so far."""
        with self._lock:
            return self._stats

    def close(self) -> None:
        """Close the store; its pages stay."""
        self._store.close()

    def _read_all(
        self, places: Sequence[PageKey], layout: BlockLayout, decode: Callable[[BlockCodec, Stored, int], None]
    ) -> int:
        """`decode` gets pages of one codec at a time, and the number of the first of them."""
        begun_s = time.perf_counter()
        num_read = 0
        for records, stored in self._stored(places, layout):
            try:
                decode(codec_named(records[0].codec), stored, num_read)
            except StoreError as error:
                _log.warning('%d pages cannot be read (%s); they are deleted', len(records), error)
                for record in records:
                    self._store.delete(record.key)
                break
            num_read += len(records)
        is_missed = num_read < len(places)
        self._count(PageStats(num_read=num_read, num_missed=is_missed, read_s=time.perf_counter() - begun_s))
        return num_read

    def _stored(self, places: Sequence[PageKey], layout: BlockLayout) -> Iterator[tuple[list[BlockRecord], Stored]]:
        """These pages as they are stored, up to the first miss; equal ones that follow each other together."""
        keys = [place.key for place in places]
        while keys:
            run = self._store.get_run(keys, max(_RUN_BYTES, layout.num_bytes))
            if not run.records:
                return
            start = 0
            for (_, length), equal in groupby(run.records, key=lambda record: (record.codec, record.length_bytes)):
                records = list(equal)
                end = start + len(records) * length
                yield records, run.stored[start:end].reshape(len(records), length)
                start = end
            keys = keys[len(run.records) :]

    def _count(self, one: PageStats) -> None:
        with self._lock:
            books = self._stats
            self._stats = PageStats(
                num_read=books.num_read + one.num_read,
                num_missed=books.num_missed + one.num_missed,
                num_written=books.num_written + one.num_written,
                num_refused=books.num_refused + one.num_refused,
                read_s=books.read_s + one.read_s,
                write_s=books.write_s + one.write_s,
            )


def opaque_layout(num_bytes: int) -> BlockLayout:
    """How a page that no codec understands is handed over: byte by byte, kept as it is."""
    return BlockLayout(shape=(1, 1, 1, 1, num_bytes), dtype='uint8')


def model_revision(directory: Path) -> str:
    """Tells models apart that are served under one name: their settings, and samples of their weights.

    Raises ConfigError where there is no model.
    """
    settings = directory / 'config.json'
    weights = sorted(directory.glob('*.safetensors'))
    if not settings.is_file() or not weights:
        raise ConfigError(f'{directory}: expected a Hugging Face model with config.json and *.safetensors')
    digest = hashlib.sha256(settings.read_bytes())
    for path in weights:
        size = path.stat().st_size
        digest.update(f'{path.name} {size}'.encode())
        with path.open('rb') as file:
            for number in range(_NUM_SAMPLES):
                file.seek(size * number // _NUM_SAMPLES)
                digest.update(file.read(_SAMPLE_BYTES))
    return digest.hexdigest()


def _codec(layout: BlockLayout, index: int) -> BlockCodec:
    """With 4 bits, values have 4 and keys, which decide where a model looks, 8: its answers then hardly change.

    With 2, the first page, which has the tokens that all later ones look at, is written like that, too.
    """
    bits = max(layout.bits, 4) if index == 0 else layout.bits
    if bits == 4:
        return KEYS_8
    if bits == 16 and layout.dtype == 'float32':
        return Float16Codec()
    return codec_for(replace(layout, bits=bits))


def _encoded(codec: BlockCodec, page: ByteArray, layout: BlockLayout) -> tuple[BlockCodec, ByteArray]:
    """A page that its codec refuses stays as it is."""
    try:
        return codec, codec.encode(page, layout)
    except StoreError as error:
        _log.warning('a page is kept exact (%s)', error)
        return RawCodec(), page


def _hash_bytes(text: str) -> bytes:
    """The engine's hash, which is hexadecimal today."""
    try:
        return bytes.fromhex(text)
    except ValueError:
        return hashlib.sha256(text.encode()).digest()
