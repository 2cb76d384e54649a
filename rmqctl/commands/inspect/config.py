"""``rmqctl config``: show the files of ``config/`` and their backups, or the RocksDB databases that
some brokers use instead.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, tzinfo
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from rmqctl.commands.shared.options import Out, StoreFolders, Zone
from rmqctl.errors import ExitCode, UsageError
from rmqctl.output.units import duration_text, size_text, time_text
from rmqctl.parse_values import now_ms

if TYPE_CHECKING:
    from rmqctl.output import Output
    from rmqctl.output.cells import Render
    from rmqctl.store import Store as OpenedStore
    from rmqctl.store.config.config import ConfigFile

Section = Literal[
    "topics", "groups", "offsets", "delay", "filters", "orders", "mappings", "modes", "metrics",
    "timer", "tiered", "other", "metadata", "epochs",
]

_COLUMNS = ("file", "kind", "size", "state", "source", "entries", "data_version", "backup",
            "offset", "reason")
_BRIEF = ("file", "size", "state", "entries", "backup")
_WIDE = (*_BRIEF, "data_version")
_WIDE_COLUMNS = 100  # terminal columns from which it fits
# Columns of a section for people; data formats contain all fields.
_SECTION_BRIEF: dict[str, tuple[str, ...]] = {
    "topics": ("topic", "read_queue_nums", "write_queue_nums", "perm", "order", "attributes"),
    "groups": ("group", "consume_enable", "consume_broadcast_enable", "retry_queue_nums",
               "retry_max_times", "attributes"),
    "offsets": ("group", "topic", "queue_id", "offset"),
    "delay": ("level", "delay_ms", "offset"),
    "filters": ("topic", "consumer_group", "expression_type", "expression", "dead"),
    "orders": ("topic", "group", "queue_id", "offsets", "pop_time", "invisible_time"),
    "mappings": ("topic", "global_queue_id", "current", "bname", "queue_id", "gen",
                 "logic_offset", "start_offset", "end_offset"),
    "tiered": ("table", "key", "base_offset", "size", "status"),
}
_TIMES = ("born_time", "dead_time", "client_version", "pop_time", "last_consume_time",
          "time_stamp", "create_timestamp", "begin_timestamp", "end_timestamp",
          "last_read_time_ms", "timestamp")
_MAX_NOTES = 20
_IN_ROCKSDB = ("topics", "groups", "offsets", "metadata")
"""Sections that a broker with its configuration in RocksDB keeps in the databases."""


def command(
    *,
    section: Annotated[Section | None, typer.Argument(
        metavar="[SECTION]", show_default=False,
        help="Section to show (default: list the files). metadata: the JSON of `mqadmin "
             "exportMetadata`, for recover --from. epochs: master changes in controller "
             "mode.")] = None,
    only: Annotated[Literal["topics", "groups"] | None, typer.Option(
        "--only", help="With metadata: only topics, or only groups.")] = None,
    special: Annotated[bool, typer.Option(
        "--special", help="With metadata: also retry and dead letter topics.")] = False,
    tz: Zone = UTC,
    store: StoreFolders,
    out: Out,
) -> None:
    """Show topics, groups, offsets and other files of config/.

    Reads the files that the broker reads: RocksDB databases (config/topics and beside it, or
    config/rdb) if the broker uses them, else JSON files. If a main file is missing, empty or
    unreadable, its .bak is shown with a note, because a broker reads it, too. Every unreadable file
    is listed with the reason and the location. Exit code 1 if a main file is damaged.
    """
    from rmqctl.store.config.config import load

    if section != "metadata" and (only is not None or special):
        raise UsageError("--only and --special require the section metadata")
    with store.open() as opened:
        # Epochs and metadata have their own readers; all other sections are files of config/.
        if section == "epochs":
            _epochs(out, opened)
            return
        layout = opened.layout
        if section in _IN_ROCKSDB:
            layout.require(store.root, "config")
        if section == "metadata":
            files = _metadata(out, opened, (only,) if only else ("topics", "groups"), special,
                              store.over_conf({}).get("cluster"))
        else:
            files, others = load(opened, section)
    # Report damaged files, but show everything that can be read.
    for file in files:
        for problem in file.problems():
            out.warn(problem)
    # Without a section, list the files instead of their contents.
    if section is None:
        wide = not out.is_data and out.human().width >= _WIDE_COLUMNS
        brief = _WIDE if wide else _BRIEF
        if any(file.main.database for file in files):  # one folder may hold several kinds
            brief = (brief[0], "kind", *brief[1:])
        out.rows(_listing(files), _COLUMNS, brief=brief,
                 empty="no configuration files", render=_listing_render(tz),
                 styles={"state": _state_style})
        for trouble in others[:_MAX_NOTES]:
            out.note(f"{trouble.path}: {trouble.reason}")
        if len(others) > _MAX_NOTES:
            out.note(f"and {len(others) - _MAX_NOTES} more files that are not read")
    elif section != "metadata":
        _show(out, section, files, tz)
    # Everything readable was shown, so damage only changes the exit code.
    if any(file.damaged for file in files):
        raise typer.Exit(int(ExitCode.FINDINGS))
    if section is None:
        layout.require(store.root, "config")


def _epochs(out: Output, store: OpenedStore) -> None:
    """Show the epochs of a broker in controller mode, each with its start and end offset.

    Exit with code 1 if the epoch file is damaged.
    """
    from rmqctl.store.controller import EpochSpan, read_epochs, spans
    from rmqctl.store.log.end import find_end

    file = read_epochs(store)
    for copy in file.copies:
        if copy.fault is not None:
            out.warn(f"{copy.name}: {copy.reason}")
    if file.used is file.backup:
        out.warn(f"showing {file.backup.name} instead, which a broker would use")
    end = find_end(store).offset if store.layout.reads("commitlog") else None
    out.rows((span._asdict() for span in spans(file.epochs, end)), EpochSpan._fields,
             empty="no epochs: no broker in controller mode has become master here")
    if file.main.fault is not None or file.used is file.backup:
        raise typer.Exit(int(ExitCode.FINDINGS))


def _metadata(out: Output, store: OpenedStore, parts: tuple[str, ...],
              special: bool, cluster: str | None) -> list[ConfigFile]:
    """Show topics and groups in the format of ``mqadmin exportMetadata``; return the files that
    contain them.
    """
    from rmqctl.broker.settings import Settings
    from rmqctl.engine.config.metadata import PARTS, metadata

    document, files = metadata(store, parts, special=special,
                               cluster=cluster or Settings().cluster, now=now_ms())
    for part, file in zip(parts, files, strict=True):
        if file.used is None and not file.damaged:
            out.warn(f"config/{file.name} does not exist: no {part} known")
    out.document(document, lambda page: page.pairs(
        {part: ", ".join(document[PARTS[part][1]]) for part in parts}))
    return files


def _listing(files: Iterable[ConfigFile]) -> Iterable[dict[str, Any]]:
    for file in files:
        shown = next((c for c in (file.main, file.backup) if c.state != "missing"), file.main)
        fault = file.faults[0] if file.faults else None
        yield {
            "file": file.main.path,
            "kind": file.kind,
            "size": file.main.size,
            "state": "oddity" if fault and file.main.state == "ok" else file.main.state,
            "source": file.used.path if file.used else None,
            "entries": file.entries,
            "data_version": file.data_version,
            "backup": file.backup.state,
            "offset": file.main.offset,
            "reason": file.main.reason or shown.reason or fault,
        }


def _listing_render(tz: tzinfo) -> Render:
    def version(value: dict[str, int]) -> str:
        when = value.get("timestamp")
        counter = str(value.get("counter", "?"))
        return counter if when is None else f"{counter} at {time_text(when, tz)}"

    return {
        "file": lambda path: path.removeprefix("config/"),
        "data_version": version,
        "size": size_text,
    }


def _state_style(state: str) -> str | None:
    return {"ok": "good", "oddity": "warn"}.get(state, "bad")


def _show(out: Output, section: str, files: list[ConfigFile], tz: tzinfo) -> None:
    from rmqctl.store.config.rows import COLUMNS

    columns = COLUMNS[section]
    brief = _SECTION_BRIEF.get(section, tuple(name for name in columns if name != "source"))
    if any(file.fell_back for file in files):
        brief = (*brief, "source")

    def moment(value: Any) -> str:
        return time_text(value, tz) if isinstance(value, int) and value > 0 else str(value)

    render: Render = {
        **dict.fromkeys(_TIMES, moment),
        "delay_ms": duration_text,
        "perm_bits": str,
    }
    empty = "no entries" if files else f"no file with {section}"
    rows = (row for file in files for row in file.rows())
    if section == "timer" and not out.is_data:  # one record
        for row in rows:
            out.human().pairs(
                {name: render[name](row[name]) if name in render else row[name] for name in row}
            )
        return
    out.rows(rows, columns, brief=brief, empty=empty, render=render)
