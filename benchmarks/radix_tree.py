"""The prefix tree against SGLang's: 10,000 sequences of 2,000 tokens with 100 shared heads of 1,500 tokens.

CPU time per sequence, all trees in turns in SGLang's interpreter. The limit is a numpy comparison of the same tokens.
Then the growth of our tree from 10,000 blocks to 1,000,000. Where SGLang cannot be set up, the peer is a trie of
dictionaries.
"""

import argparse
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path
import statistics
import sys

from matplotlib.axes import Axes

from benchmarks._reporting import Row, print_json, print_table, save_plot
from benchmarks._sglang import NoSglangError, run_driver
from benchmarks._tree_growth import Growth, bytes_of_single_blocks, grow
from benchmarks._tree_workload import OurTree, TrieTree, in_child, run_rounds

DRIVER = Path(__file__).with_name('_sglang_tree.py')
PEERS = {'python': "SGLang's RadixCache", 'rust': "SGLang's Rust core", 'trie': 'a trie of dictionaries'}
LIMIT = 'numpy'
HITS = ('insert_hits', 'match_hits', 'head_hits')  # tokens that were found; must be those of the peers
TIMEOUT_S = 1_800.0
GROWTH_BLOCK_TOKENS = 16

Medians = dict[tuple[str, int], dict[str, float]]  # (tree, block_tokens) -> what -> value


def measured_runs(request: dict[str, object]) -> list[dict[str, object]]:
    """All rounds of all trees: with SGLang's where that is possible, else without."""
    try:
        runs = run_driver(DRIVER, request, TIMEOUT_S)['runs']
    except NoSglangError as error:
        print(f'{error}; the peer is {PEERS["trie"]}', file=sys.stderr, flush=True)
        return run_rounds({'ours': OurTree, 'trie': TrieTree}, request)
    assert isinstance(runs, list)
    return runs


