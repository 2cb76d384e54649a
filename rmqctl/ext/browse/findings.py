"""A screen with the findings of a check."""

from __future__ import annotations

import os
import textwrap
from typing import ClassVar

from rich.text import Text
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.screen import ModalScreen
from textual.widgets import OptionList, Static
from textual.widgets.option_list import Option

from rmqctl.checks.explanations import explanations
from rmqctl.checks.findings import Finding
from rmqctl.ext.browse.checking import CheckResult, Task
from rmqctl.ext.browse.panes import Line, folded
from rmqctl.ext.browse.widgets import LinePane
from rmqctl.output.escape import visible
from rmqctl.output.units import counted


class Findings(ModalScreen[Finding | None]):
    """The findings of a check, with an explanation of the finding under the cursor. Enter selects
    that finding and closes the screen.
    """

    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape,q", "dismiss(None)", "Close")]

    def __init__(self, task: Task, answer: CheckResult, root: str) -> None:
        super().__init__()
        self._task_run, self._answer, self._root = task, answer, root

    def compose(self) -> ComposeResult:
        answer = self._answer
        verdict = counted(answer.total, "finding") if answer.total else "no damage found"
        if answer.total > len(answer.findings):
            verdict += f", showing the first {len(answer.findings)}"
        with Vertical(classes="box"):
            yield Static(Text(f"{self._task_run.subject}: {verdict}"), id="verdict")
            if answer.findings:
                yield OptionList(*(Option(Text(self._line(finding)))
                                   for finding in answer.findings), id="findings")
            yield LinePane(id="meaning")

    def on_mount(self) -> None:
        if self._answer.findings:
            self.query_one(OptionList).focus()
        else:
            self.query_one(LinePane).focus()
        self.call_after_refresh(self._explain, 0)

    def on_option_list_option_highlighted(self, event: OptionList.OptionHighlighted) -> None:
        self._explain(event.option_index)

    def on_option_list_option_selected(self, event: OptionList.OptionSelected) -> None:
        self.dismiss(self._answer.findings[event.option_index])

    def _line(self, finding: Finding) -> str:
        where = "" if finding.file is None else os.path.relpath(finding.file, self._root)
        place = "" if finding.offset is None else f" @{finding.offset}"
        queue = "" if finding.topic is None else f" {finding.topic}/{finding.queue_id}"
        return visible(f"{finding.severity} {finding.category} {where}{place}{queue}")

    def _explain(self, number: int) -> None:
        pane = self.query_one(LinePane)
        lines: list[Line] = []
        width = max(pane.size.width - 2, 20)

        def say(words: str, style: str = "") -> None:
            lines.extend(((part, style),) for part in _wrapped(visible(words), width))

        for note in self._answer.notes:
            say(note)
        if number < len(self._answer.findings):
            finding = self._answer.findings[number]
            say(finding.detail, "bad" if finding.is_trouble else "")
            meaning = explanations().get(finding.category)
            for words in () if meaning is None else (meaning.cause, meaning.advice):
                say(" ".join(words.split()), "dim")
            if finding.next:
                say(finding.next, "name")
        pane.put(lines)


def _wrapped(words: str, width: int) -> list[str]:
    """Return a sentence as lines of at most ``width`` columns, broken at spaces where possible."""
    return [part for line in textwrap.wrap(words, width) or [""] for part in folded(line, width)]
