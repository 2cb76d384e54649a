"""``rmqctl backup check``: check that a backup can be restored."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from rmqctl.commands.app.option_groups import pick
from rmqctl.commands.shared.cron_options import CronOptions
from rmqctl.commands.shared.options import Out
from rmqctl.errors import ExitCode, RmqctlError
from rmqctl.parse_values import is_url
from rmqctl.phrases import Phrase, counted

if TYPE_CHECKING:
    from rmqctl.output import Human

_MAX_SHOWN = 20


def command(
    *,
    backup: Annotated[str, typer.Argument(
        metavar="DEST", show_default=False, help="Folder or URL of the backup.")],
    load: Annotated[CronOptions, pick("limit_rate idle")],
    out: Out,
) -> None:
    """Check that a backup can be restored.

    Compares the log and the configuration of each restore point with their recorded SHA-256. Damage
    that the store already had is counted, but is not an error; `rmqctl verify DEST` lists it and
    also checks consume queues and index. Exit code 1 if anything differs from what was copied.

        rmqctl backup check /backup/broker-a
    """
    from rmqctl.backup.check import ChangedRange
    from rmqctl.files.remote.reader import without_secrets

    if is_url(backup):
        from rmqctl.backup.objects import check, require_points
    else:
        from rmqctl.backup.check import check
        from rmqctl.backup.points import require_points
    bad: list[RmqctlError] = []
    points = require_points(backup, bad)
    total = sum(part.end - part.start for point in points for part in point.parts)
    with out.progress("checking", None if is_url(backup) else total) as progress:
        faults = [*check(backup, points, load.slowed(out, progress.advance)),
                  *(ChangedRange("", "", 0, 0, str(error)) for error in bad)]
    shown = without_secrets(backup)
    damaged = sum(len(point.damaged) for point in points)
    verdict = (Phrase("{backup}: {faults}", backup=shown, faults=counted(len(faults), "fault"))
               if faults else
               Phrase("{backup}: {points}, all unchanged", backup=shown,
                      points=counted(len(points), "restore point")))
    document = {"backup": shown, "ok": not faults, "points": len(points), "bytes": total,
                "faults": [fault.as_dict() for fault in faults],
                "damaged_in_the_store": damaged}

    def show(page: Human) -> None:
        page.text(verdict, "bad" if faults else "good")
        if faults:
            page.table([fault.as_dict() for fault in faults[:_MAX_SHOWN]],
                       ("point", "file", "start", "end", "reason"))
        if damaged:
            page.text(Phrase(
                "{count:,} place was already damaged in the store when it was copied",
                "{count:,} places were already damaged in the store when they were copied",
                count=damaged))

    out.document(document, show)
    out.conclude(verdict, "bad" if faults else "good")
    if faults:
        raise typer.Exit(int(ExitCode.FINDINGS))
