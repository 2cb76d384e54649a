"""``rmqctl retention``: predict which files a broker's cleaner deletes, and when."""

from __future__ import annotations

from datetime import UTC
from typing import TYPE_CHECKING, Annotated

import typer

from rmqctl.commands.app.option_groups import pick
from rmqctl.commands.shared.disk_used import DiskUsed
from rmqctl.commands.shared.engine_options import EngineOptions
from rmqctl.commands.shared.options import Out, StoreQueues, Zone
from rmqctl.errors import ExitCode
from rmqctl.output.units import count_text, duration_text, size_text, time_text
from rmqctl.phrases import Phrase, counted

if TYPE_CHECKING:
    from datetime import tzinfo

    from rmqctl.output import Human
    from rmqctl.repair.retention import AgedFile, DiskOutlook, Retention

_MAX_SHOWN = 20
_WHY = {"disk": Phrase("deleted: the disk is full"), "age": Phrase("expired")}
_HOUR = 3_600_000


def command(
    *,
    engine: Annotated[EngineOptions, pick("version")],
    disk_used: DiskUsed = None,
    tz: Zone = UTC,
    store: StoreQueues,
    out: Out,
) -> None:
    """Predict which files the broker's cleaner deletes, when and why, and when the disk is full.

    The cleaner deletes the oldest log files by age (fileReservedTime): in the hour deleteWhen (zone
    --tz), or at once above diskMaxUsedSpaceRatio. On a fuller disk, their age does not matter
    (cleanFileForciblyEnable). The last file is kept. Growth is measured over the newest messages (a
    day or more). Settings come from --broker-conf or the release's defaults. Exit code 1 if unread
    messages would be deleted or messages rejected; 3 if queues are in an unsupported format.

        rmqctl retention STORE --broker-conf broker.conf
        rmqctl retention STORE --disk-used 86% -o json
    """
    from rmqctl.checks.preflight.around import around
    from rmqctl.repair.retention import retention

    with store.open() as opened:
        forecast = retention(opened, around(opened, disk_used), engine.version, tz)
        layout = opened.layout
    out.document(forecast.as_dict(), lambda page: _show(page, forecast, tz))
    if not out.is_data:
        for note in forecast.notes:
            out.note(note)
    out.conclude(_first_line(forecast), "good" if forecast.harmless else "bad")
    if not forecast.harmless:
        raise typer.Exit(int(ExitCode.FINDINGS))
    if any(file.goes for file in forecast.files):
        layout.require(store.root, "consumequeue")


def _show(page: Human, forecast: Retention, tz: tzinfo) -> None:
    from rmqctl.checks.preflight.disk import expiry

    # Begin with the files that go, and the cost.
    disk, rules = forecast.disk, forecast.rules
    page.text(_first_line(forecast), "good" if forecast.harmless else "bad")
    old = expiry(disk, hint=False)
    if old is not None:
        page.text(old)
    page.blank()
    page.pairs({
        "release": forecast.release,
        "kept for": f"{rules.reserved_hours} h ({forecast.settings['fileReservedTime']})",
        "deletion hour": f"{rules.delete_when} ({forecast.settings['deleteWhen']})",
        "next deletion hour": "never: deleteWhen is not an hour" if forecast.next_run is None else
        time_text(forecast.next_run, tz),
        "disk in use": f"unknown: {disk.not_judged}" if disk.used_ratio is None
        else f"{disk.used_ratio:.0%}",
        f"above {rules.expire_ratio:.0%}": "nothing is deleted: the cleaner "
                                           "fails" if rules.fails else
        f"expired files are deleted at once ({forecast.settings['diskMaxUsedSpaceRatio']})",
        f"above {rules.clean_ratio:.0%}": "nothing is deleted: the cleaner "
                                          "fails" if rules.fails else
        "the oldest files are deleted, whatever their age" if rules.forces else
        "no file is deleted before it expires (cleanFileForciblyEnable=false)",
        f"above {rules.refuse_ratio:.0%}": "messages are rejected",
        **_outlook(forecast, forecast.outlook, tz)})
    # List the files; those that go come first.
    page.heading("Log files")
    page.table(({"file": file.file, "size": size_text(file.bytes),
                 "last written": time_text(file.written, tz),
                 "what": _what(file, tz, ends=forecast.next_run is not None)}
                for file in forecast.files[:_MAX_SHOWN]), ("file", "size", "last written", "what"))
    if len(forecast.files) > _MAX_SHOWN:
        page.text(f"and {count_text(len(forecast.files) - _MAX_SHOWN)} more (-o json has all)")


def _first_line(forecast: Retention) -> str:
    gone = sum(bool(file.goes) for file in forecast.files)
    if not gone:
        line = "the cleaner deletes nothing now"
    else:
        line = f"the cleaner deletes {counted(gone, 'log file')}"
        disk = forecast.disk
        count = max(disk.deletes_messages or 0, disk.expires_messages or 0)
        unread = forecast.unread_messages
        line += f" ({counted(count, 'message')}"
        line += f"; {unread:,} not read by a group)" if unread else ")"
    if forecast.refuses_writes:
        return f"{line}; the broker rejects messages: its disk is full"
    return line


def _what(file: AgedFile, tz: tzinfo, *, ends: bool) -> str:
    if file.expires is None:
        return "kept: the last file in use"
    if not file.goes and not ends:
        return "kept: deleteWhen is not an hour"
    return _WHY[file.goes] if file.goes else f"kept until {time_text(file.expires, tz)}"


def _outlook(forecast: Retention, outlook: DiskOutlook | None, tz: tzinfo) -> dict[str, str]:
    if outlook is None:
        return {"outlook": f"unknown: {forecast.no_outlook}"}
    names = {"expire_ratio": f"{forecast.rules.expire_ratio:.0%}", "full": "100%",
             "clean_ratio": f"{forecast.rules.clean_ratio:.0%}",
             "refuse_ratio": f"{forecast.rules.refuse_ratio:.0%}"}
    reached = [f"{names[name]} in {duration_text(int(hours * _HOUR))}" if hours else
               f"{names[name]} already"
               for name, hours in outlook.reached_in.items() if hours is not None]
    return {
        "log growth": f"{size_text(outlook.bytes_per_day)} per day "
                        f"({time_text(outlook.since, tz)} to {time_text(outlook.until, tz)})",
        "earliest disk usage": ", ".join(reached) or (
            f"never {names['expire_ratio']}: old files expire"),
        "with this fileReservedTime": f"at most {outlook.levels_off_at:.0%} of the disk",
        f"stays below {names['expire_ratio']} with": f"fileReservedTime={outlook.reserved_hours} "
        "or less" if outlook.reserved_hours else "no fileReservedTime: " + (
            "a larger disk is required" if forecast.next_run is not None else
            "set deleteWhen first")}
