"""``rmqctl doctor``: problems of a store, affected consumers and next steps, on one screen."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC
from typing import TYPE_CHECKING, Annotated

import typer

from rmqctl.commands.app.option_groups import pick
from rmqctl.commands.shared.advising import complete, planned, show_steps
from rmqctl.commands.shared.consumers import show_losses
from rmqctl.commands.shared.disk_used import DiskUsed
from rmqctl.commands.shared.engine_options import EngineOptions
from rmqctl.commands.shared.options import (
    Jobs,
    ListedOut,
    StartedStore,
    Zone,
    complete_folders,
    worker_count,
)
from rmqctl.commands.shared.verifying import diagnosed_with_tier
from rmqctl.errors import ExitCode, StoreIOError, noting_refusals
from rmqctl.output.units import size_text
from rmqctl.parse_values import is_url, show_times_in
from rmqctl.phrases import Joined, Phrase, counted, some_of

if TYPE_CHECKING:
    from rmqctl.checks.doctor import Diagnosis
    from rmqctl.output import Human

_MAX_KINDS = 8
_MAX_TOPICS = 3


def command(
    *,
    engine: Annotated[EngineOptions, pick("version")],
    jobs: Jobs = 0,
    disk_used: DiskUsed = None,
    backup: Annotated[str | None, typer.Option(
        "--backup", metavar="DEST", autocompletion=complete_folders, show_default=False,
        help="A backup of the store (folder or URL), recommended as the first remedy.")] = None,
    store: StartedStore,
    tz: Zone = UTC,
    out: ListedOut,
) -> None:
    """Diagnose a store on one screen: the command to run first.

    Reads every byte like `rmqctl verify` and predicts a startup like `rmqctl preflight`. Shows a
    verdict, damage, lost messages, what a startup would lose, affected consumer groups, disk space,
    and the next commands, safest first. Changes nothing. Exit code 0 for a sound store, 1 if
    anything is wrong, 3 if everything that can be checked is sound but part of the store is in an
    unsupported format.

        rmqctl doctor STORE
        rmqctl doctor STORE -o json
    """
    from rmqctl.checks.doctor import diagnose
    from rmqctl.checks.preflight.around import around_in_use
    from rmqctl.files.remote.reader import without_secrets

    show_times_in(tz)
    with store.open() as opened:
        size = opened.log.size if opened.layout.reads("commitlog") else 0
        with out.progress("reading the log", size) as progress, noting_refusals() as refused:
            diagnosis = diagnose(opened, engine.version, worker_count(jobs), progress.advance,
                                 machine=around_in_use(opened, disk_used), phase=progress.phase)
        diagnosis = diagnosed_with_tier(out, opened, diagnosis)
        diagnosis = replace(diagnosis, outlook=planned(opened, diagnosis, store, out),
                            backup=None if backup is None else (
                            without_secrets(backup), *_newest(backup)))
    document = diagnosis.as_dict()
    complete(document)
    out.document(document, lambda page: _show(page, diagnosis, store.root))
    out.conclude(*_first_line(diagnosis, store.root))
    if refused:
        raise StoreIOError(f"{refused[0]}; the diagnosis was made without it")
    if not diagnosis.sound:
        raise typer.Exit(int(ExitCode.FINDINGS))
    diagnosis.require_judged()


def _newest(backup: str) -> tuple[int, int]:
    """Return (the time of the backup's newest restore point in epoch ms, the number of damaged
    ranges that the store had at this time).

    Raises: NotAStoreError if the backup has no restore point.
    """
    if is_url(backup):
        from rmqctl.backup.objects import require_points
    else:
        from rmqctl.backup.points import require_points

    newest = require_points(backup)[-1]
    return newest.time, len(newest.damaged)


def _first_line(diagnosis: Diagnosis, root: str) -> tuple[Phrase, str]:
    """Return (the verdict in one line, the style of this line)."""
    return (Phrase("{store}: {verdict}", store=root, verdict=diagnosis.verdict),
            "bad" if not diagnosis.sound else "good" if diagnosis.untold is None else "warn")


def _show(page: Human, diagnosis: Diagnosis, root: str) -> None:
    page.text(*_first_line(diagnosis, root))
    page.blank()
    page.pairs(_facts(diagnosis))
    show_losses(page, diagnosis.start.beside_messages)
    rows = diagnosis.damaged
    most = len(rows) if page.every else _MAX_KINDS
    if rows:
        page.heading("Damage (rmqctl explain FINDING for details)")
        page.table([{"severity": row.severity, "finding": row.category, "count": row.count,
                     "meaning": row.meaning} for row in rows[:most]],
                   styles={"severity": {"error": "bad", "warning": "warn"}.get})
        if len(rows) > most:
            page.text(Phrase("and {some} more kinds (--all lists them)", some=len(rows) - most))
    show_steps(page, diagnosis)


def _facts(diagnosis: Diagnosis) -> dict[str, str]:
    facts = {} if diagnosis.untold is not None else _of_messages(diagnosis)
    misled = [setting.detail for setting in diagnosis.start.misled if setting.effect != "refuses"]
    if misled:
        facts["broker.conf"] = Joined("; ", misled)
    if diagnosis.disk.total is not None and diagnosis.disk.free is not None:
        facts["disk"] = Phrase("{free} free of {total}", free=size_text(diagnosis.disk.free),
                               total=size_text(diagnosis.disk.total))
    facts["in use"] = Phrase("no") if not diagnosis.lock.held else (
        Phrase("by process {pid}", pid=diagnosis.lock.pid) if diagnosis.lock.pid else
        Phrase("by another process"))
    for name, reason in diagnosis.not_judged.items():
        if diagnosis.untold != reason:  # the verdict says it
            facts[Phrase("not checked: {name}", name=name)] = reason
    return facts


def _of_messages(diagnosis: Diagnosis) -> dict[str, str]:
    from rmqctl.checks.losses import GROUPS
    from rmqctl.checks.preflight.disk import expiry

    start, covered, lost = diagnosis.start, diagnosis.findings.coverage, diagnosis.losses
    # Fillers and messages that were kept damaged are readable, but were not sent like this.
    facts: dict[str, str] = {"messages": Phrase(
        "{some:,} intact, in {size} of log", some=covered.messages - (lost.replaced or 0),
        size=size_text(covered.bytes_total))}
    if covered.bytes_damaged:
        facts["damaged"] = Phrase("{size} of the log", size=size_text(covered.bytes_damaged))
    if lost.replaced_in_words is not None:
        facts["replaced"] = lost.replaced_in_words
    if lost.in_log:
        facts["undecided"] = Phrase(
            "{count:,} record: a message, or part of a damaged message's body",
            "{count:,} records: messages, or part of a damaged message's body",
            count=lost.in_log)
    # Losses come in order of time: by earlier repairs, already, and by the next start.
    if diagnosis.repaired is not None:
        facts["since repairs"] = diagnosis.repaired
    if lost.unread or lost.already:
        total = _counted(lost.already, lost.lost_by_topic)
        facts["already lost"] = lost.unjudged if lost.unread else total if (
            lost.known_lost or lost.in_tier.messages) else Phrase(
            "{what}, those named above", what=total)
    elif any(loss.already for loss in lost.beside):
        facts["already lost"] = Phrase("see the table below")
    elif lost.in_log:
        facts["already lost"] = Phrase("unknown: depends on the undecided records")
    else:
        facts["already lost"] = Phrase("nothing else") if lost.all_replaced else Phrase("nothing")
    if start.log.found_in:
        facts["log"] = Phrase(
            "in {folder}: without storePathCommitLog={folder}, a broker lacks a part of the log",
            folder=start.log.found_in) if "," in start.log.found_in else Phrase(
            "in {folder}: without storePathCommitLog={folder}, a broker finds no log and deletes "
            "all consume queues", folder=start.log.found_in)
    facts |= start.metadata.facts
    if diagnosis.earlier:
        facts["not delivered"] = Joined("; ", [diagnosis.not_delivered, *(
            [facts["not delivered"]] if "not delivered" in facts else [])])
    if start.consumers.unclear:
        facts["unknown"] = Joined("; ", start.consumers.notes)
    loses = Phrase("loses {what}", what=_counted(lost.would_lose, lost.would_lose_by_topic))
    values = {"loses": loses if lost.would_lose else start.loses, "version": start.broker_version}
    # A broker that refuses to start loses nothing, so only the reason is shown.
    why = [setting.detail for setting in start.misled
           if setting.effect == "refuses"] or start.broker.refusals
    facts["startup"] = (
        Phrase("fails ({version}): {why}", version=start.broker_version, why=Joined("; ", why))
        if not start.starts else
        Phrase("{loses} ({version}, as far as can be determined)", **values)
        if diagnosis.not_judged else Phrase("{loses} ({version})", **values))
    old = expiry(start.broker.disk) if start.starts else None
    if old is not None:
        facts["expires"] = old
    if start.impact is not None:
        facts["affected"] = start.impact.concerned
    if start.consumers.groups is not None:
        affects = start.consumers.groups.affects
        facts["consumers"] = Phrase(
            "{what}, but group settings are affected (see below)", what=affects
            ) if any(loss.what == GROUPS for loss in lost.beside) else affects
    return facts


def _counted(count: int, topics: Mapping[str, int]) -> Phrase:
    """Return a message count and the topics, such as ``14 messages (orders 10, audit 4)``."""
    if not count:
        return Phrase("nothing")
    ordered = sorted(topics.items(), key=lambda item: (-item[1], item[0]))
    named = some_of([f"{topic} {number:,}" for topic, number in ordered], _MAX_TOPICS)
    messages = counted(count, "message")
    return Phrase("{what} ({names})", what=messages, names=named) if named else messages
