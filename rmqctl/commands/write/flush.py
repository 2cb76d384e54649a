"""``rmqctl flush``: flush every file of a store to disk, then update the checkpoint."""

from __future__ import annotations

from datetime import UTC
from typing import TYPE_CHECKING, Any

from rmqctl.commands.shared.engine_options import settings_from
from rmqctl.commands.shared.options import DryRun, Out, StoreOptions, Zone
from rmqctl.output.units import count_text, time_or_zero
from rmqctl.parse_values import show_times_in

if TYPE_CHECKING:
    from rmqctl.output import Human


def command(
    *,
    dry_run: DryRun = False,
    store: StoreOptions,
    tz: Zone = UTC,
    out: Out,
) -> None:
    """Flush all files of a store to disk and update the checkpoint.

    Flushes every file of commitlog, consume queues and index (clean files cost nothing). The
    checkpoint's times then advance to the newest message that is on disk with its consume queue
    entry, so a broker recovers faster after a crash. After an unclean shutdown they stay unchanged.

        rmqctl flush STORE -o json
    """
    from rmqctl.engine.flushing import flush_store

    show_times_in(tz)
    settings = settings_from(store.root, commitlog_dirs=store.folders,
                             **store.over_conf({}))
    with out.progress("flushing", unit="files") as progress:
        done = flush_store(store.root, settings, store.folders, dry_run=dry_run,
                           progress=progress.advance)
    for note in done.notes:
        out.note(note)
    if dry_run:
        out.note("dry run: nothing was flushed")
    document = done.as_dict()
    out.document(document, lambda page: _show(page, document))


def _show(page: Human, done: dict[str, Any]) -> None:
    files, checkpoint = done["files"], done["checkpoint"]
    moved = "moves" if done["dry_run"] else "moved"
    times = {name.split("_")[0]: value for name, value in checkpoint.items()
             if name.endswith("_timestamp")}
    page.pairs({
        "files": ", ".join(f"{name} {count_text(count)}" for name, count in files.items())
        or "none",
        **({"log ends at": done["flushed_to"]} if done["flushed_to"] is not None else {}),
        "checkpoint": f"{moved} forward" if done["checkpoint_moved"] else "unchanged",
        **{f"  {name}": time_or_zero(value) for name, value in times.items()},
    })
