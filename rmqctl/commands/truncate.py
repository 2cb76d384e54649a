"""``rmqctl truncate``: cuts the log and everything derived from it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from rmqctl.commands.shared.applying import Apply, DryRun, Yes
from rmqctl.commands.shared.engine_options import BrokerVersion
from rmqctl.commands.shared.options import (
    CommitlogDirs,
    CommitlogFileSize,
    ConsumequeueFileSize,
    IndexMax,
    IndexSlots,
    NoProgress,
    OutputFormat,
    Quiet,
    Store,
    Verbose,
    open_output,
)
from rmqctl.commands.shared.parsing import parse_offset

if TYPE_CHECKING:
    from rmqctl.repair.plan import Plan
    from rmqctl.repair.scratch import Scratch

NAME = ("truncate",)
EFFECT = "mutates"

_TOPICS = 5


def command(
    store: Store,
    to_phy: Annotated[
        int,
        typer.Option(
            "--to-phy", metavar="OFFSET", parser=parse_offset, show_default=False,
            help="Where the log ends then: the physical offset at which a record begins (or a "
            "blank, or a damaged part).",
        ),
    ],
    apply: Apply = False,
    yes: Yes = False,
    dry_run: DryRun = False,
    broker_version: BrokerVersion = None,
    commitlog_dir: CommitlogDirs = None,
    commitlog_file_size: CommitlogFileSize = None,
    consumequeue_file_size: ConsumequeueFileSize = None,
    index_slots: IndexSlots = None,
    index_max: IndexMax = None,
    output: OutputFormat = None,
    quiet: Quiet = 0,
    verbose: Verbose = 0,
    no_progress: NoProgress = False,
) -> None:
    """Cut the log at a physical offset, and with it everything derived from it.

    Consumequeues, index, timer and checkpoint become those of a broker that never got the
    messages behind OFFSET, byte for byte. These are listed; delayed messages and transactions
    among them, and consumers that are ahead of what is left, are warned about. config/ is not
    changed. Nothing is deleted: what is cut is kept, and `rmqctl undo` brings it back.

        rmqctl truncate STORE --to-phy 1073741824

        rmqctl truncate STORE --to-phy 1073741824 --apply
    """
    from rmqctl.commands.shared import applying
    from rmqctl.engine.config.profile import profile_of
    from rmqctl.repair.truncate.truncate import Truncation, truncate
    from rmqctl.store import Sizes
    from rmqctl.store import Store as OpenedStore

    out = open_output(output, quiet, verbose, no_progress)
    sizes = Sizes(commitlog_file_size, consumequeue_file_size, index_slots, index_max)
    made: list[Truncation] = []

    def make(_: Scratch) -> Plan:
        with OpenedStore.open(store, commitlog_dir or (), sizes) as opened:
            generation = (profile_of(broker_version).generation if broker_version
                          else opened.generation)
            with out.progress("reading what is cut", max(opened.log.end - to_phy, 0)) as progress:
                found = truncate(opened, to_phy, generation, progress.advance)
        made[:] = [found]
        return found.plan

    def extra(_: Plan) -> dict[str, Any]:
        found = made[0]
        return {"truncate_to": to_phy, "log_end": found.log_end,
                "messages_lost_total": found.lost, "lost_by_topic": found.lost_by_topic}

    def summary(_: Plan) -> dict[str, Any]:
        from rmqctl.output.units import count_text

        found = made[0]
        by_topic = [f"{topic} {count_text(count)}"
                    for topic, count in list(found.lost_by_topic.items())[:_TOPICS]]
        more = len(found.lost_by_topic) - _TOPICS
        return {"log ends at": f"{to_phy} (now {found.log_end})",
                "messages cut": count_text(found.lost),
                **({"of": ", ".join(by_topic) + (f" and {more} more topics" if more > 0 else "")}
                   if by_topic else {})}

    applying.run(out, store, "truncate", make, apply=apply, yes=yes, dry_run=dry_run, extra=extra,
                 summary=summary)
