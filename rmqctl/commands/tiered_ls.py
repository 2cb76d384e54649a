"""``rmqctl tiered ls``: what is in a tier."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from rmqctl.commands.options import (
    NoProgress,
    OutputFormat,
    Quiet,
    Topic,
    Verbose,
    Zone,
    open_output,
)
from rmqctl.commands.tiered_options import (
    Broker,
    MetadataFile,
    TieredIndexMax,
    TieredIndexSlots,
    TierRoot,
    opened_tier,
)

if TYPE_CHECKING:
    from rmqctl.output.cells import Render
    from rmqctl.output.human import Human
    from rmqctl.tiered.tier import Tier

NAME = ("tiered", "ls")
EFFECT = "read-only"

_QUEUES = ("broker", "topic", "queue_id", "min_offset", "commit_offset", "commit_log_start",
           "commit_log_end", "commit_log_segments", "bytes", "state")
_SEGMENTS = ("topic", "queue_id", "type", "base_offset", "size", "metadata_size",
             "begin_timestamp", "end_timestamp", "state")
_INDEXES = ("broker", "status", "form", "begin_timestamp", "end_timestamp", "items", "used_slots",
            "hash_slots", "size", "base_offset", "error")
_STYLES = {"ok": "good", "empty": "dim", "stale-metadata": "warn", "no-metadata": "warn",
           "overlap": "warn"}


def command(
    root: TierRoot,
    segments: Annotated[bool, typer.Option(
        "--segments", help="A row per segment: its file, and what the metadata says of it.",
    )] = False,
    topic: Topic = None,
    metadata: MetadataFile = None,
    broker: Broker = None,
    index_slots: TieredIndexSlots = None,
    index_max: TieredIndexMax = None,
    tz: Zone = "UTC",  # type: ignore[assignment]
    output: OutputFormat = None,
    quiet: Quiet = 0,
    verbose: Verbose = 0,
    no_progress: NoProgress = False,
) -> None:
    """Queues, segments and index files of a tier.

    Segments are found by name and in the metadata, and both are compared: "stale-metadata" is a
    file with more bytes than the metadata knows of, "short" one with fewer, "no-metadata" one that
    a broker does not see, "no-file" an entry without a file. With csv and tsv the queues are
    listed, or the segments; json and jsonl have the index files too.

        rmqctl tiered ls /data/tieredstore
        rmqctl tiered ls /data/tieredstore --segments --topic orders
    """
    from rmqctl.tiered import ls

    out = open_output(output, quiet, verbose, no_progress)
    with opened_tier(root, metadata) as tier:
        _warn_of(out, tier)
        found: list[dict[str, Any]] = list(
            ls.segments(tier, broker, topic) if segments else ls.queues(tier, broker, topic))
        indexes = [] if topic is not None else list(
            ls.index_files(tier, broker, index_slots, index_max))
        kind = "segments" if segments else "queues"
        columns = ls.SEGMENT_COLUMNS if segments else ls.QUEUE_COLUMNS
        document = {"tier": tier.name, "metadata": tier.metadata_path, kind: found,
                    "index_files": indexes}
    if out.format == "jsonl":
        out.rows([{"kind": kind[:-1], **row} for row in found]
                 + [{"kind": "index_file", **row} for row in indexes])
    elif out.format in ("csv", "tsv"):
        out.rows(found, columns)
    else:
        out.document(document, lambda page: _page(page, document, kind, tz))


def _warn_of(out: Any, tier: Tier) -> None:
    if tier.metadata_path is None:
        out.warn("no tieredStoreMetadata.json was found (--metadata names it)")
    elif tier.metadata_error is not None:
        out.warn(tier.metadata_error)
    for one in tier.problems[:20]:
        out.warn(f"{tier.reader.where(one.path)}: {one.reason}")


def _page(page: Human, document: dict[str, Any], kind: str, tz: Any) -> None:
    from rmqctl.output.units import count_text, size_text, time_text

    def moment(value: int) -> str:
        return time_text(value, tz)

    render: Render = {
        **dict.fromkeys(("bytes", "size", "metadata_size"), size_text),
        **dict.fromkeys(("begin_timestamp", "end_timestamp"), moment),
        **dict.fromkeys(("items", "used_slots", "hash_slots"), count_text),
    }
    columns = _SEGMENTS if kind == "segments" else _QUEUES
    styles = {"state": lambda value: _STYLES.get(value, "bad")}
    page.table(document[kind], columns, render=render, styles=styles)
    if document["index_files"]:
        page.heading("Index files")
        wrong = any(one["error"] for one in document["index_files"])
        page.table(document["index_files"], _INDEXES if wrong else _INDEXES[:-1], render=render)
