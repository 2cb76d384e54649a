"""``rmqctl tiered expire``: takes expired files of a tier away as the broker would."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from rmqctl.commands.shared.applying import Apply, DryRun, Yes
from rmqctl.commands.shared.options import (
    NoProgress,
    OutputFormat,
    Quiet,
    Topic,
    Verbose,
    open_output,
)
from rmqctl.commands.shared.parsing import parse_duration, parse_time
from rmqctl.commands.shared.tiered_options import Broker, MetadataFile, TierRoot

if TYPE_CHECKING:
    from rmqctl.repair.plan import Plan
    from rmqctl.repair.scratch import Scratch
    from rmqctl.tiered.expire import Expiry

NAME = ("tiered", "expire")
EFFECT = "mutates"


def command(
    root: TierRoot,
    older_than: Annotated[
        int,
        typer.Option(
            "--older-than", metavar="AGE", parser=parse_duration, show_default=False,
            help="Messages so old expire: 72h, 7d, 1d12h (tieredStoreFileReservedTime; a broker's "
            "default is 72h). A topic that has a reserve time of its own keeps to that.",
        ),
    ],
    topic: Topic = None,
    now: Annotated[
        int | None,
        typer.Option(
            "--now", metavar="TIME", parser=parse_time, show_default=False,
            help="The time from which ages count back; now, unless given.",
        ),
    ] = None,
    metadata: MetadataFile = None,
    cluster: Annotated[
        str | None, typer.Option("--cluster", metavar="NAME", help="Only this cluster's broker.")
    ] = None,
    broker: Broker = None,
    apply: Apply = False,
    yes: Yes = False,
    dry_run: DryRun = False,
    output: OutputFormat = None,
    quiet: Quiet = 0,
    verbose: Verbose = 0,
    no_progress: NoProgress = False,
) -> None:
    """Take expired files of a tier away, by the rules of a broker's own expiry.

    Of each commit log whole segments go, from the oldest on, as long as all of their messages are
    too old; the last one, which a broker writes to, always stays. Consume queue files follow the
    commit log, index files go by their newest item. The files are moved aside, not deleted: their
    space is free once you remove the folder that is named at the end; until then
    `rmqctl undo DIR` brings them back. The broker must not run.

        rmqctl tiered expire STORE/tieredstore --older-than 72h

        rmqctl tiered expire STORE/tieredstore --older-than 7d --topic Orders --apply --yes
    """
    from rmqctl.commands.shared import applying
    from rmqctl.engine.clock import now_ms
    from rmqctl.errors import UsageError
    from rmqctl.tiered.expire import expire
    from rmqctl.tiered.recover.scope import check_root, open_tier, scope_of

    out = open_output(output, quiet, verbose, no_progress)
    with open_tier(root, metadata) as tier:
        place, scope = tier.name, scope_of(tier, cluster, broker)
        if topic is not None and next(tier.queues(topic, broker=scope.broker), None) is None:
            raise UsageError(f"{place}: there is no queue of topic {topic!r}")
    at = now_ms() if now is None else now
    made: list[Expiry] = []

    def make(_: Scratch) -> Plan:
        with open_tier(root, metadata) as tier:
            made[:] = [expire(tier, scope, at, older_than, topic)]
        return made[0].plan

    def extra(_: Plan) -> dict[str, Any]:
        found = made[0]
        return {"now": at, "bytes": found.bytes, "files": dict(found.files),
                "messages_expired": sum(found.messages.values()),
                "expired_by_topic": found.messages,
                "queues": [one.as_dict() for one in found.queues]}

    def summary(_: Plan) -> dict[str, Any]:
        from rmqctl.output.units import count_text, size_text

        found = made[0]
        return {"messages": count_text(sum(found.messages.values())),
                "queues": count_text(len(found.queues)),
                "files": f"{count_text(sum(found.files.values()))} ({size_text(found.bytes)})"}

    applying.run(out, place, "tiered expire", make, apply=apply, yes=yes, dry_run=dry_run,
                 extra=extra, summary=summary,
                 tier=applying.Tiered([scope.broker_root], check_root(metadata)))
