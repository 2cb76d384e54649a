"""``rmqctl tiered ls``: list the contents of a tier."""

from __future__ import annotations

from datetime import UTC
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rmqctl.commands.shared.options import Out, Topic, Zone
from rmqctl.commands.shared.tiered_options import TierIndex
from rmqctl.output.units import count_text, size_text, time_text

if TYPE_CHECKING:
    from rmqctl.ext.tiered.tier import Tier
    from rmqctl.output.cells import Render
    from rmqctl.output.human import Human

_QUEUES = ("broker", "topic", "queue_id", "min_offset", "commit_offset", "commit_log", "segments",
           "bytes", "state")
_SEGMENTS = ("broker", "topic", "queue_id", "type", "base_offset", "size", "in_metadata",
             "begin_timestamp", "state")
_INDEXES = ("broker", "status", "begin_timestamp", "end_timestamp", "items", "slots", "size",
            "base_offset", "error")
_STYLES = {"ok": "good", "empty": "dim", "stale-metadata": "warn", "no-metadata": "warn",
           "overlap": "warn"}


def command(
    *,
    segments: Annotated[bool, typer.Option(
        "--segments", help="List each segment: its file, and its entry in the metadata.",
    )] = False,
    topic: Topic = None,
    tier: TierIndex,
    tz: Zone = UTC,
    out: Out,
) -> None:
    """List queues, segments and index files of a tier.

    Compares segment files with the metadata. "stale-metadata": the file has more bytes than the
    metadata records; "short": it has fewer; "no-metadata": a broker does not see the file;
    "no-file": the file of an entry is missing. jsonl, csv and tsv list the queues or (with
    --segments) the segments; json also has the index files.

        rmqctl tiered ls /data/tieredstore
        rmqctl tiered ls /data/tieredstore --segments --topic orders
    """
    from rmqctl.ext.tiered.read import ls

    with tier.open() as opened:
        _warn_of(out, opened)
        list_of = ls.segments if segments else ls.queues
        rows: list[dict[str, Any]] = list(list_of(opened, tier.broker, topic))
        indexes = [] if topic is not None else list(
            ls.index_files(opened, tier.broker, tier.index_slots, tier.index_max))
        kind = "segments" if segments else "queues"
        columns = ls.SEGMENT_COLUMNS if segments else ls.QUEUE_COLUMNS
        document = {"tier": opened.name, "metadata": opened.metadata_path, kind: rows,
                    "index_files": indexes}
    out.listing(document, lambda page: _page(page, document, kind, tz), rows=rows,
                columns=columns)


def _warn_of(out: Any, tier: Tier) -> None:
    if tier.metadata_path is None:
        out.warn("no tieredStoreMetadata.json found; pass --metadata")
    elif tier.metadata_error is not None:
        out.warn(tier.metadata_error)
    for problem in tier.problems[:20]:
        out.warn(f"{tier.reader.where(problem.path)}: {problem.reason}")


def _page(page: Human, document: dict[str, Any], kind: str, tz: Any) -> None:
    """Show the tables as text, with only the columns that fit and whose values differ
    between rows.
    """
    def moment(value: int) -> str:
        return time_text(value, tz)

    render: Render = {
        **dict.fromkeys(("bytes", "size", "in_metadata"), size_text),
        **dict.fromkeys(("begin_timestamp", "end_timestamp"), moment),
        "items": count_text,
    }
    rows, indexes = document[kind], document["index_files"]
    several = len({row["broker"] for row in (*rows, *indexes)} - {None, ""}) > 1
    styles = {"state": lambda value: _STYLES.get(value, "bad")}
    shown = [_segment(row) if kind == "segments" else _queue(row) for row in rows]
    same = all(row["size"] == row["in_metadata"] for row in shown if "in_metadata" in row)
    left_out = {*(() if several else ("broker",)), *(("in_metadata",) if same else ())}
    page.table(shown, [name for name in (_SEGMENTS if kind == "segments" else _QUEUES)
                       if name not in left_out], render=render, styles=styles)
    if indexes:
        page.heading("Index files")
        wrong = any(index["error"] for index in indexes)
        left_out = {*(() if several else ("broker",)), *(() if wrong else ("error",))}
        page.table([_index(index) for index in indexes],
                   [name for name in _INDEXES if name not in left_out], render=render)


def _queue(row: dict[str, Any]) -> dict[str, Any]:
    log = "" if row["commit_log_end"] is None else (
        f"{row['commit_log_start']} to {row['commit_log_end']}")
    return {**row, "commit_log": log, "segments": row["commit_log_segments"]}


def _segment(row: dict[str, Any]) -> dict[str, Any]:
    return {**row, "in_metadata": row["metadata_size"]}


def _index(row: dict[str, Any]) -> dict[str, Any]:
    if row["used_slots"] is None or row["hash_slots"] is None:
        return {**row, "slots": ""}
    return {**row, "slots": f"{row['used_slots']:,} of {row['hash_slots']:,}"}