def medians(runs: Iterable[dict[str, object]]) -> Medians:
    """Over the rounds."""
    values: dict[tuple[str, int], dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for run in runs:
        for what, value in run.items():
            if what not in ('tree', 'block_tokens'):
                values[str(run['tree']), int(str(run['block_tokens']))][what].append(float(str(value)))
    return {key: {what: statistics.median(found) for what, found in lists.items()} for key, lists in values.items()}


def peer_rows(found: Medians, block_tokens: int, rounds: int) -> list[Row]:
    """Ours at one block size against the best of the peers, then against each."""
    peers = [tree for tree, size in found if size == block_tokens and tree in PEERS]
    limit = found[LIMIT, block_tokens]
    limits = {  # bytes: the tokens themselves; SGLang's trees also hold the slot of every token, 8 bytes
        'match_us': limit['match_us'],
        'head_us': limit['head_us'],
        'insert_us': limit['match_us'],
        'bytes_per_token': 4.0,
    }
    rows = []
    for what, best_possible in limits.items():
        best = min(peers, key=lambda peer: found[peer, block_tokens][what])
        name = f'{what.removesuffix("_us")}_{block_tokens}'
        rows.append(_row(name, what, best, found, block_tokens, best_possible, rounds))
        rows += [
            _row(f'{name}_vs_{peer}', what, peer, found, block_tokens, best_possible, rounds)
            for peer in (peers if len(peers) > 1 else ())
        ]
    return rows + [
        _row(
            f'{what}_{block_tokens}_vs_{peer}', what, peer, found, block_tokens, found[peer, block_tokens][what], rounds
        )
        for what in HITS
        for peer in peers
    ]


def _row(name: str, what: str, peer: str, found: Medians, block_tokens: int, limit: float, rounds: int) -> Row:
    ours, theirs = found['ours', block_tokens][what], found[peer, block_tokens][what]
    return Row(
        name=name,
        ours=ours,
        peer=theirs,
        peer_name=PEERS[peer],
        limit=limit,
        ratio=ours / theirs if what in HITS else theirs / ours,
        unit='tokens' if what in HITS else 'us' if what.endswith('_us') else 'bytes',
        n=rounds,
    )


def limit_row(found: Medians, block_tokens: int, rounds: int) -> Row:
    """Ours against the comparison alone; the check of the tokens and the walk are ours in addition."""
    ours, limit = found['ours', block_tokens]['match_us'], found[LIMIT, block_tokens]['match_us']
    return Row(
        name=f'match_{block_tokens}_of_limit',
        ours=ours,
        peer=limit,
        peer_name='numpy comparison of the same tokens',
        limit=limit,
        ratio=limit / ours,
        unit='us',
        n=rounds,
    )


def growth_rows(small: Growth, large: Growth) -> list[Row]:
    """The same work in a tree 100 times as large, and what a block costs."""
    rows = [
        Row(
            name=f'{name}_at_{large.num_blocks}_blocks',
            ours=ours,
            peer=peer,
            peer_name=f'itself at {small.num_blocks} blocks',
            limit=peer,
            ratio=peer / ours,
            unit='us',
            n=large.num_repeats,
        )
        for name, ours, peer in (
            ('match', large.match_us, small.match_us),
            ('lock_unlock', large.lock_us, small.lock_us),
            ('insert', large.insert_us, small.insert_us),
            ('evict_block', large.evict_us, small.evict_us),
        )
    ]
    token_bytes = 4.0 * GROWTH_BLOCK_TOKENS
    for name, ours in (('runs', large.bytes_per_block), ('single_blocks', in_child(bytes_of_single_blocks, 200_000))):
        rows.append(
            Row(
                name=f'bytes_per_block_{name}',
                ours=ours,
                peer=token_bytes,
                peer_name='its tokens alone',
                limit=token_bytes,
                ratio=token_bytes / ours,
                unit='bytes',
                n=1,
            )
        )
    return rows


def draw(axes: Axes, found: Medians) -> None:
    """CPU time of matching and inserting, ours and the peers'."""
    sizes = sorted({size for _, size in found})
    labels = {'ours': 'ours', **PEERS, LIMIT: 'numpy comparison'}
    trees = [tree for tree in labels if (tree, sizes[0]) in found]
    groups = [(what, size) for what in ('match_us', 'head_us', 'insert_us') for size in sizes]
    for number, tree in enumerate(trees):
        heights = [found[tree, size].get(what, 0.0) for what, size in groups]
        axes.bar([index + 0.2 * number for index in range(len(groups))], heights, 0.2, label=labels[tree])
    names = [f'{what.removesuffix("_us")}\nblocks of {size}' for what, size in groups]
    axes.set_xticks([index + 0.3 for index in range(len(groups))], names)
    axes.set(ylabel='CPU time per sequence of 2,000 tokens (µs)')
    axes.legend()


def main() -> None:
    """Measure, then print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument('--sequences', type=int, default=10_000, help='sequences of 2,000 tokens')
    parser.add_argument('--blocks', type=int, nargs='+', default=[1, 16], help='tokens per block')
    parser.add_argument('--growth', type=int, default=1_000_000, help='blocks of the large tree')
    parser.add_argument('--n', type=int, default=3, help='rounds')
    parser.add_argument('--seed', type=int, default=1)
    parser.add_argument('--json', action='store_true', help='one JSON object as the last line')
    arguments = parser.parse_args()
    request: dict[str, object] = {
        'num_sequences': arguments.sequences,
        'seed': arguments.seed,
        'rounds': arguments.n,
        'block_tokens': arguments.blocks,
    }
    found = medians(measured_runs(request))
    rows: list[Row] = []
    for block_tokens in arguments.blocks:
        rows += [*peer_rows(found, block_tokens, arguments.n), limit_row(found, block_tokens, arguments.n)]
    print(f'growth to {arguments.growth} blocks …', file=sys.stderr, flush=True)
    rows += growth_rows(*in_child(grow, arguments.growth // 100, arguments.growth, GROWTH_BLOCK_TOKENS))
    if arguments.json:
        print_json(rows, {'clock': 'cpu', 'sequences': arguments.sequences})
        return
    print_table('Prefix trees: CPU time per sequence of 2,000 tokens', rows)
    print(save_plot('radix_tree', lambda axes: draw(axes, found)))


if __name__ == '__main__':
    main()
