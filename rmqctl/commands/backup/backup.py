"""``rmqctl backup``: a consistent copy of a store that a broker may be writing to."""

from __future__ import annotations

import os
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rmqctl.commands.app.option_groups import pick
from rmqctl.commands.shared.cron_options import CronOptions
from rmqctl.commands.shared.options import Out, StoreOptions
from rmqctl.errors import ExitCode, RmqctlError, StoreIOError, UsageError, require
from rmqctl.output.units import size_text, time_text
from rmqctl.parse_values import is_url, now_ms, parse_duration
from rmqctl.phrases import Phrase, counted

if TYPE_CHECKING:
    from rmqctl.backup.points import Point
    from rmqctl.output import Output

_NOT_OVER = 0.2
"""Interval in seconds at which a waiting loop checks for an interrupt."""


def command(
    *,
    store: StoreOptions,
    backup: Annotated[str, typer.Argument(
        metavar="DEST", show_default=False,
        help="Folder or URL (s3://bucket/name) of the backup, new or from earlier runs.")],
    every: Annotated[int | None, typer.Option(
        "--every", metavar="SPAN", parser=parse_duration, show_default=False,
        help="Repeat every SPAN (30s, 5m) until interrupted.")] = None,
    keep: Annotated[int | None, typer.Option(
        "--keep", metavar="SPAN", parser=parse_duration, show_default=False,
        help="Remove restore points older than SPAN (30d), and files that only they need. The "
             "newest point is kept.")] = None,
    incremental: Annotated[bool, typer.Option(
        "--incremental", help="No effect: every run copies only what is new.",
        hidden=True)] = False,
    metrics: Annotated[str | None, typer.Option(
        "--format-prometheus", metavar="FILE", show_default=False,
        help="After each run, write metrics to FILE for node_exporter's textfile "
             "collector.")] = None,
    load: Annotated[CronOptions, pick("limit_rate idle")],
    out: Out,
) -> None:
    """Back up a store, even while a broker runs, and record a restore point.

    Messages are copied up to a fixed end of the log; offsets in the copy are never ahead of their
    queues. Damage is copied and listed, with exit code 1. Later runs copy only what is new, an
    interrupted run is continued, and log files that the broker deleted stay in the backup until
    --keep. `rmqctl restore` creates a store from any restore point. A folder DEST is itself a store
    that every command can read; a URL gets objects.

        rmqctl backup /data/store /backup/broker-a
        rmqctl backup /data/store s3://backups/broker-a
        rmqctl backup /data/store /backup/broker-a --every 5m --keep 30d
    """
    from rmqctl import __version__
    from rmqctl.backup.backup import BackupSource
    from rmqctl.files.named import refuse_link_of_others
    from rmqctl.files.remote.reader import without_secrets

    if is_url(backup):
        from rmqctl.backup.remote import back_up
    else:
        from rmqctl.backup.backup import back_up
    shown = without_secrets(backup)
    if incremental:
        out.note(Phrase("--incremental has no effect: every run copies only what is new"))
    if load.limit_rate == 0:
        raise UsageError("--limit-rate must be greater than 0")
    if every is not None and every <= 0:
        raise UsageError("--every must be longer than 0 s")
    if metrics is not None:
        require("prometheus_client")
        refuse_link_of_others(metrics, itself=False)
        if os.path.commonpath(list(map(os.path.realpath, (store.root, metrics)))) == (
                os.path.realpath(store.root)):
            raise UsageError(f"--format-prometheus {metrics}: is inside the store, which is only "
                             "read")
    if not is_url(backup):
        refuse_link_of_others(backup)
    source = BackupSource(store.root, store.folders, store.sizes)
    # Make one run or several; an error in one run does not end the others.
    code, begun_well = ExitCode.OK, False
    while True:
        begun = time.monotonic()
        point = None
        try:
            with out.progress("copying") as progress:
                point, removed = back_up(source, backup, now_ms, __version__,
                                         load.slowed(out, progress.advance), keep)
            begun_well = True
            _show(out, shown, point, removed, time.monotonic() - begun)
            code = ExitCode.FINDINGS if point.damaged or point.missing else code
        except RmqctlError as error:
            if every is None or isinstance(error, UsageError) or (
                    point is None and not begun_well and not _newest(backup)[0]):
                raise
            out.warn(f"{error}; the next run tries again")
            code = ExitCode.FINDINGS
        if metrics is not None:
            _measure(metrics, backup, point, time.monotonic() - begun)
        if every is None:
            break
        _wait(begun + every / 1000)
    if code is not ExitCode.OK:
        raise typer.Exit(int(code))


