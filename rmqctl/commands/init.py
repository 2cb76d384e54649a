"""``rmqctl init``: an empty store."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from rmqctl.commands.shared.engine_options import (
    AppendCrc,
    BatchConsumequeueFileSize,
    BrokerVersion,
    ConsumequeueExt,
    ConsumequeueExtFileSize,
    DelayLevels,
    DryRun,
    Lmq,
    MultiDispatch,
    new_settings,
)
from rmqctl.commands.shared.options import (
    NoProgress,
    OutputFormat,
    Quiet,
    Store,
    Verbose,
    complete_folders,
    open_output,
)
from rmqctl.commands.shared.parsing import parse_size

if TYPE_CHECKING:
    from rmqctl.output import Human

NAME = ("init",)
EFFECT = "mutates"


def command(
    store: Store,
    commitlog_file_size: Annotated[
        int | None,
        typer.Option(
            "--commitlog-file-size", metavar="SIZE", parser=parse_size,
            help="Size of a commitlog file, 1KiB or more  [default: 1GiB]",
        ),
    ] = None,
    consumequeue_file_size: Annotated[
        int | None,
        typer.Option(
            "--consumequeue-file-size", metavar="SIZE", parser=parse_size,
            help="Size of a consumequeue file, rounded up to whole units of 20 bytes  "
            "[default: 6000000]",
        ),
    ] = None,
    index_slots: Annotated[
        int | None,
        typer.Option(
            "--index-slots", metavar="N", help="Hash slots of an index file  [default: 5000000]"
        ),
    ] = None,
    index_max: Annotated[
        int | None,
        typer.Option(
            "--index-max", metavar="N",
            help="Entries an index file has room for  [default: 20000000]",
        ),
    ] = None,
    commitlog_dirs: Annotated[
        list[str] | None,
        typer.Option(
            "--commitlog-dir", metavar="DIR", autocompletion=complete_folders,
            help="A folder of a multi-path commitlog, relative to STORE or absolute; repeatable.",
        ),
    ] = None,
    dry_run: DryRun = False,
    broker_version: BrokerVersion = None,
    batch_consumequeue_file_size: BatchConsumequeueFileSize = None,
    consumequeue_ext: ConsumequeueExt = None,
    consumequeue_ext_file_size: ConsumequeueExtFileSize = None,
    lmq: Lmq = None,
    multi_dispatch: MultiDispatch = None,
    append_crc: AppendCrc = None,
    delay_levels: DelayLevels = None,
    output: OutputFormat = None,
    quiet: Quiet = 0,
    verbose: Verbose = 0,
    no_progress: NoProgress = False,
) -> None:
    """Make an empty store, as a broker leaves one it has written nothing to.

    STORE must be an empty folder or not exist. The sizes and the version are remembered in
    STORE/.rmqctl/store.json, where the other commands find them; a broker that is to run on the
    store needs the same sizes in its own configuration. An init that was interrupted is completed
    by the next one.

        rmqctl init STORE --commitlog-file-size 1MiB --index-slots 1000 --index-max 4000
    """
    from rmqctl.engine.config.create import create_store, plan_store

    out = open_output(output, quiet, verbose, no_progress)
    settings = new_settings(
        version=broker_version,
        commitlog_file_size=commitlog_file_size,
        consumequeue_file_size=consumequeue_file_size,
        batch_consumequeue_file_size=batch_consumequeue_file_size,
        consumequeue_ext_file_size=consumequeue_ext_file_size,
        index_slots=index_slots,
        index_max=index_max,
        consumequeue_ext=consumequeue_ext,
        lmq=lmq,
        multi_dispatch=multi_dispatch,
        append_properties_crc=append_crc,
        message_delay_level=delay_levels,
    )
    made = (plan_store if dry_run else create_store)(store, settings, commitlog_dirs or ())
    for note in made.notes:
        out.note(note)
    if dry_run:
        out.note("dry run: nothing was made")
    document = {**made.as_dict(), "dry_run": dry_run}
    out.document(document, lambda page: _show(page, document))


def _show(page: Human, made: dict[str, Any]) -> None:
    from rmqctl.output.units import count_text, size_text

    sizes = {
        "commitlog file": made["commitlog_file_size"],
        "consumequeue file": made["consumequeue_file_size"],
    }
    options = [name.replace("_", " ") for name in (
        "consumequeue_ext", "lmq", "multi_dispatch", "append_properties_crc") if made[name]
    ]  # fmt: skip
    page.pairs({
        "store": made["store"],
        "for version": made["version"],
        "commitlog": ", ".join(made["commitlog_dirs"]),
        **{name: f"{size_text(size)} ({size})" for name, size in sizes.items()},
        "index file": f"{count_text(made['index_slots'])} slots, "
        f"{count_text(made['index_max'])} entries",
        **({"switched on": ", ".join(options)} if options else {}),
    })
