"""A session on the local model that goes on for longer than its KV budget.

Whenever its length is a multiple of the policy's interval, it keeps what its last queries, moved ahead, look at, and
leaves a copy in the cache: a later engine finds it there and computes only what came after.
"""

import logging

import numpy as np
import numpy.typing as npt
import torch

from kv_agent_ros.errors import BadRequestError
from kv_agent_ros.inference.llama_config import rotary_frequencies
from kv_agent_ros.inference.local_llama import KVBuffer, Logits
from kv_agent_ros.inference.local_model import LocalModel
from kv_agent_ros.inference.local_reuse import CACHE_FAULTS
from kv_agent_ros.inference.local_run import CHUNK_TOKENS
from kv_agent_ros.kvcache.block import SessionKey, TokenArray
from kv_agent_ros.kvcache.importance import LOOK_AHEAD_QUERIES, FloatArray, look_ahead, rotate
from kv_agent_ros.kvcache.sparse import Retention, SparseKVCache, importance_ahead
from kv_agent_ros.kvcache.sparse_kv import SparseKV
from kv_agent_ros.kvcache.sparse_policy import Positions

RETENTION_QUERIES = 32

_log = logging.getLogger(__name__)


class SparseSession:
    """One session, with a buffer of its own. Not thread-safe."""

    def __init__(self, *, model: LocalModel, sparse: SparseKVCache, session: SessionKey) -> None:
        config = model.llama.config
        self._model = model
        self._sparse = sparse
        self._session = session
        self._frequencies = np.array(rotary_frequencies(config))
        self._buffer = KVBuffer(config)
        self._num_rows = 0  # that the buffer holds
        self._tokens: TokenArray = np.zeros(0, dtype=np.int32)
        nothing = np.zeros((config.num_layers, config.num_kv_heads, 0, config.head_dim), dtype=np.float32)
        self._kv = SparseKV.full(nothing, nothing)  # as it was after the last compression
        self._asked: dict[int, FloatArray] = {}  # the last queries since then, by layer
        self.retentions: list[Retention] = []

    @property
    def num_tokens(self) -> int:
        """The length of the session, dropped tokens included."""
        return len(self._tokens)

    @property
    def num_rows(self) -> int:
        """How many rows the longest head holds."""
        return self._num_rows

    def resume(self, tokens: TokenArray) -> int:
        """Start from what the cache has of `tokens`; returns how many of them need not be computed, 0 on any fault."""
        try:
            found = self._sparse.fetch(self._session, tokens)
        except CACHE_FAULTS as fault:
            _log.warning('KV cache: fetching sparse KV failed (%s); computing without it', fault)
            found = None
        if found is None:
            return 0
        self._tokens = tokens[: found.num_tokens]
        self._hold(found)
        return found.num_tokens

    def extend(self, tokens: TokenArray) -> Logits:
        """Compute the next tokens of the session; returns the logits of the last.

        Raises BadRequestError for no token, and for a position beyond the model's longest context.
        """
        end = self._num_rows + self._buffer.dropped_tokens + len(tokens)
        max_tokens = self._model.llama.config.max_tokens
        is_original = self._sparse.policy.positions is Positions.ORIGINAL
        if len(tokens) == 0 or (is_original and end > max_tokens):
            raise BadRequestError(
                f'session: expected 1 token or more and an end within {max_tokens}, got {len(tokens)} tokens that end '
                f'at {end}; re-assign positions (Positions.FROM_ZERO) to go on'
            )
        logits: Logits = np.empty(0, dtype=np.float32)
        interval = self._sparse.policy.interval_tokens
        while len(tokens):
            room = min(CHUNK_TOKENS, interval - self.num_tokens % interval)
            logits = self._compute(tokens[:room])
            tokens = tokens[room:]
            if self.num_tokens in self._sparse.policy.points(self.num_tokens):
                self._compress()
        return logits

    def _compute(self, chunk: TokenArray) -> Logits:
        logits = self._model.llama.forward(chunk, self._buffer, self._num_rows, self._note_queries)
        self._num_rows += len(chunk)
        self._tokens = np.concatenate((self._tokens, chunk))
        return logits

    def _note_queries(self, layer: int, queries: torch.Tensor) -> None:
        asked = [self._asked[layer]] if layer in self._asked else []
        self._asked[layer] = np.concatenate((*asked, queries.numpy()), axis=1)[:, -LOOK_AHEAD_QUERIES:]

    def _compress(self) -> None:
        kv = self._kv.extended(*self._later_rows())
        queries = np.stack([self._asked[layer] for layer in range(len(self._asked))])
        first = self.num_tokens - queries.shape[2]
        ahead = look_ahead(self._at_true_positions(queries), first, self._frequencies)
        compression = self._sparse.compress(kv, importance_ahead(kv, ahead), ahead[:, :, -RETENTION_QUERIES:])
        self.retentions.append(compression.retention)
        self._hold(compression.kv)
        if not compression.kv.is_full:
            self._store(compression.kv)

    def _store(self, kv: SparseKV) -> None:
        try:
            self._sparse.store(self._session, self._tokens, kv)
        except CACHE_FAULTS as fault:
            _log.warning('KV cache: storing sparse KV failed (%s); going on without a copy', fault)

    def _later_rows(self) -> tuple[FloatArray, FloatArray]:
        """Keys and values that were computed since the last compression."""
        rows = self._buffer.values[:, :, :, self._kv.keys.shape[2] : self._num_rows].numpy()
        return self._at_true_positions(rows[0]), rows[1]

    def _at_true_positions(self, heads: FloatArray) -> FloatArray:
        """Keys or queries (..., num_tokens, head_dim) as they would be if no position had been re-assigned."""
        moved_by = self.num_tokens - self._num_rows - self._buffer.dropped_tokens
        return rotate(heads, np.full(heads.shape[:-1], moved_by), self._frequencies) if moved_by else heads

    def _hold(self, kv: SparseKV) -> None:
        load_rows(kv, self._buffer, self._sparse.policy.positions, self._frequencies)
        self._kv, self._num_rows = kv, kv.keys.shape[2]
        self._asked = {}


@torch.inference_mode()
def load_rows(kv: SparseKV, buffer: KVBuffer, positions: Positions, frequencies: npt.NDArray[np.float64]) -> None:
    """Put the kept rows at the start of the buffer, so that the next token stands right after the session."""
    num_rows = kv.keys.shape[2]
    is_original = positions is Positions.ORIGINAL
    buffer.ensure(num_rows, 0)
    buffer.values[0, :, :, :num_rows] = torch.from_numpy(kv.keys if is_original else kv.keys_from_zero(frequencies))
    buffer.values[1, :, :, :num_rows] = torch.from_numpy(kv.values)
    buffer.dropped_tokens = kv.num_tokens - num_rows if is_original else 0
    unused = torch.from_numpy(~kv.in_use)
    padding = torch.zeros(unused.shape).masked_fill_(unused, float('-inf'))
    buffer.padding = padding if unused.any() else padding[:, :, :0]
