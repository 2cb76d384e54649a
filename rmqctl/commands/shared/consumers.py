"""Tables of the effects on consumers."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING

from rmqctl.checks.losses import counted
from rmqctl.phrases import Phrase

if TYPE_CHECKING:
    from rmqctl.checks.consumers import Consumers, QueueImpact
    from rmqctl.checks.losses import Loss
    from rmqctl.output import Human

_MAX_SHOWN = 20
_ALWAYS = 4
"""Number of columns that name the queue and are always shown; other columns are omitted if they are
empty.
"""


def show_section(page: Human, consumers: Consumers | None, shown: Collection[str]) -> None:
    """Show a line, a table of affected queues, and the notes that are not in ``shown``; show
    nothing if no group is known to be affected.
    """
    if consumers is not None and consumers.queues and (
            consumers.groups_affected or not consumers.complete):
        page.heading("Effect on consumers")
        page.text(consumers.in_words())
        show_queues(page, consumers.affected)
        for text in consumers.notes:
            if text not in shown:
                page.text(text)


def show_losses(page: Human, losses: Sequence[Loss]) -> None:
    """Show a table of losses other than lost messages; if there are many losses, only the first
    ones.
    """
    if not losses:
        return
    page.blank()
    most = len(losses) if page.every else _MAX_SHOWN
    page.table([{"lost": counted(loss.what, loss.count), "file": loss.file, "cause": loss.cause}
                for loss in losses[:most]])
    if len(losses) > most:
        page.text(Phrase("and {some:,} more (--all lists them)", some=len(losses) - most))


def _row(queue: QueueImpact) -> dict[str, str | int | None]:
    """Return the cells for a queue: the number of ``lost`` messages, how many of these the group
    has not read, …
    """
    return {"group": queue.group, "topic": queue.topic, "queue": queue.queue_id,
            "position": queue.position, "beyond": queue.beyond_end,
            "lost": queue.lost_before + queue.lost_after, "unread": queue.lost_after,
            "at risk": queue.at_risk, "twice": queue.twice, "skipped": queue.skipped}


def show_queues(page: Human, queues: Sequence[QueueImpact]) -> None:
    """Show a table of queues; if there are many, only the first ones."""
    if not queues:
        return
    rows = [_row(queue) for queue in queues]
    columns = [name for number, name in enumerate(rows[0])
               if number < _ALWAYS or any(row[name] for row in rows)]
    page.blank()
    most = len(rows) if page.every else _MAX_SHOWN
    page.table(rows[:most], columns)
    if len(rows) > most:
        page.text(Phrase("and {some:,} more (--all lists them)", some=len(rows) - most))
