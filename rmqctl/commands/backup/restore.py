"""``rmqctl restore``: restore a store from a backup."""

from __future__ import annotations

import shlex
from datetime import UTC
from typing import TYPE_CHECKING, Annotated

import typer

from rmqctl.commands.app.option_groups import pick
from rmqctl.commands.shared.cron_options import CronOptions
from rmqctl.commands.shared.options import Out, Zone
from rmqctl.commands.shared.plan_page import what_next
from rmqctl.errors import ExitCode, UsageError
from rmqctl.output.units import size_text
from rmqctl.parse_values import is_url, parse_offset, parse_time
from rmqctl.phrases import Phrase, counted, some_of

if TYPE_CHECKING:
    from rmqctl.output import Human, Output

_MAX_NAMED = 5


def command(
    *,
    backup: Annotated[str, typer.Argument(
        metavar="DEST", show_default=False,
        help="Folder or URL of the backup, or a store at a URL or in an archive.")],
    target: Annotated[str, typer.Argument(
        metavar="NEWSTORE", show_default=False,
        help="The new store: an empty folder, or one that does not exist yet.")],
    until: Annotated[str | None, typer.Option(
        "--until", metavar="TIME", show_default=False,
        help="Only messages stored up to TIME (ISO-8601, epoch ms, -2h), offsets as of the "
             "restore point before TIME.")] = None,
    offset: Annotated[int | None, typer.Option(
        "--until-offset", metavar="OFFSET", parser=parse_offset, show_default=False,
        help="Only messages before this physical offset, which must be the start of a "
             "record.")] = None,
    point: Annotated[str | None, typer.Option(
        "--point", metavar="ID", show_default=False,
        help="Restore this restore point (see `rmqctl backup list DEST`).")] = None,
    seed_slave: Annotated[bool, typer.Option(
        "--seed-slave", help="Prepare a new slave of the backed-up master, so that it does not "
                             "have to copy everything.")] = False,
    load: Annotated[CronOptions, pick("limit_rate idle")],
    tz: Zone = UTC,
    out: Out,
) -> None:
    """Restore a store from a backup, or copy one from a URL or an archive.

    The log ends at a complete record; consume queues, index, checkpoint and consumer offsets match
    it, so a broker can start on the result. Nothing is overwritten, and NEWSTORE appears only when
    it is complete. broker.conf is not part of a store: bring your own.

        rmqctl restore /backup/broker-a /data/store
        rmqctl restore /backup/broker-a /data/store --until 2026-11-28T03:00Z
        rmqctl restore copy.tar.zst/store /data/store
    """
    from rmqctl import vfs
    from rmqctl.files.named import refuse_link_of_others
    from rmqctl.files.remote.reader import without_secrets

    if vfs.is_elsewhere(backup) and not _is_backup(backup):
        if until is not None or offset is not None or point is not None or seed_slave:
            raise UsageError(f"{without_secrets(backup)}: is not a backup; --until, "
                             "--until-offset, --point and --seed-slave require a backup")
        _copy(backup, target, load, out)
        return
    if is_url(backup):
        from rmqctl.backup.remote_restore import restore
    else:
        from rmqctl.backup.restore import restore

    refuse_link_of_others(target)
    when = None if until is None else parse_time(until, tz=tz)
    with out.progress("restoring") as progress:
        done = restore(backup, target, until=when, offset=offset, point=point,
                       seed_slave=seed_slave, pace=load.slowed(out, progress.advance))
    following = f"rmqctl preflight {shlex.quote(target)}"
    verdict = Phrase("{store}: restored up to {end:,}, with the configuration of {point}",
                     store=target, end=done.end, point=done.point.id)
    slave = Phrase("In the slave's broker.conf, set brokerRole=SLAVE, an unused brokerId above 0, "
                   "and the master's brokerName and brokerClusterName. The master must still have "
                   "its log from {end:,} on, so start the slave soon.", end=done.end)
    document = {"backup": without_secrets(backup), "store": target, "point": done.point.id,
                "point_time": done.point.time, "log_end": done.end, "log_files": done.files,
                "offsets_lowered": done.lowered, "seed_slave": seed_slave,
                "notes": list(done.notes), "next": [following]}

    def show(page: Human) -> None:
        page.text(verdict, "bad" if done.faults else "good")
        if done.faults:
            page.text(Phrase("The backup itself is damaged: {faults}; see the warnings.",
                             faults=counted(done.faults, "fault")), "bad")
        page.blank()
        page.pairs({"log": f"ends at {done.end:,} ({counted(done.files, 'file')})",
                    "configuration": done.point.id, "offsets lowered": f"{done.lowered:,}"})
        if seed_slave:
            page.blank()
            page.text(slave)
        what_next(page, following)

    out.document(document, show)
    for note in done.notes:
        out.warn(note)
    out.conclude(verdict, "bad" if done.faults else "good")
    if done.faults:
        raise typer.Exit(int(ExitCode.FINDINGS))


def _is_backup(place: str) -> bool:
    """Return whether a remote place is a backup, not a store."""
    from rmqctl import vfs

    if vfs.archive_of(place) is not None:
        return False
    from rmqctl.backup.objects import Objects

    with Objects(place) as objects:
        return objects.is_backup()


def _copy(place: str, target: str, load: CronOptions, out: Output) -> None:
    """Copy a store that is at a URL or in an archive."""
    from rmqctl.backup.fetching import fetch
    from rmqctl.files.named import refuse_link_of_others
    from rmqctl.files.remote.reader import without_secrets

    refuse_link_of_others(target)
    with out.progress("copying") as progress:
        files, size, links = fetch(place, target, load.slowed(out, progress.advance))
    following = f"rmqctl doctor {shlex.quote(target)}"
    notes = [f"{counted(len(links), 'link')} not copied: {some_of(links, _MAX_NAMED)}"
             ] if links else []
    verdict = Phrase("{store}: copied {files}, {size}", store=target,
                     files=counted(files, "file"), size=size_text(size))
    document = {"backup": None, "source": without_secrets(place), "store": target, "point": None,
                "files": files, "bytes": size, "notes": notes, "next": [following]}

    def show(page: Human) -> None:
        page.text(verdict, "good")
        what_next(page, following)

    out.document(document, show)
    for note in notes:
        out.warn(note)
    out.conclude(verdict, "good")
