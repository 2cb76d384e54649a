"""``rmqctl stats``: counts, bytes and rates of the messages in the log."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta, tzinfo
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from rmqctl.commands.options import (
    CommitlogDirs,
    CommitlogFileSize,
    Jobs,
    NoProgress,
    OutputFormat,
    Quiet,
    Since,
    Store,
    Topic,
    Until,
    Verbose,
    Zone,
    open_output,
    worker_count,
)
from rmqctl.commands.parsing import parse_time_range

if TYPE_CHECKING:
    from rmqctl.output import Human, Output
    from rmqctl.output.cells import Render
    from rmqctl.scan.aggregate import Aggregate

NAME = ("stats",)
EFFECT = "read-only"

By = Literal["topic", "queue", "tag", "hour", "day", "minute", "store-host", "size", "flag",
             "transaction", "compression", "none"]  # fmt: skip
Sort = Literal["key", "messages", "bytes", "body_bytes", "average_size", "messages_per_second",
               "bytes_per_second", "first_store_timestamp", "last_store_timestamp"]  # fmt: skip

_NARROW = ("messages", "share", "bytes", "messages_per_second")
_BRIEF = ("messages", "share", "bytes", "average_size", "messages_per_second", "bytes_per_second")
_TIMES = ("first_store_timestamp", "last_store_timestamp")
_BRIEF_COLUMNS, _WIDE_COLUMNS = 100, 150  # terminal columns from which on there is room for more
_MOST_COLUMNS = 20_000
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def command(
    store: Store,
    by: Annotated[By, typer.Option("--by", help="What to count by.")] = "topic",
    topic: Topic = None,
    since: Since = None,
    until: Until = None,
    tz: Zone = "UTC",  # type: ignore[assignment]
    top: Annotated[
        int | None,
        typer.Option("--top", metavar="N", min=1, help="The first N rows in the order only."),
    ] = None,
    sort: Annotated[
        Sort | None,
        typer.Option(
            "--sort",
            help="Order, greatest first (key: ascending); by default times and sizes by key, "
            "all else by messages.",
        ),
    ] = None,
    plot: Annotated[bool, typer.Option("--plot", help="Draw it instead of a table.")] = False,
    jobs: Jobs = 1,
    commitlog_dirs: CommitlogDirs = None,
    commitlog_file_size: CommitlogFileSize = None,
    output: OutputFormat = None,
    quiet: Quiet = 0,
    verbose: Verbose = 0,
    no_progress: NoProgress = False,
) -> None:
    """Count the messages of the log: how many, how large, how fast they came.

    Reads the whole log once (with --since and --until only the files whose time it may be).
    Rates are over the time from a group's first to its last message, by time over the whole
    minute, hour or day. Damaged spans are passed over and counted; `rmqctl verify` names them.
    """
    from rmqctl.store import Sizes
    from rmqctl.store import Store as OpenedStore
    from rmqctl.store.stats import Query, choose_files, collect

    out = open_output(output, quiet, verbose, no_progress)
    begin, end = parse_time_range(since, until, tz=tz)
    query = Query(by, topic, begin, end)
    with OpenedStore.open(store, commitlog_dirs or (), Sizes(commitlog_file_size)) as opened:
        files = choose_files(opened, query)
        for trouble in opened.log_troubles:
            out.warn(f"{trouble.path}: {trouble.reason}")
        left = len(opened.log.files) - len(files)
        if left:
            out.debug(f"{left} log files lie outside the time asked for")
        with out.progress("counting", sum(one.size for one in files)) as progress:
            sums = collect(opened, query, worker_count(jobs), progress=progress.advance,
                           files=files)  # fmt: skip
    if sums.bytes_damaged:
        out.warn(
            f"{sums.bytes_damaged:,} bytes in {sums.damaged_spans:,} damaged spans were passed "
            f"over; `rmqctl verify` says where"
        )
    if sums.is_cut:
        out.warn("more groups than are kept apart: those met last are summed as (other)")
    _show(out, sums, tz, sort, top, plot)


def _show(
    out: Output, sums: Aggregate, tz: tzinfo, sort: str | None, top: int | None, plot: bool
) -> None:
    from rmqctl.store.stats import KEY_COLUMNS, VALUE_COLUMNS, rows, total

    found = rows(sums, tz, sort)
    shown = found if top is None else found[:top]
    keys = KEY_COLUMNS[sums.by]
    if out.format == "json":
        out.document(_document(sums, shown, len(found), total(sums)))
    elif out.is_data:
        out.rows(shown, (*keys, *VALUE_COLUMNS))
    elif not found:
        out.note("no messages")
    else:
        page = out.human()
        if plot:
            _plot(page, sums.by, shown, sort, tz)
        elif not keys:
            _pairs(page, shown[0], tz)
            return
        else:
            page.table(map(_named, shown), (*keys, *_values_shown(page, sums.by)),
                       render=_render(sums.by, tz))  # fmt: skip
        page.blank()
        page.text(_summary(total(sums), len(found), len(shown), tz))


def _values_shown(page: Human, by: str) -> tuple[str, ...]:
    """The columns of figures there is room for."""
    if page.width < _BRIEF_COLUMNS:
        return _NARROW
    wide = page.width >= _WIDE_COLUMNS and by not in ("minute", "hour", "day")
    return (*_BRIEF, *_TIMES) if wide else _BRIEF


def _named(row: dict[str, Any]) -> dict[str, Any]:
    """For people an absent tag has a name too."""
    return {**row, "tag": "(no tag)"} if "tag" in row and row["tag"] is None else row


def _document(
    sums: Aggregate, shown: list[dict[str, Any]], groups: int, everything: dict[str, Any]
) -> dict[str, Any]:
    counts = {
        "bytes_in_messages": sums.bytes_in_messages,
        "bytes_blank": sums.bytes_blank,
        "bytes_zero": sums.bytes_zero,
        "bytes_damaged": sums.bytes_damaged,
    }
    return {
        "by": sums.by,
        "rows": shown,
        "groups": groups,
        "total": everything,
        "damaged_bytes": sums.bytes_damaged,
        "damaged_spans": sums.damaged_spans,
        "coverage": {"bytes_total": sum(counts.values()), **counts},
    }


def _render(by: str, tz: tzinfo) -> Render:
    from rmqctl.output.units import count_text, rate_text, size_text, time_text

    return {
        "time": lambda value: _bin_text(value, by, tz),
        "size_from": size_text,
        "size_to": size_text,
        "messages": count_text,
        "share": lambda value: f"{value:.1%}",
        "bytes": size_text,
        "body_bytes": size_text,
        "average_size": lambda value: size_text(round(value)),
        "messages_per_second": rate_text,
        "bytes_per_second": lambda value: size_text(round(value)) + "/s",
        **dict.fromkeys(_TIMES, lambda value: time_text(value, tz)),
    }


def _bin_text(value: Any, by: str, tz: tzinfo) -> str:
    """A day as ``2023-11-14``, an hour or minute as ``2023-11-14 22:15``."""
    try:
        moment = (_EPOCH + timedelta(milliseconds=value)).astimezone(tz)
    except (OverflowError, ValueError, TypeError):  # outside the calendar, or "(other)"
        return str(value)
    return moment.strftime("%Y-%m-%d" if by == "day" else "%Y-%m-%d %H:%M")


def _pairs(page: Human, row: dict[str, Any], tz: tzinfo) -> None:
    render = _render("none", tz)
    page.pairs({
        name.replace("_", " "): render[name](value)
        for name, value in row.items()
        if name != "share" and value is not None
    })  # fmt: skip


def _summary(total: dict[str, Any], groups: int, shown: int, tz: tzinfo) -> str:
    from rmqctl.output.units import count_text, duration_text, rate_text, size_text, time_text

    first, last = total["first_store_timestamp"], total["last_store_timestamp"]
    text = (
        f"total: {count_text(total['messages'])} messages, {size_text(total['bytes'])}, "
        f"{time_text(first, tz)} to {time_text(last, tz)} ({duration_text(last - first)})"
    )
    if total["messages_per_second"] is not None:
        text += f", {rate_text(total['messages_per_second'])}"
    if shown < groups:
        text += f"; {groups - shown:,} of {groups:,} groups are not shown"
    return text


# -- plots ----------------------------------------------------------------------------------------


def _plot(page: Human, by: str, rows: list[dict[str, Any]], sort: str | None, tz: tzinfo) -> None:
    from rmqctl.output.plot import bars
    from rmqctl.store.stats import KEY_COLUMNS, TIME_STEPS

    metric = sort if sort is not None and sort != "key" and sort not in _TIMES else "messages"
    render = _render(by, tz)
    if by in TIME_STEPS and _columns(page, by, rows, metric, tz):
        return
    show: Callable[[float], str] = render[metric]
    items = [
        (" ".join(_label(name, row[name], render) for name in KEY_COLUMNS[by]), row[metric] or 0)
        for row in map(_named, rows)
    ]
    page.text(
        bars(items, width=page.width, unicode=page.unicode, show=lambda v: show(_whole(v)))
    )


def _columns(page: Human, by: str, rows: list[dict[str, Any]], metric: str, tz: tzinfo) -> bool:
    """Time from left to right; False when the times are too far apart to be drawn so."""
    from rmqctl.output.plot import columns
    from rmqctl.store.stats import TIME_STEPS

    step = TIME_STEPS[by]
    values = {row["time"]: row[metric] or 0 for row in rows if isinstance(row["time"], int)}
    if not values:
        return False
    first, last = min(values), max(values)
    if (last - first) // step >= _MOST_COLUMNS:
        return False
    # Days of a zone with summer time are not all equally long: the nearest place is the right one.
    series = [0.0] * (round((last - first) / step) + 1)
    for when, value in values.items():
        series[round((when - first) / step)] += value
    show = _render(by, tz)[metric]
    page.text(
        columns(
            series,
            first=_bin_text(first, by, tz),
            last=_bin_text(last, by, tz),
            width=page.width,
            unicode=page.unicode,
            show=lambda value: show(_whole(value)),
        )
    )
    return True


def _label(name: str, value: Any, render: Render) -> str:
    return render[name](value) if name in render else str(value)


def _whole(value: float) -> float:
    """A whole number as int, so that counts and sizes are worded as such."""
    return int(value) if value == int(value) else value
