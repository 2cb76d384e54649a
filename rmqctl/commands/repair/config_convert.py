"""``rmqctl config convert``: convert topics, groups and offsets to another form."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Literal

import typer

from rmqctl.commands.shared.applying import ApplyOptions
from rmqctl.commands.shared.options import ListedOut, StoreFolders

if TYPE_CHECKING:
    from rmqctl.repair.scratch import Scratch


def command(
    *,
    to: Annotated[Literal["json", "rocksdb-v1", "rocksdb-v2"], typer.Option(
        "--to", show_default=False, help="json: files; rocksdb-v1: three databases "
                                         "(defaultRocksDB); rocksdb-v2: one "
                                         "(configManagerVersion=v2).")],
    apply: ApplyOptions,
    store: StoreFolders,
    out: ListedOut,
) -> None:
    """Convert topics, groups and offsets between JSON files and RocksDB.

    Shows the plan; --apply carries it out. Converts everything that a broker reads now, data
    versions and consumer offsets included (a broker's own migration to RocksDB drops the offsets).
    Files that would take precedence over the result are moved aside; `rmqctl undo` restores them.

        rmqctl config convert STORE --to json
        rmqctl config convert STORE --to rocksdb-v1 --apply
    """
    from rmqctl.commands.shared import applying, plan_page
    from rmqctl.repair.config.convert import COMMAND, plan_convert

    def propose(scratch: Scratch) -> plan_page.Proposal:
        with store.open() as opened:
            return plan_page.Proposal(plan_convert(opened, to, scratch))

    applying.run(out, store.root, COMMAND, propose, apply, writes=())
