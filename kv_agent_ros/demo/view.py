"""The live view: what a person reads while the robot works."""

from contextlib import AbstractContextManager, nullcontext
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.panel import Panel
from rich.table import Table

from kv_agent_ros.action import ExecuteTask
from kv_agent_ros.demo.report import Facts, object_facts, robot_facts
from kv_agent_ros.msg import ModelTurn, Plan, StepReport
from kv_agent_ros.ros.conversions.plan import plan_from_msg

BAR = 30
MARKS = {
    StepReport.PENDING: '[dim]·[/]',
    StepReport.RUNNING: '[cyan]▶[/]',
    StepReport.SUCCEEDED: '[green]✓[/]',
    StepReport.SKIPPED: '[dim]↷[/]',
    StepReport.FAILED: '[red]✗[/]',
    StepReport.REFUSED: '[red]⛔[/]',
}


class View:
    """Prints each thing once, as it happens."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._plan_id = ''
        self._last = ('', '', -1, -1)

    def open(self, instruction: str, robot: str, engine: str) -> None:
        """The head of a run."""
        self._console.print(Panel(escape(instruction), title=f'{robot} · {engine}', title_align='left', expand=False))

    def working(self) -> AbstractContextManager[object]:
        """While it lasts, a terminal shows that something is going on."""
        if self._console.is_terminal and not self._console.no_color:
            return self._console.status('working …')
        return nullcontext()

    def line(self, text: str) -> None:
        """Any line."""
        self._console.print(text, highlight=False)

    def feedback(self, feedback: ExecuteTask.Feedback) -> None:
        """One moment of the task."""
        for turn in feedback.turns:
            self.turn(turn)
        if feedback.turns:
            return
        if feedback.plan.plan_id and feedback.plan.plan_id != self._plan_id:
            self._plan_id = feedback.plan.plan_id
            self.plan(feedback.plan)
        now = (feedback.phase, feedback.message, feedback.step_index, feedback.step_status)
        if now == self._last or not feedback.message:
            return
        self._last = now
        mark = MARKS.get(feedback.step_status, ' ') if feedback.step_index >= 0 else '[blue]•[/]'
        self.line(f'  {mark} [dim]{feedback.phase:<10}[/] {escape(feedback.message)}')

    def plan(self, message: Plan) -> None:
        """A plan, with its source and its branches."""
        plan = plan_from_msg(message)
        table = Table(title=f'plan {message.plan_id} by {message.source}', title_justify='left', show_header=False)
        for number, step in enumerate(plan.steps):
            when = ''
            if step.branch_id:
                branch = plan.branches[step.branch_id - 1]
                when = f'if {branch.condition}' if step.arm else f'unless {branch.condition}'
            table.add_row(str(number), escape(str(step)), f'[yellow]{escape(when)}[/]')
        self._console.print(table)

    def turn(self, turn: ModelTurn) -> None:
        """One model call: a bar of cached (full) and computed (empty) prompt tokens."""
        usage = turn.usage
        if not usage.prompt_tokens:
            self.line(f'  [magenta]model[/] {turn.purpose:<8} [red]no answer[/]')
            return
        full = round(BAR * usage.cached_tokens / usage.prompt_tokens) if usage.prompt_tokens else 0
        bar = f'[green]{"█" * full}[/][yellow]{"░" * (BAR - full)}[/]'
        self.line(
            f'  [magenta]model[/] {turn.purpose:<8} {bar} prompt {usage.prompt_tokens} = cached {usage.cached_tokens}'
            f' + computed {usage.computed_tokens} · first token {usage.ttft_s:.2f} s · {usage.generated_tokens} new'
        )

    def close(self, facts: Facts, first_token: str, picture: str, verify_command: str) -> None:
        """The summary, from the simulator and the audit."""
        table = Table(title='what is true now', title_justify='left', show_header=False)
        table.add_row('outcome', f'{facts.outcome.name} {escape(facts.result.result.error_msg)}')
        for robot in facts.truth.world.robots:
            table.add_row(robot.robot_id, _robot_words(robot_facts(robot)))
        for thing in facts.truth.world.objects:
            if any(item.name == 'fill_level' for item in thing.properties):
                table.add_row(thing.object_id, _words(object_facts(thing)))
        verified = 'verified' if facts.audit.is_verified else '[red]NOT VERIFIED[/]'
        table.add_row(
            'audit', f'{facts.audit.num_records} records of all runs, {verified}; again with: {verify_command}'
        )
        table.add_row('first token', first_token or 'no model turn')
        table.add_row('model says', escape(facts.result.report) or 'nothing')
        table.add_row('picture', picture)
        self._console.print(table)


def _robot_words(facts: dict[str, Any]) -> str:
    x_m, y_m = facts['position_m']
    held = f', holding {facts["holding"]}' if facts['holding'] else ''
    where = 'docked' if facts['docked'] else 'not docked'
    pace = 'moving' if facts['moving'] else 'standing still'
    return escape(f'{where}, {pace} at ({x_m}, {y_m}) m, battery {facts["battery"]:.0%}{held}')


def _words(facts: dict[str, Any]) -> str:
    return escape(', '.join(f'{name} {value}' for name, value in facts.items() if value not in ('', None)))
