"""Tables that show how damage and a broker's startup affect consumer groups."""

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
"""Number of leading columns (group, topic, queue, offset), which are always shown. Any other column
is omitted if it is empty in all rows.
"""


def show_section(page: Human, consumers: Consumers | None, shown: Collection[str]) -> None:
    """Show the effect on consumers: a sentence, a table of affected queues, and the notes that are
    not in ``shown``. Show nothing if there are no queues, or if it is certain that no group is
    affected.
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
    """Show a table of losses: all with ``--all``, else at most the first `_MAX_SHOWN`."""
    if not losses:
        return
    page.blank()
    most = len(losses) if page.every else _MAX_SHOWN
    page.table([{"lost": counted(loss.what, loss.count), "file": loss.file, "cause": loss.cause}
                for loss in losses[:most]])
    if len(losses) > most:
        page.text(Phrase("and {some:,} more (--all lists them)", some=len(losses) - most))


def _row(queue: QueueImpact) -> dict[str, str | int | None]:
    """Return the table row for a group's queue.

    * ``lost``: number of lost messages
    * ``unread``: number of lost messages that the group has not read
    * ``twice``: number of redelivered messages
    """
    return {"group": queue.group, "topic": queue.topic, "queue": queue.queue_id,
            "position": queue.position, "beyond": queue.beyond_end,
            "lost": queue.lost_before + queue.lost_after, "unread": queue.lost_after,
            "at risk": queue.at_risk, "twice": queue.twice, "skipped": queue.skipped}


def show_queues(page: Human, queues: Sequence[QueueImpact]) -> None:
    """Show a table of queues: all with ``--all``, else at most the first `_MAX_SHOWN`."""
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
