"""What every benchmark prints: a table and a plot for people, one JSON line for programs.

A row compares `ours` with `peer` in the same run; `limit` is what physics or the bare model allows; `ratio` above 1 is
better for us.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import partial
import json
import os
from pathlib import Path
import platform
import signal
import sys

import matplotlib

matplotlib.use('agg')
from matplotlib.axes import Axes
import matplotlib.pyplot as plt
from rich.console import Console
from rich.table import Table

OUT = Path(__file__).resolve().parent / 'out'


@dataclass(frozen=True, kw_only=True, slots=True)
class Row:
    """One line of a benchmark's table; `n` is the number of repetitions behind the medians."""

    name: str
    ours: float
    peer: float
    peer_name: str
    limit: float
    ratio: float
    unit: str
    n: int


def machine() -> dict[str, object]:
    """Where the numbers come from."""
    cpu = next(
        (line.partition(':')[2].strip() for line in _cpu_lines() if line.startswith('model name')), platform.processor()
    )
    return {
        'cpu': cpu,
        'num_cpus': os.cpu_count(),
        'load_1min': round(os.getloadavg()[0], 2),
        'python': platform.python_version(),
        'system': f'{platform.system()} {platform.release()}',
    }


def run_phases(phases: Iterable[Callable[[], list[Row]]]) -> list[Row]:
    """The rows of all phases; when the run is interrupted (Ctrl-C, SIGTERM), those of the phases that ended."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    rows: list[Row] = []
    try:
        for phase in phases:
            rows += phase()
    except KeyboardInterrupt:
        print('interrupted: what follows is what was measured until then', file=sys.stderr, flush=True)
    return rows


def saving(name: str, phases: Iterable[Callable[[], list[Row]]]) -> Iterator[Callable[[], list[Row]]]:
    """The same phases; after each one all rows so far are in benchmarks/out/<name>.json, whatever ends the run."""
    rows: list[Row] = []

    def saved(phase: Callable[[], list[Row]]) -> list[Row]:
        found = phase()
        rows.extend(found)
        OUT.mkdir(exist_ok=True)
        (OUT / f'{name}.json').write_text(json.dumps({'rows': [asdict(row) for row in rows], 'machine': machine()}))
        return found

    for phase in phases:
        yield partial(saved, phase)


def print_json(rows: Sequence[Row], facts: dict[str, object]) -> None:
    """The contract of `scripts/bench NAME --json`: one JSON object as the last line."""
    print(json.dumps({'rows': [asdict(row) for row in rows], 'machine': machine() | facts}), flush=True)


def print_table(title: str, rows: Sequence[Row]) -> None:
    """The rows for a person."""
    table = Table(title=title)
    for heading in ('what', 'ours', 'compared with', 'limit', 'ratio', 'unit', 'n'):
        table.add_column(heading)
    for row in rows:
        compared = f'{_short(row.peer)} {row.peer_name}'
        table.add_row(row.name, _short(row.ours), compared, _short(row.limit), _short(row.ratio), row.unit, str(row.n))
    Console(width=120).print(table)


def save_plot(name: str, draw: Callable[[Axes], None]) -> Path:
    """Draw into benchmarks/out/<name>.png; returns the path."""
    OUT.mkdir(exist_ok=True)
    figure, axes = plt.subplots(figsize=(7, 4.5), layout='constrained')
    draw(axes)
    path = OUT / f'{name}.png'
    figure.savefig(path, dpi=150)
    plt.close(figure)
    return path


def _cpu_lines() -> list[str]:
    path = Path('/proc/cpuinfo')
    return path.read_text().splitlines() if path.exists() else []


def _short(value: float) -> str:
    return f'{value:.3g}'
