"""``rmqctl convert``: consumequeues in another form, or a new store with a plain log."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from rmqctl.commands.app.option_groups import pick
from rmqctl.commands.shared.applying import ApplyOptions
from rmqctl.commands.shared.deferred_signals import DeferredSignals
from rmqctl.commands.shared.engine_options import EngineOptions
from rmqctl.commands.shared.options import Jobs, ListedOut, StoreOptions, worker_count
from rmqctl.errors import ExitCode, UsageError, require
from rmqctl.output.units import count_text, size_text

if TYPE_CHECKING:
    from rmqctl.output import Human, Output
    from rmqctl.repair.scratch import Scratch

_ENGINE = "version lmq multi_dispatch message_delay_level"


def command(
    *,
    commitlog: Annotated[Literal["plain"] | None, typer.Option(
        "--commitlog", show_default=False,
        help="plain: the messages of DLedger's entries as a log for a broker without DLedger; "
        "with --out.")] = None,
    consumequeue: Annotated[Literal["file", "rocksdb"] | None, typer.Option(
        "--consumequeue", show_default=False,
        help="The form of the consumequeues: file for storeType=default, rocksdb for "
        "storeType=defaultRocksDB (5.2.0 and later; needs the extra [rocksdb]).")] = None,
    target: Annotated[str | None, typer.Option(
        "--out", metavar="NEWSTORE", show_default=False,
        help="Make a new store here, a folder that is empty or not there, and leave STORE as it "
        "is.")] = None,
    apply: ApplyOptions,
    jobs: Jobs = 0,
    engine: Annotated[EngineOptions, pick(_ENGINE)],
    store: StoreOptions,
    out: ListedOut,
) -> None:
    """Give a store another layout: consumequeues in files or in RocksDB, a log without DLedger.

    Consumequeues are made anew from the log, so they are those that a broker of that form would
    have; a queue whose messages have all expired goes on where it stood. Without --out this shows
    the plan for STORE itself and --apply carries it out; the old ones are kept as a whole, and
    `rmqctl undo` brings them back. With --out the store is copied, and the copy gets them. A
    damaged log is refused: `rmqctl recover` makes it whole first. For config/ see `rmqctl config
    convert`.

    A plain log is made of DLedger's in a new store: each intact message is put as it was, with its
    queue offset, so positions of consumer groups hold; its physical offset is another one, and
    .rmqctl/physical-offsets.csv there says for each message which it was. A filler keeps the place
    of a damaged one, with exit code 1.

        rmqctl convert STORE --consumequeue rocksdb

        rmqctl convert STORE --consumequeue file --apply

        rmqctl convert STORE --commitlog plain --out NEWSTORE
    """
    given = store.over_conf(engine.given(_ENGINE))
    # A log without DLedger gets other physical offsets, so it is always a new store.
    if commitlog is not None:
        if target is None:
            raise UsageError("--commitlog plain makes a new store: --out NEWSTORE says where")
        if consumequeue == "rocksdb":
            raise UsageError("one after the other: --commitlog plain --out NEWSTORE, then "
                             "`rmqctl convert NEWSTORE --consumequeue rocksdb`")
        _without_dledger(out, store, target, given)
        return
    if consumequeue is None:
        raise UsageError("say what is wanted: --consumequeue file or rocksdb, --commitlog plain")
    from rmqctl.commands.shared import applying, plan_page
    from rmqctl.repair.convert.queues import WRITES, ConvertOptions, plan_convert

    require("rocksdict")
    options = ConvertOptions(consumequeue, worker_count(jobs), store.folders, store.sizes, given)
    root = store.root
    # With --out the copy is converted, and the original is only read.
    if target is not None:
        from rmqctl.repair.convert.new_store import copy_store

        with store.open() as opened, DeferredSignals() as signals, out.progress(
                "copying", opened.log.size) as progress:
            opened.layout.require_writable(root, WRITES)
            copy_store(opened, target, progress.advance, signals.check)
        root, apply = target, replace(apply, apply=True, yes=True)

    # From here on, conversion is a plan like any other repair.
    def propose(scratch: Scratch) -> plan_page.Proposal:
        return plan_page.Proposal(plan_convert(root, scratch, options, out.watch))

    applying.run(out, root, "convert", propose, apply, writes=WRITES)


def _without_dledger(out: Output, store: StoreOptions, target: str, given: dict[str, Any]) -> None:
    from rmqctl.repair.convert.new_store import WithPlainLog

    with store.open() as opened, DeferredSignals() as signals:
        conversion = WithPlainLog(opened, target, given)
        with out.progress("converting", conversion.size) as progress:
            done = conversion.run(progress.advance, signals.check)
    document = {**done.as_dict(), "next": [f"rmqctl verify {shlex.quote(target)}"]}
    out.document(document, lambda page: _show(page, document))
    for note in conversion.notes:
        out.note(note)
    for text, count in done.refused.most_common():
        out.warn(f"{count_text(count)} refused: {text}")
    if not done.is_whole:
        raise typer.Exit(int(ExitCode.FINDINGS))


def _show(page: Human, document: Mapping[str, Any]) -> None:
    places = document["left_out_at"]
    page.pairs({
        "new store": document["store"],
        "messages": count_text(document["messages"]),
        "log copied": size_text(document["bytes_copied"]),
        "log written": size_text(document["bytes_written"]),
        **({"left out": f"{count_text(document['left_out'])} damaged, at "
            f"{', '.join(map(str, places))}; fillers for them: {count_text(document['fillers'])}"}
           if places else {}),
        **({"not renamed": f"{count_text(document['unmapped'])} commits or rollbacks of half "
            "messages that are not in the log"} if document["unmapped"] else {}),
        "physical offsets": document["mapping"],
    })
    page.heading("What next")
    page.text(document["next"][0])
