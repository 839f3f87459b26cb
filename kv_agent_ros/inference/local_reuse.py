"""Moves KV blocks between the model's buffer and the shared memory of the cache.

A block counts as reused only when its bytes still have their checksum after they were copied out: a slot whose lease
ran out meanwhile shows here as the end of the prefix, not as wrong text. A failing cache costs time, never an answer.
"""

from dataclasses import dataclass, replace
import logging

import numpy as np
import torch

from kv_agent_ros.errors import KvAgentError, StoreError
from kv_agent_ros.inference.local_llama import KVBuffer
from kv_agent_ros.kvcache.base import PrefixCache
from kv_agent_ros.kvcache.block import BlockSlot, KVNamespace, PrefixLease, SessionKey, TokenArray, WriteLease
from kv_agent_ros.kvcache.storage.base import ByteArray, checksum
from kv_agent_ros.kvcache.storage.segment import SegmentMap

_log = logging.getLogger(__name__)

CACHE_FAULTS = (KvAgentError, OSError)


@dataclass(frozen=True, kw_only=True, slots=True)
class ReuseStats:
    """The books of one engine's traffic with the cache."""

    num_read_blocks: int = 0
    num_written_blocks: int = 0
    num_bad_checksums: int = 0
    num_faults: int = 0  # calls that the cache did not answer properly


class KVReuse:
    """The cache as one engine sees it. Not thread-safe: the engine's turn protects it, as it protects the buffer."""

    def __init__(self, *, cache: PrefixCache, segments: SegmentMap, namespace: KVNamespace) -> None:
        self._cache = cache
        self._segments = segments
        self._namespace = namespace
        self._dtype = torch.from_numpy(np.empty(0, dtype=namespace.dtype)).dtype
        self.stats = ReuseStats()

    def fetch(self, session: SessionKey, tokens: TokenArray, buffer: KVBuffer) -> int:
        """Copy the longest cached prefix of `tokens` into the buffer; returns its length in tokens, 0 on any fault."""
        try:
            lease = self._cache.acquire(self._namespace, session, tokens)
        except CACHE_FAULTS as fault:
            self._note_fault('acquire', fault)
            return 0
        try:
            return self._read(lease, buffer)
        except CACHE_FAULTS as fault:
            self._note_fault('read', fault)
            return 0
        finally:
            self._release(lease.lease_id)

    def store(self, session: SessionKey, tokens: TokenArray, buffer: KVBuffer) -> int:
        """Publish the full blocks of `tokens`, all of which the buffer holds; returns how many became visible."""
        if len(tokens) < self._namespace.block_tokens:
            return 0
        try:
            lease = self._cache.reserve(self._namespace, session, tokens)
        except CACHE_FAULTS as fault:
            self._note_fault('reserve', fault)
            return 0
        try:
            return self._write(lease, buffer)
        except CACHE_FAULTS as fault:
            self._note_fault('write', fault)
            return 0
        finally:
            self._release(lease.lease_id)

    def _read(self, lease: PrefixLease, buffer: KVBuffer) -> int:
        size = self._namespace.block_tokens
        buffer.ensure(lease.matched_tokens, 0)
        for index, slot in enumerate(lease.slots):
            raw = self._bytes(slot)
            buffer.values[:, :, :, index * size : (index + 1) * size].copy_(self._block(raw))
            if checksum(raw) != slot.checksum:
                self._discard(lease, index)
                return self._note_read(index)
        return self._note_read(len(lease.slots))

    def _discard(self, lease: PrefixLease, index: int) -> None:
        self.stats = replace(self.stats, num_bad_checksums=self.stats.num_bad_checksums + 1)
        _log.warning('block %s: bad checksum; computing from there on', lease.slots[index].block_key.hex()[:12])
        try:
            self._cache.discard(lease.lease_id, index)
        except CACHE_FAULTS as fault:
            self._note_fault('discard', fault)

    def _write(self, lease: WriteLease, buffer: KVBuffer) -> int:
        size = self._namespace.block_tokens
        checksums = []
        for index, slot in enumerate(lease.slots):
            raw = self._bytes(slot)
            first = lease.first_token + index * size
            self._block(raw).copy_(buffer.values[:, :, :, first : first + size])
            checksums.append(checksum(raw))
        if not checksums:
            return 0
        num_visible = self._cache.commit(lease.lease_id, checksums)
        self.stats = replace(self.stats, num_written_blocks=self.stats.num_written_blocks + num_visible)
        return num_visible

    def _bytes(self, slot: BlockSlot) -> ByteArray:
        if slot.length_bytes != self._namespace.block_bytes:
            raise StoreError(
                f'slot in {slot.segment}: expected {self._namespace.block_bytes} bytes, got {slot.length_bytes}'
            )
        return self._segments.slot(slot)

    def _block(self, raw: ByteArray) -> torch.Tensor:
        return torch.from_numpy(raw).view(self._dtype).view(self._namespace.block_shape)

    def _note_read(self, num_blocks: int) -> int:
        self.stats = replace(self.stats, num_read_blocks=self.stats.num_read_blocks + num_blocks)
        return num_blocks * self._namespace.block_tokens

    def _release(self, lease_id: str) -> None:
        try:
            self._cache.release(lease_id)
        except CACHE_FAULTS as fault:
            self._note_fault('release', fault)

    def _note_fault(self, act: str, fault: Exception) -> None:
        self.stats = replace(self.stats, num_faults=self.stats.num_faults + 1)
        _log.warning('KV cache: %s failed (%s); computing without it', act, fault)
