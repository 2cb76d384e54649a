"""``rmqctl flush``: every dirty file of a store to disk, then the checkpoint."""

from __future__ import annotations

from rmqctl.commands.engine_options import DryRun, settings_from
from rmqctl.commands.options import (
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

NAME = ("flush",)
EFFECT = "mutates"


def command(
    store: Store,
    dry_run: DryRun = False,
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
    """Force a store to disk: commitlog, consumequeues, index, and then the checkpoint.

    What is dirty only the system knows, so every file is forced; a clean one costs nothing. The
    checkpoint's times then move forward to the newest message that is on disk with its row, and
    a broker that crashes later has less to recover. After an unclean end they stay.

        rmqctl flush STORE -o json
    """
    from rmqctl.engine.flushing import flush_store

    out = open_output(output, quiet, verbose, no_progress)
    settings = settings_from(
        store, commitlog_file_size=commitlog_file_size,
        consumequeue_file_size=consumequeue_file_size, index_slots=index_slots,
        index_max=index_max, commitlog_dirs=commitlog_dir,
    )
    with out.progress("forcing to disk", unit="files") as progress:
        done = flush_store(store, settings, commitlog_dir or (), dry_run=dry_run,
                           progress=progress.advance)  # fmt: skip
    for said in done.notes:
        out.note(said)
    out.document(done.as_dict())