def _newest(backup: str) -> tuple[int, Point | None]:
    """Return (number of restore points, the newest restore point)."""
    if is_url(backup):
        from rmqctl.backup.objects import newest

        return newest(backup)
    from rmqctl.backup.points import read_points

    points = read_points(backup)
    return len(points), points[-1] if points else None


def _wait(until: float) -> None:
    while (left := until - time.monotonic()) > 0:
        time.sleep(min(left, _NOT_OVER))


def as_document(backup: str, point: Point) -> dict[str, Any]:
    """Return the JSON object of a restore point."""
    copied = sum(part.end - part.start for part in point.parts)
    return {"backup": backup, "point": point.id, "time": point.time, "store": point.store,
            "log_start": point.log_start, "log_end": point.log_end, "messages": point.messages,
            "bytes_copied": copied, "last_store_timestamp": point.last_time or None,
            "damaged": [{"file": hole.file, "offset": hole.offset, "length": hole.length,
                         "unread": hole.unread, "kept": hole.kept} for hole in point.damaged],
            "offsets_lowered": point.lowered, "notes": list(point.notes)}


def _show(out: Output, backup: str, point: Point, removed: tuple[int, int],
          seconds: float) -> None:
    document = {**as_document(backup, point), "points_removed": removed[0],
                "bytes_removed": removed[1], "seconds": round(seconds, 3)}
    in_backup = not is_url(backup) and not any(hole.kept for hole in point.damaged)
    verdict = Phrase("restore point {point}: {messages} new, {size} of log", point=point.id,
                     messages=counted(point.messages, "message"),
                     size=size_text(document["bytes_copied"]))
    out.document(document, lambda page: page.pairs({
        "restore point": point.id,
        "log": f"{point.log_start:,} to {point.log_end:,}",
        "copied": f"{size_text(document['bytes_copied'])} of log, "
        f"{counted(point.messages, 'message')}",
        "newest message": time_text(point.last_time) if point.last_time else "-",
        "offsets lowered": f"{point.lowered:,}",
        "damaged": f"{counted(len(point.damaged), 'place')} (`rmqctl verify "
        f"{backup if in_backup else point.store}`)" if point.damaged else "nothing",
        **({"removed": f"{counted(removed[0], 'restore point')}, {size_text(removed[1])}"}
           if any(removed) else {})}))
    for note in point.notes:
        out.warn(note)
    for hole in point.damaged[:5]:
        where = {"file": os.path.join(point.store, hole.file), "length": hole.length,
                 "offset": hole.offset}
        out.warn(Phrase(
            "{file}: {length:,} bytes from {offset:,} on are now zeros or unreadable in the store; "
            "the backup keeps its earlier copy", **where) if hole.kept else Phrase(
            "{file}: {length:,} bytes at {offset:,} cannot be read; they are zeros in the backup",
            **where) if hole.unread else Phrase(
            "{file}: {length:,} bytes at {offset:,} are damaged in the store and copied "
            "unchanged", **where))
    out.conclude(verdict, "bad" if point.damaged else "good")


def _measure(path: str, backup: str, point: Point | None, seconds: float) -> None:
    """Write the metrics of a run; after a failure, keep the metrics of the last success."""
    from rmqctl.files.durable import replace_file
    from rmqctl.files.remote.reader import without_secrets
    from rmqctl.output.prometheus import Metric, exposition

    count, last = 0, point
    with suppress(StoreIOError):  # the backup cannot be reached now; the next run tries again
        count, last = _newest(backup)
    labels = {"backup": without_secrets(backup)}
    values = {
        "rmqctl_backup_success": ("1 if the last run succeeded", float(point is not None)),
        "rmqctl_backup_duration_seconds": ("Duration of the last run", seconds),
        "rmqctl_backup_points": ("Number of restore points", float(count))}
    if last is not None:
        values["rmqctl_backup_last_success_timestamp_seconds"] = (
            "Time of the newest restore point", last.time / 1000)
        values["rmqctl_backup_log_end_bytes"] = (
            "Physical offset up to which the log is copied", float(last.log_end))
        values["rmqctl_backup_damaged_places"] = (
            "Damaged ranges that the last run copied", float(len(last.damaged)))
    try:
        replace_file(path, exposition([Metric(name, text, [(labels, value)])
                                       for name, (text, value) in values.items()]))
    except OSError as error:
        raise StoreIOError.from_oserror(error, path, "write") from None
