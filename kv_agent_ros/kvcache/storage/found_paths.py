"""Which paths the blocks of a store make, after a restart."""

from collections.abc import Sequence

from kv_agent_ros.kvcache.path import TOKEN_BYTES, TokenPath
from kv_agent_ros.kvcache.storage.base import BlockRecord


def find_paths(records: Sequence[BlockRecord]) -> tuple[list[TokenPath], list[bytes]]:
    """The longest complete paths, in the order of their last blocks, and the keys of blocks without their prefix."""
    by_key = {record.key: record for record in records}
    parents = {record.parent_key for record in records}
    paths: list[TokenPath] = []
    reached: set[bytes] = set()
    for record in records:
        if record.key not in parents:
            chain = _chain(by_key, record)
            reached.update(part.key for part in chain)
            if chain:
                paths.append(_path(chain))
    return paths, [record.key for record in records if record.key not in reached]


def _chain(by_key: dict[bytes, BlockRecord], leaf: BlockRecord) -> list[BlockRecord]:
    """The records from the first block to `leaf`; none when one is missing."""
    chain = [leaf]
    while chain[-1].parent_key in by_key:
        chain.append(by_key[chain[-1].parent_key])
    return chain[::-1] if chain[-1].parent_key == leaf.root else []


def _path(chain: list[BlockRecord]) -> TokenPath:
    tokens = b''.join(record.tokens for record in chain)
    return TokenPath(root=chain[0].root, tokens=tokens, block_tokens=len(chain[0].tokens) // TOKEN_BYTES)
