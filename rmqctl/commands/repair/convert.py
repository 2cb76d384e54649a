"""``rmqctl convert``: consumequeues from files into RocksDB, and back."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Literal

import typer

from rmqctl.commands.app.option_groups import pick
from rmqctl.commands.shared.applying import ApplyOptions
from rmqctl.commands.shared.engine_options import EngineOptions
from rmqctl.commands.shared.options import Jobs, Out, StoreOptions, worker_count
from rmqctl.errors import require

if TYPE_CHECKING:
    from rmqctl.repair.scratch import Scratch

_ENGINE = "version lmq multi_dispatch message_delay_level"


def command(
    *,
    consumequeue: Annotated[Literal["file", "rocksdb"], typer.Option(
        "--consumequeue", show_default=False,
        help="The form of the consumequeues: file for storeType=default, rocksdb for "
        "storeType=defaultRocksDB (5.2.0 and later; needs the extra [rocksdb]).")],
    apply: ApplyOptions,
    jobs: Jobs = 0,
    engine: Annotated[EngineOptions, pick(_ENGINE)],
    store: StoreOptions,
    out: Out,
) -> None:
    """Give a store consumequeues of the other form, in files or in RocksDB.

    They are made anew from the log, which stays as it is, so they are those that a broker of that
    form would have; a queue whose messages have all expired goes on where it stood. The old ones
    are kept as a whole, and `rmqctl undo` brings them back. A damaged log is refused: `rmqctl
    recover` makes it whole first. The configuration is not converted.

        rmqctl convert STORE --consumequeue rocksdb

        rmqctl convert STORE --consumequeue file --apply
    """
    from rmqctl.commands.shared import applying
    from rmqctl.repair.convert import ConvertOptions, plan_convert

    require("rocksdict")
    options = ConvertOptions(consumequeue, worker_count(jobs), store.folders, store.sizes,
                             store.over_conf(engine.given(_ENGINE)))

    def propose(scratch: Scratch) -> applying.Proposal:
        return applying.Proposal(plan_convert(store.root, scratch, options, out.watch))

    applying.run(out, store.root, "convert", propose, apply, made_anew=True)
