"""``rmqctl explain``: what a finding or an action means, and what to do about it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from rmqctl.commands.shared.options import Out

if TYPE_CHECKING:
    from rmqctl.checks.explanations import Explanation
    from rmqctl.output import Human


def command(
    *,
    name: Annotated[str | None, typer.Argument(
        metavar="[NAME]", show_default=False, help="A finding of verify (body-crc), or an action "
        "of a plan (fill). Without it all names are listed.")] = None,
    out: Out,
) -> None:
    """Explain a finding or an action: its meaning, how it comes about, what brokers do, what to do.

    Names are those in the columns of `rmqctl verify`, `rmqctl doctor`, `rmqctl preflight` and
    `rmqctl recover`.

        rmqctl explain body-crc

        rmqctl explain "move aside"
    """
    from rmqctl.checks.explanations import explain, explanations

    if name is None:
        out.rows(({"name": one.name, "kind": one.kind, "severity": one.severity,
                   "meaning": one.meaning or one.cause} for one in explanations().values()),
                 ("name", "kind", "severity", "meaning"),
                 styles={"severity": {"error": "bad", "warning": "warn"}.get})
        return
    found = explain(name)
    out.document(found.as_dict(), lambda page: _show(page, found))


def _show(page: Human, found: Explanation) -> None:
    named = f"{found.name} ({found.severity}): {found.meaning}" if found.meaning else (
        f"{found.name}: an action of a plan")
    page.text(named, "bold")
    page.heading("How it comes about" if found.meaning else "What it does")
    page.text(found.cause)
    if found.brokers:
        page.heading("What brokers do")
        page.text(found.brokers)
    if found.advice:
        page.heading("What to do")
        page.text(found.advice)
