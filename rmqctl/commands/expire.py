"""``rmqctl expire``: takes expired files away as the broker's cleaner would."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from rmqctl.commands.shared.applying import Apply, DryRun, Yes
from rmqctl.commands.shared.options import (
    CommitlogDirs,
    CommitlogFileSize,
    ConsumequeueFileSize,
    NoProgress,
    OutputFormat,
    Quiet,
    Store,
    Verbose,
    open_output,
)
from rmqctl.commands.shared.parsing import parse_duration, parse_size
from rmqctl.errors import UsageError

if TYPE_CHECKING:
    from rmqctl.repair.plan import Plan
    from rmqctl.repair.scratch import Scratch

NAME = ("expire",)
EFFECT = "mutates"


def command(
    store: Store,
    older_than: Annotated[
        int | None,
        typer.Option(
            "--older-than", metavar="AGE", parser=parse_duration,
            help="Log files last written so long ago expire: 72h, 7d, 1d12h (fileReservedTime; a "
            "broker's default is 72h).",
        ),
    ] = None,
    keep_bytes: Annotated[
        int | None,
        typer.Option(
            "--keep-bytes", metavar="SIZE", parser=parse_size,
            help="Further ones expire, whatever their age, until no more than SIZE of log is left.",
        ),
    ] = None,
    apply: Apply = False,
    yes: Yes = False,
    dry_run: DryRun = False,
    commitlog_dir: CommitlogDirs = None,
    commitlog_file_size: CommitlogFileSize = None,
    consumequeue_file_size: ConsumequeueFileSize = None,
    output: OutputFormat = None,
    quiet: Quiet = 0,
    verbose: Verbose = 0,
    no_progress: NoProgress = False,
) -> None:
    """Take expired files away, by the rules of a broker's cleaner.

    Log files go from the oldest on, up to the first that is to be kept; the last one always
    stays. Then go the files of consumequeues, timer log and index that lead to nothing else. A
    log file's age is that of its last modification. With both options a file expires by either.
    Delayed messages, half messages and messages of consumer groups that expire unread are warned
    about. The files are moved aside, not deleted: their space is free once you remove the folder
    that is named at the end; until then `rmqctl undo` brings them back.

        rmqctl expire STORE --older-than 72h

        rmqctl expire STORE --older-than 7d --keep-bytes 100GiB --apply --yes
    """
    from rmqctl.commands.shared import applying
    from rmqctl.engine.clock import now_ms
    from rmqctl.repair.expire import Expiry, Limits, expire
    from rmqctl.store import Sizes
    from rmqctl.store import Store as OpenedStore

    if older_than is None and keep_bytes is None:
        raise UsageError("say what expires: --older-than 72h, --keep-bytes 100GiB, or both")
    out = open_output(output, quiet, verbose, no_progress)
    now = now_ms()
    made: list[Expiry] = []

    def make(_: Scratch) -> Plan:
        sizes = Sizes(commitlog_file_size, consumequeue_file_size)
        with OpenedStore.open(store, commitlog_dir or (), sizes) as opened:
            found = expire(opened, now, Limits(older_than, keep_bytes))
        made[:] = [found]
        return found.plan

    def extra(_: Plan) -> dict[str, Any]:
        found = made[0]
        return {"min_phy_offset": found.min_after, "min_phy_offset_before": found.min_before,
                "bytes": found.bytes, "messages_expired": sum(found.rows.values()),
                "expired_by_topic": found.rows}

    def summary(plan: Plan) -> dict[str, Any]:
        from rmqctl.output.units import count_text, size_text

        found = made[0]
        return {"log begins at": f"{found.min_after} (now {found.min_before})",
                "messages": count_text(sum(found.rows.values())),
                "files": f"{count_text(len(plan.actions))} ({size_text(found.bytes)})"}

    applying.run(out, store, "expire", make, apply=apply, yes=yes, dry_run=dry_run, extra=extra,
                 summary=summary)
