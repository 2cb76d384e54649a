"""The option ``--track`` of queries. It shows the groups that consumed a message, and copies of the
message in retry and dead letter topics.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import tzinfo
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rmqctl.commands.shared.messages import ReadFaults, show_records
from rmqctl.output.units import time_text

if TYPE_CHECKING:
    from rmqctl.formats.local.message import Record
    from rmqctl.output import Human, Output
    from rmqctl.store import Store as OpenedStore
    from rmqctl.store.groups.track import Tracked
    from rmqctl.store.projection import Projection

Track = Annotated[bool, typer.Option(
    "--track", help="Also show the groups that consumed each message (as messageTrack), its "
                    "retries and dead letters.")]

_FIELDS = ("track", "chain")
_MAX_SHOWN = 20
_UNTOLD = ("a store does not show whether a tag filter skipped a message, or whether consumers "
           "pull, broadcast or are online")


def show_found(out: Output, store: OpenedStore, records: Sequence[Record], projection: Projection,
               tz: tzinfo, faults: ReadFaults, *, track: bool) -> None:
    """Show the messages that a query found. Raises: StoreIOError.

    For a DLedger log, the entry headers of the messages are added; with ``track``, also the groups
    that consumed each message. In formats for programs, these are fields of the messages; in
    formats for people, they are tables below the messages.
    """
    # Without tracking, only the messages and their DLedger entries are shown.
    entries = _entries(store, records)
    if not track:
        if out.is_data and entries:
            rows_with(out, records, projection, faults, entries)
        else:
            show_records(out, records, projection, tz, faults)
            _show_entries(out, entries)
        return
    from rmqctl.store.groups.track import Tracker
    from rmqctl.store.groups.unread import StoredOffsets

    # Judge each message by the consumer offsets of its groups.
    groups = StoredOffsets.of(store)
    for note in groups.notes:
        out.warn(note)
    tracker = Tracker(store, groups, faults.report)
    tracked = [tracker.track(record) for record in records]
    # Programs get everything as fields of the message; people get tables.
    if out.is_data:
        more = [tracks.as_fields() for tracks in tracked]
        if entries:
            more = [{**fields, **entry} for fields, entry in zip(more, entries, strict=True)]
        rows_with(out, records, projection, faults, more or [dict.fromkeys(_FIELDS)])
    else:
        show_records(out, records, projection, tz, faults)
        _show_entries(out, entries)
        if records:
            _show(out.human(), records, tracked, tz)
    # State once what limits the judgement, for all messages.
    for note in dict.fromkeys(note for tracks in tracked for note in tracks.notes):
        out.note(note)
    if records:
        out.note(_UNTOLD)
    faults.has_findings |= not groups.positions_known


def rows_with(out: Output, records: Sequence[Record], projection: Projection, faults: ReadFaults,
              more: Sequence[Mapping[str, Any]]) -> None:
    """Print the messages as rows. ``more``: for each message, the additional fields of its row; all
    messages have the same additional fields.
    """
    from rmqctl.store.pages import RecordPage

    page = next(iter(faults.judged([RecordPage(records)])), None) if records else None
    rows = [] if page is None else list(projection.rows(page))
    out.rows(({**row, **fields} for row, fields in zip(rows, more, strict=False)),
             [*projection.names, *more[0]], empty="")


def _entries(store: OpenedStore, records: Sequence[Record]) -> list[dict[str, Any]]:
    """Return a dictionary for each message with the field ``entry``: the header of its DLedger
    entry. The header is None if it is damaged or if the message is in a plain log file. Return an
    empty list if the log has no DLedger files.
    """
    if not any(file.head for file in store.log.files):
        return []
    from rmqctl.store.log.dledger import entry_of

    heads = [entry_of(store.log, record.physical_offset) for record in records]
    return [{"entry": None if head is None else head._asdict()} for head in heads]


def _show_entries(out: Output, entries: Sequence[Mapping[str, Any]]) -> None:
    rows = [entry["entry"] for entry in entries if entry["entry"] is not None]
    if rows and not out.is_data:
        page = out.human()
        page.blank()
        page.heading("DLedger entries")
        page.table(rows)


def _show(page: Human, records: Sequence[Record], tracked: Sequence[Tracked], tz: tzinfo) -> None:
    # Separate groups that never read the topic: they would fill the table.
    several = ["message"] if len(records) > 1 else []
    rows: list[dict[str, Any]] = []
    absent: dict[str, None] = {}
    for record, tracks in zip(records, tracked, strict=True):
        for group_track in tracks.groups:
            if group_track.track == "NOT_SUBSCRIBED":
                absent[group_track.group] = None
            else:
                rows.append({"message": record.physical_offset, **group_track._asdict()})
    # Show the groups that read the queue, then the others in one line.
    page.blank()
    page.heading("Consumed by")
    if rows:
        page.table(rows, [*several, "group", "track", "topic", "queue_id", "queue_offset",
                          "position", "detail"])
    else:
        page.text("no consumer offsets in its queue")
    if absent:
        names = list(absent)
        more = f" and {len(names) - _MAX_SHOWN} more" if len(names) > _MAX_SHOWN else ""
        page.text(f"no consumer offset in the topic: {', '.join(names[:_MAX_SHOWN])}{more} (not "
                  "subscribed, nothing consumed yet, or broadcasting)")
    # Show retries and dead letters as a chain of copies.
    chains = [(record, copy) for record, tracks in zip(records, tracked, strict=True)
              for copy in tracks.chain]
    if chains:
        page.heading("Sent back")
        page.table(({"message": record.physical_offset, **copy.as_dict(),
                     "store_timestamp": time_text(copy.record.store_timestamp, tz)}
                    for record, copy in chains),
                   [*several, "role", "group", "topic", "queue_id", "queue_offset",
                    "physical_offset", "reconsume_times", "store_timestamp"])
