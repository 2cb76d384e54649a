"""``rmqctl explain``: the meaning of a finding or an action, and what to do about it."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Annotated

import typer

from rmqctl.commands.app.completing import complete_findings
from rmqctl.commands.shared.options import Out
from rmqctl.phrases import Phrase

if TYPE_CHECKING:
    from rmqctl.checks.explanations import Explanation
    from rmqctl.output import Human


def command(
    *,
    name: Annotated[str | None, typer.Argument(
        metavar="[NAME]", show_default=False, autocompletion=complete_findings,
        help="A finding (body-crc), an action of a plan (fill) or a word on a screen (undecided). "
             "Default: list all names.")] = None,
    out: Out,
) -> None:
    """Explain a finding or an action, its cause, what brokers do, and what to do about it.

    Accepts the names that `rmqctl verify`, `doctor`, `preflight` and `recover` print, and the words
    that they use for states, such as "already lost".

        rmqctl explain body-crc
        rmqctl explain "move aside"
    """
    from rmqctl.checks.explanations import explain, explanations
    from rmqctl.output.language import language

    caption = language(out.lang).caption
    if name is None:
        out.rows(({"name": listed.name, "kind": listed.kind, "severity": listed.severity,
                   "meaning": caption(listed.meaning) or listed.cause}
                  for listed in explanations(out.lang).values()),
                 ("name", "kind", "severity", "meaning"),
                 styles={"severity": {"error": "bad", "warning": "warn"}.get})
        return
    explanation = explain(name, out.lang)
    explanation = replace(explanation, meaning=caption(explanation.meaning))
    out.document(explanation.as_dict(), lambda page: _show(page, explanation))


def _show(page: Human, explanation: Explanation) -> None:
    from rmqctl.checks.explanations import WORD

    if explanation.kind == WORD:
        page.text(Phrase("{name}: a word that screens use", name=explanation.name), "bold")
        page.heading("Meaning")
        page.text(explanation.cause)
        return
    page.text(Phrase("{name} ({severity}): {meaning}", name=explanation.name,
                     severity=explanation.severity, meaning=explanation.meaning)
              if explanation.meaning else
              Phrase("{name}: an action of a plan", name=explanation.name), "bold")
    page.heading("Cause" if explanation.meaning else "What it does")
    page.text(explanation.cause)
    if explanation.brokers:
        page.heading("What brokers do")
        page.text(explanation.brokers)
    if explanation.advice:
        page.heading("What to do")
        page.text(explanation.advice)
