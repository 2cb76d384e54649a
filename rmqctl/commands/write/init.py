"""``rmqctl init``: create an empty store."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from rmqctl.commands.app.option_groups import pick
from rmqctl.commands.shared.engine_options import NEW_STORE, EngineOptions, new_settings
from rmqctl.commands.shared.options import DryRun, Out, StoreOptions, complete_folders
from rmqctl.output.units import count_text, size_text
from rmqctl.parse_values import parse_size

if TYPE_CHECKING:
    from rmqctl.output import Human


def command(
    *,
    store: Annotated[StoreOptions, pick("broker_conf")],
    commitlog_file_size: Annotated[int | None, typer.Option(
        "--commitlog-file-size", metavar="SIZE", parser=parse_size,
        help="Size of a commitlog file, 1KiB or more  [default: 1GiB]")] = None,
    consumequeue_file_size: Annotated[int | None, typer.Option(
        "--consumequeue-file-size", metavar="SIZE", parser=parse_size,
        help="Size of a consume queue file, rounded up to whole entries of 20 bytes  [default: "
             "6000000]")] = None,
    index_slots: Annotated[int | None, typer.Option(
        "--index-slots", metavar="N",
        help="Hash slots of an index file  [default: 5000000]")] = None,
    index_max: Annotated[int | None, typer.Option(
        "--index-max", metavar="N",
        help="Maximum number of entries of an index file  [default: 20000000]")] = None,
    commitlog_dirs: Annotated[list[str] | None, typer.Option(
        "--commitlog-dir", metavar="DIR", autocompletion=complete_folders,
        help="Folder of a multi-path commitlog, relative to STORE or absolute; "
             "repeatable.")] = None,
    dry_run: DryRun = False,
    engine: Annotated[EngineOptions, pick(NEW_STORE)],
    out: Out,
) -> None:
    """Create an empty store, as a broker leaves it before the first message.

    STORE must be an empty folder or not exist. Sizes and version are stored in
    STORE/.rmqctl/store.json, where other commands find them; a broker on this store needs the same
    sizes in its configuration. The next init completes an interrupted one.

        rmqctl init STORE --commitlog-file-size 1MiB --index-slots 1000 --index-max 4000
    """
    from rmqctl.engine.config.create import create_store, plan_store

    settings = new_settings(**store.over_conf({
        "commitlog_file_size": commitlog_file_size,
        "consumequeue_file_size": consumequeue_file_size, "index_slots": index_slots,
        "index_max": index_max, **engine.given(NEW_STORE)}))
    created = (plan_store if dry_run else create_store)(store.root, settings, commitlog_dirs or ())
    for note in created.notes:
        out.note(note)
    if dry_run:
        out.note("dry run: nothing was created")
    document = {**created.as_dict(), "dry_run": dry_run}
    out.document(document, lambda page: _show(page, document))


def _show(page: Human, created: dict[str, Any]) -> None:
    sizes = {
        "commitlog file": created["commitlog_file_size"],
        "consume queue file": created["consumequeue_file_size"],
    }
    options = [name.replace("_", " ") for name in (
        "consumequeue_ext", "lmq", "multi_dispatch", "append_properties_crc") if created[name]
    ]
    page.pairs({
        "store": created["store"],
        "for version": created["version"],
        "commitlog": ", ".join(created["commitlog_dirs"]),
        **{name: f"{size_text(size)} ({size})" for name, size in sizes.items()},
        "index file": f"{count_text(created['index_slots'])} slots, "
        f"{count_text(created['index_max'])} entries",
        **({"switched on": ", ".join(options)} if options else {}),
    })
