"""``rmqctl du``: show the disk usage of a store."""

from __future__ import annotations

from datetime import UTC
from typing import TYPE_CHECKING, Any

from rmqctl.commands.shared.messages import ReadFaults
from rmqctl.commands.shared.options import Out, StoreQueues, View, Zone
from rmqctl.output.units import count_text, size_text, time_text
from rmqctl.phrases import Phrase

if TYPE_CHECKING:
    from datetime import tzinfo

    from rmqctl.output import Human

_MAX_SHOWN = 20


def command(
    *,
    view: View = "disk",
    tz: Zone = UTC,
    store: StoreQueues,
    out: Out,
) -> None:
    """Show the disk usage of structures, topics and files kept for undo.

    size is the length of the files, allocated the disk space that they use (less for sparse files).
    log_bytes of a topic is computed from its consume queue entries, which is faster than reading
    the log. Growth is log bytes per day, over the whole log and over its newest files (at least the
    last day). With -o csv, jsonl or tsv, only topics are listed.

        rmqctl du STORE
    """
    from rmqctl.broker.view import view_of
    from rmqctl.files.disk_usage import bytes_below, free_bytes
    from rmqctl.repair.executor.journal import history, put_aside, repair_folder
    from rmqctl.store.space import COLUMNS, space

    faults = ReadFaults(out)
    with store.open() as opened:
        with out.progress("reading consume queues", None) as progress:
            usage = space(view_of(opened, view), faults.report, progress.advance)
        kept = [{"id": entry.id, "time": entry.time, "command": entry.command,
                 "state": entry.state, "bytes": bytes_below(repair_folder(store.root, entry.id))}
                for entry in history(store.root)]
        aside = sum(bytes_below(f"{store.root}/.rmqctl/{entry.id}")
                    for entry in put_aside(store.root))
    document = {**usage.as_dict(), "repairs": kept, "put_aside_bytes": aside,
                "disk_free": free_bytes(store.root)}
    if out.is_data and not out.is_value:
        out.rows(usage.rows(), COLUMNS, empty="")
    else:
        out.document(document, lambda page: _show(page, document, usage.not_told, tz))
    for note in usage.notes:
        out.warn(note)
    faults.end()


def _show(page: Human, document: dict[str, Any], not_told: str, tz: tzinfo) -> None:
    # Structures come first: they add up to the size of the store.
    page.table(({"structure": row["kind"], "files": count_text(row["files"]),
                 "size": size_text(row["size"]), "on disk": size_text(row["allocated"])}
                for row in document["structures"]), ("structure", "files", "size", "on disk"))
    page.heading("Topics")
    # Topics need readable consume queues.
    topics = document["topics"]
    if topics is None:
        page.text(not_told)
    else:
        page.table(({"topic": row["topic"], "rows": count_text(row["rows"]),
                     "log": size_text(row["log_bytes"]), "share": f"{row['share']:.1%}",
                     "queues": size_text(row["queue_bytes"]),
                     "on disk": size_text(row["queue_disk_bytes"])} for row in topics[:_MAX_SHOWN]),
                   ("topic", "rows", "log", "share", "queues", "on disk"))
        if len(topics) > _MAX_SHOWN:
            page.text(f"and {count_text(len(topics) - _MAX_SHOWN)} more (-o json has all)")
        page.text("no consume queue entry points to "
                  f"{size_text(document['log_bytes_without_row'])} of the log (half messages, "
                  "rollbacks, blanks, damage)")
    # Growth is an estimate from the store times of the log.
    growth = document["growth"]
    page.heading("Growth")
    if growth["last_store_timestamp"] is None:
        page.text("growth unknown: no message can be read")
    else:
        page.pairs({
            "messages from": Phrase("{start} to {end}",
                                    start=time_text(growth["first_store_timestamp"], tz),
                                    end=time_text(growth["last_store_timestamp"], tz)),
            "log": size_text(growth["log_bytes"]),
            "per day": _per_day(growth["bytes_per_day"]),
            **({} if growth["recent_since"] is None else {
                f"since {time_text(growth['recent_since'], tz)}":
                _per_day(growth["recent_bytes_per_day"])})})
    # Show the space that could be freed, and the free space.
    page.heading("Kept files and free space")
    repairs = document["repairs"]
    page.pairs({
        "kept by repairs": f"{size_text(sum(row['bytes'] for row in repairs))} "
        f"({len(repairs)}; rmqctl undo STORE --prune 30d)" if repairs else Phrase("nothing"),
        "moved aside when the store was opened": size_text(document["put_aside_bytes"]),
        "free on the disk": Phrase("unknown") if document["disk_free"] is None
        else size_text(document["disk_free"])})


def _per_day(count: int | None) -> str:
    return "unknown: less than a minute" if count is None else size_text(count)
