"""``rmqctl backup list``: the restore points of a backup."""

from __future__ import annotations

from datetime import UTC
from typing import TYPE_CHECKING, Annotated

import typer

from rmqctl.commands.backup.backup import as_document
from rmqctl.commands.shared.options import Out, Zone
from rmqctl.errors import ExitCode, RmqctlError
from rmqctl.output.units import size_text, time_text
from rmqctl.parse_values import is_url
from rmqctl.phrases import counted

if TYPE_CHECKING:
    from rmqctl.output import Human

COLUMNS = ("point", "time", "log_end", "damaged", "messages", "copied", "newest message")


def command(
    *,
    backup: Annotated[str, typer.Argument(
        metavar="DEST", show_default=False, help="Folder or URL of the backup.")],
    tz: Zone = UTC,
    out: Out,
) -> None:
    """List the restore points of a backup, oldest first.

    You can restore each of them, and any moment before the newest: the messages up to a store time
    or a physical offset, with configuration and consumer offsets as of a restore point.

        rmqctl backup list /backup/broker-a
    """
    from rmqctl.files.remote.reader import without_secrets

    if is_url(backup):
        from rmqctl.backup.objects import require_points
    else:
        from rmqctl.backup.points import require_points
    shown, bad = without_secrets(backup), list[RmqctlError]()
    points = [as_document(shown, point) for point in require_points(backup, bad)]
    verdict = counted(len(points), "restore point")

    def show(page: Human) -> None:
        page.table(({
            "point": point["point"], "time": time_text(point["time"], tz),
            "log_end": point["log_end"], "messages": point["messages"],
            "copied": size_text(point["bytes_copied"]), "damaged": len(point["damaged"]),
            "newest message": "-" if point["last_store_timestamp"] is None else
            time_text(point["last_store_timestamp"], tz)} for point in points), COLUMNS)

    out.document({"backup": shown, "points": points}, show)
    for error in bad:
        out.warn(str(error))
    out.conclude(verdict)
    if bad:
        raise typer.Exit(int(ExitCode.FINDINGS))
