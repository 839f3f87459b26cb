"""Books and findings ↔ messages and diagnostics."""

from collections.abc import Iterable

from diagnostic_msgs.msg import DiagnosticArray, DiagnosticStatus, KeyValue

from kv_agent_ros.inspector.inspector import InfraFinding, InfraReport, Level
from kv_agent_ros.inspector.metrics import Metric
from kv_agent_ros.msg import InfraFinding as FindingMsg
from kv_agent_ros.msg import Metric as MetricMsg
from kv_agent_ros.ros.conversions.values import time_to_msg

LEVELS = {Level.OK: DiagnosticStatus.OK, Level.WARN: DiagnosticStatus.WARN, Level.ERROR: DiagnosticStatus.ERROR}


def to_metrics(metrics: Iterable[Metric]) -> list[MetricMsg]:
    """Metrics → messages."""
    return [MetricMsg(name=metric.name, value=float(metric.value), unit=metric.unit) for metric in metrics]


def from_metrics(messages: Iterable[MetricMsg]) -> list[Metric]:
    """Messages → metrics."""
    return [Metric(name=message.name, value=message.value, unit=message.unit) for message in messages]


def finding_to_msg(finding: InfraFinding) -> FindingMsg:
    """InfraFinding → message."""
    return FindingMsg(
        level=int(finding.level), component=finding.component, message=finding.message, advice=finding.advice
    )


def report_to_diagnostics(report: InfraReport, stamp_s: float) -> DiagnosticArray:
    """One status a node: its worst finding as level and message, its books as values."""
    array = DiagnosticArray()
    array.header.stamp = time_to_msg(stamp_s)
    names = dict.fromkeys([*report.samples, *(finding.component.split('/')[0] for finding in report.findings)])
    for name in names:
        mine = [finding for finding in report.findings if finding.component.split('/')[0] == name]
        worst = mine[0] if mine else InfraFinding(level=Level.OK, component=name, message='ok', advice='')
        values = [
            KeyValue(key=f'{metric.name} [{metric.unit}]', value=f'{metric.value:.6g}')
            for metric in report.samples.get(name, ())
        ]
        status = DiagnosticStatus(
            level=LEVELS[worst.level], name=f'{name}: inspection', message=worst.message, hardware_id='', values=values
        )
        array.status.append(status)
    return array
