"""``rmqctl truncate``: truncate the log and everything derived from it."""

from __future__ import annotations

from datetime import UTC
from typing import TYPE_CHECKING, Annotated

import typer

from rmqctl.commands.app.option_groups import pick
from rmqctl.commands.shared.applying import ApplyOptions
from rmqctl.commands.shared.engine_options import EngineOptions
from rmqctl.commands.shared.options import ListedOut, StoreOptions, Zone
from rmqctl.output.units import count_text
from rmqctl.parse_values import parse_offset, show_times_in

if TYPE_CHECKING:
    from rmqctl.repair.scratch import Scratch

_MAX_TOPICS = 5


def command(
    *,
    to_phy: Annotated[int, typer.Option(
        "--to-phy", metavar="OFFSET", parser=parse_offset, show_default=False,
        help="New end of the log: the physical offset where a record, a blank or a damaged range "
             "starts.")],
    apply: ApplyOptions,
    engine: Annotated[EngineOptions, pick("version")],
    store: StoreOptions,
    tz: Zone = UTC,
    out: ListedOut,
) -> None:
    """Truncate the log at a physical offset, and everything derived from it.

    Shows the plan; --apply carries it out. Consume queues, index, timer and checkpoint become
    exactly those of a broker that never received the messages after OFFSET; RocksDB consume queues
    are rebuilt from the rest of the log. The removed messages are listed, with warnings for delayed
    messages, transactions and consumers beyond the new end. config/ is not changed. `rmqctl undo`
    restores everything.

        rmqctl truncate STORE --to-phy 1073741824
        rmqctl truncate STORE --to-phy 1073741824 --apply
    """
    from rmqctl.broker.versions import version_of
    from rmqctl.commands.shared import applying, plan_page
    from rmqctl.repair.truncate.truncate import WRITES, truncate

    show_times_in(tz)

    def propose(scratch: Scratch) -> plan_page.Proposal:
        with store.open() as opened:
            generation = (version_of(engine.version).generation if engine.version
                          else opened.generation)
            with out.progress("reading the part to "
                              "remove", max(opened.log.end - to_phy, 0)) as progress:
                cut = truncate(opened, to_phy, generation, progress.advance, scratch)
        by_topic = [f"{topic} {count_text(count)}"
                    for topic, count in list(cut.lost_by_topic.items())[:_MAX_TOPICS]]
        more = len(cut.lost_by_topic) - _MAX_TOPICS
        return plan_page.Proposal(
            cut.plan,
            {"truncate_to": to_phy, "log_end": cut.log_end, "messages_lost_total": cut.lost,
             "lost_by_topic": cut.lost_by_topic},
            {"log ends at": f"{to_phy} (now {cut.log_end})",
                "messages removed": count_text(cut.lost),
             **({"of": ", ".join(by_topic) + (f" and {more} more topics" if more > 0 else "")}
                if by_topic else {})}, impact=cut.impact, is_repair=True)

    applying.run(out, store.root, "truncate", propose, apply, folders=store.folders,
                 writes=WRITES, made_anew=True)
