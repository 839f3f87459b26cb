"""InfraInspector: reads everybody's books, adds them up, and says what stands out and what to do about it."""

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum

from kv_agent_ros.errors import UnreachableError
from kv_agent_ros.inspector.metrics import Metric, Source

MIN_REQUESTS = 4
LOW_HIT_RATE = 0.25
FULL = 0.95


class Level(IntEnum):
    """How bad; the number is the one on the interface and in diagnostics."""

    OK = 0
    """As it should be."""
    WARN = 1
    """Works, but somebody should look."""
    ERROR = 2
    """Does not work."""


@dataclass(frozen=True, kw_only=True, slots=True)
class InfraFinding:
    """What stands out, with advice."""

    level: Level
    component: str
    message: str
    advice: str


@dataclass(frozen=True, kw_only=True, slots=True)
class InfraReport:
    """The books of every node that answered, and the findings, worst first."""

    samples: Mapping[str, Sequence[Metric]]
    findings: tuple[InfraFinding, ...]


Check = Callable[[str, Mapping[str, float]], InfraFinding | None]


class InfraInspector:
    """Reads its sources when asked; keeps nothing between reports."""

    def __init__(self, sources: Sequence[Source]) -> None:
        self._sources = tuple(sources)

    def inspect(self) -> InfraReport:
        """A report. A source that does not answer is a finding, never an exception."""
        samples: dict[str, Sequence[Metric]] = {}
        findings: list[InfraFinding] = []
        for source in self._sources:
            try:
                samples[source.name] = source.read()
            except UnreachableError as error:
                findings.append(_unreachable(source.name, error))
        for name, metrics in samples.items():
            values = {metric.name: metric.value for metric in metrics}
            findings += [found for check in CHECKS if (found := check(name, values)) is not None]
            findings += _troubles(name, values)
        findings.sort(key=lambda finding: -finding.level)
        return InfraReport(samples=samples, findings=tuple(findings))


def _unreachable(name: str, error: UnreachableError) -> InfraFinding:
    return InfraFinding(
        level=Level.ERROR, component=name, message=str(error), advice='is the node running and active? see its log'
    )


def _low_hit_rate(name: str, values: Mapping[str, float]) -> InfraFinding | None:
    rate = values.get('token_hit_rate', 1.0)
    if values.get('requests', 0.0) < MIN_REQUESTS or rate >= LOW_HIT_RATE:
        return None
    return InfraFinding(
        level=Level.WARN,
        component=name,
        message=f'token hit rate: expected at least {LOW_HIT_RATE:.0%} in a session, got {rate:.0%}',
        advice='does something volatile stand early in the prompt? is the memory tier too small?',
    )


def _no_benefit(name: str, values: Mapping[str, float]) -> InfraFinding | None:
    if values.get('cached_tokens', 0.0) <= 0 or values.get('saved_prefill_s', 0.0) >= 0:
        return None
    return InfraFinding(
        level=Level.WARN,
        component=name,
        message=f'loading cached blocks took {-values["saved_prefill_s"]:.2f} s longer than computing them',
        advice='a slow tier is serving; give the memory tier more bytes or compute short prefixes',
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class Trouble:
    """A count that should be 0. `message` may name the values of the node, e.g. {failures:.0f}."""

    metric: str
    level: Level
    message: str
    advice: str


TROUBLES = (
    Trouble(
        metric='failures',
        level=Level.WARN,
        message='{failures:.0f} of {requests:.0f} model calls failed',
        advice='see the log of the engine',
    ),
    Trouble(
        metric='checksum_failures',
        level=Level.ERROR,
        message='{checksum_failures:.0f} KV blocks failed their checksum and were dropped',
        advice='check memory and disk of this machine',
    ),
    Trouble(
        metric='expired_leases',
        level=Level.WARN,
        message='{expired_leases:.0f} leases ended by time-out',
        advice='an engine died or hung while it held blocks; see its log',
    ),
    Trouble(
        metric='is_estopped',
        level=Level.ERROR,
        message='the emergency stop is latched',
        advice='make sure that it is safe, then call reset_estop with your name',
    ),
)


def _troubles(name: str, values: Mapping[str, float]) -> list[InfraFinding]:
    return [
        InfraFinding(
            level=trouble.level,
            component=name,
            message=trouble.message.format_map(defaultdict(float, values)),
            advice=trouble.advice,
        )
        for trouble in TROUBLES
        if values.get(trouble.metric, 0.0) > 0
    ]


def _tiers(name: str, values: Mapping[str, float]) -> InfraFinding | None:
    broken = [key for key, value in values.items() if key.endswith('_errors') and value > 0]
    if broken:
        tier = broken[0].removesuffix('_errors')
        return InfraFinding(
            level=Level.WARN,
            component=f'{name}/{tier}',
            message=f'{values[broken[0]]:.0f} failures of the {tier} tier, each a miss',
            advice='is the disk full or failing?',
        )
    full = [key for key, value in values.items() if key.endswith('_usage') and value > FULL]
    if not full or values.get(full[0].replace('_usage', '_evictions'), 0.0) <= 0:
        return None
    tier = full[0].removesuffix('_usage')
    return InfraFinding(
        level=Level.OK,
        component=f'{name}/{tier}',
        message=f'the {tier} tier is full ({values[full[0]]:.0%}) and evicts',
        advice=f'a larger {tier}_bytes would keep more sessions warm',
    )


def _degraded(name: str, values: Mapping[str, float]) -> InfraFinding | None:
    degraded = [key for key, value in values.items() if key.endswith('_is_degraded') and value > 0]
    if not degraded:
        return None
    tier = degraded[0].removesuffix('_is_degraded')
    return InfraFinding(
        level=Level.WARN,
        component=f'{name}/{tier}',
        message=f'the {tier} tier fails or hangs now: everything in it is a miss',
        advice='look at the device and its mount; it is tried again by itself',
    )


def _mirror(name: str, values: Mapping[str, float]) -> InfraFinding | None:
    if values.get('mirror_degraded', 0.0) > 0:
        return InfraFinding(
            level=Level.WARN,
            component=f'{name}/mirror',
            message=f'DEGRADED: events of the server are missing, resync {values.get("mirror_resyncs", 0.0):.0f}',
            advice='it is asked for them by itself; is the server up, and does it repeat (engine_events_replay)?',
        )
    if values.get('mirror_waiting', 0.0) > 0:
        return InfraFinding(
            level=Level.WARN,
            component=f'{name}/mirror',
            message="nothing was heard of the server's cache yet",
            advice='is the server up, and does it publish events at engine_events?',
        )
    return None


CHECKS: tuple[Check, ...] = (_low_hit_rate, _no_benefit, _degraded, _tiers, _mirror)
