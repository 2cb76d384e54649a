"""Code that the ``stats`` commands share: selecting files, counting, tables and charts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta, tzinfo
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple, Self

import typer

from rmqctl.commands.app.option_groups import OptionGroup
from rmqctl.commands.shared.options import Since, Topic, Until, Zone
from rmqctl.commands.shared.spark_options import SparkOptions, chosen_engine
from rmqctl.errors import ExitCode
from rmqctl.lazy_dataclass import dataclass
from rmqctl.output.units import count_text, counted, duration_text, rate_text, size_text, time_text
from rmqctl.parse_values import parse_time_range

if TYPE_CHECKING:
    from rmqctl.checks.preflight.missing import MissingMessages
    from rmqctl.output import Human, Output
    from rmqctl.output.cells import Render
    from rmqctl.scan.aggregate import Aggregate
    from rmqctl.store import Store
    from rmqctl.store.files import StoreFile
    from rmqctl.store.stats import Query

By = Literal["topic", "queue", "tag", "key", "hour", "day", "minute", "store-host", "size", "flag",
             "transaction", "compression", "none"]
Sort = Literal["key", "messages", "bytes", "body_bytes", "average_size", "messages_per_second",
               "bytes_per_second", "first_store_timestamp", "last_store_timestamp"]


@dataclass(frozen=True, kw_only=True)
class StatsOptions(OptionGroup):
    """Options that select the messages to count, and options for showing the figures."""

    topic: Topic = None
    since: Since = None
    until: Until = None
    tz: Zone = UTC
    top: Annotated[int | None, typer.Option(
        "--limit", "--top", metavar="N", min=1, help="Show only the first N rows.")] = None
    sort: Annotated[Sort | None, typer.Option(
        "--sort", help="Sort by this figure, largest first, or by key, ascending. Default: key for "
                       "times and sizes, else messages.")] = None
    plot: Annotated[bool, typer.Option(
        "--plot", help="Draw a chart instead of a table.")] = False

    def times(self) -> tuple[int | None, int | None]:
        """Return ``--since`` and ``--until`` as epoch milliseconds. Raises: UsageError."""
        return parse_time_range(self.since, self.until, tz=self.tz)


_NARROW = ("messages", "share", "bytes", "messages_per_second")
_BRIEF = ("messages", "share", "bytes", "average_size", "messages_per_second", "bytes_per_second")
_TIMES = ("first_store_timestamp", "last_store_timestamp")
_BRIEF_COLUMNS, _WIDE_COLUMNS = 100, 150  # terminal columns from which more columns fit
_MAX_COLUMNS = 20_000
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class StoreGaps(NamedTuple):
    """Data that is known to be missing from the figures of a store.

    * ``lost``: numbers of lost messages
    * ``holes``: whether the log has zeros or a missing file between messages
    """

    lost: MissingMessages
    holes: bool


@dataclass(frozen=True, slots=True)
class StatsFigures:
    """The figures to show.

    * ``by``: the key to count by
    * ``sums``: the figures of each store
    * ``stores``: names of the stores, in the order of ``sums`` (None: not shown)
    * ``lacking``: what is missing from the figures of each store (empty: not determined)
    """

    by: str
    sums: Sequence[Aggregate]
    stores: Sequence[str] | None = None
    lacking: Sequence[StoreGaps] = ()

    @property
    def keys(self) -> tuple[str, ...]:
        from rmqctl.store.stats import KEY_COLUMNS

        own = () if self.by == "store" else KEY_COLUMNS[self.by]
        return own if self.stores is None else ("store", *own)

    def rows(self, tz: tzinfo, sort: str | None) -> list[dict[str, Any]]:
        from rmqctl.store.stats import rows, rows_of_stores

        if self.stores is None:
            return rows(self.sums[0], tz, sort)
        return rows_of_stores(list(zip(self.stores, self.sums, strict=True)), tz, sort)


def warn(out: Output, sums: Aggregate, store: str | None = None) -> None:
    """Warn about data that was not counted, and about messages counted despite a wrong CRC."""
    where = "" if store is None else f"{store}: "
    if sums.bytes_damaged:
        out.warn(
            f"{where}{counted(sums.bytes_damaged, 'byte')} in "
            f"{counted(sums.damaged_spans, 'damaged range')} skipped; `rmqctl verify` lists them"
        )
    if sums.bodies_damaged:
        out.warn(f"{where}{counted(sums.bodies_damaged, 'message')} counted despite a body CRC "
                 "mismatch")
    if sums.undecided:
        out.warn(f"{where}{counted(sums.undecided, 'record')} not counted: undecided (messages, or "
                 "part of a damaged message's body)")
    if sums.unread:
        out.warn(f"{where}{counted(sums.bytes_unread, 'byte')} not counted: {sums.unread}")
    if sums.is_cut:
        from rmqctl.scan.aggregate import HEAVY

        out.warn(
            f"{where}too many groups: groups with up to 1/{HEAVY:,} of the total are combined as "
            "(other)"
        )


def show(out: Output, figures: StatsFigures, options: StatsOptions) -> None:
    """Print the figures in the chosen format. If a part of a log could not be read, exit with code
    5. If a log is damaged or has lost messages, exit with code 1.
    """
    _show(out, figures, options)
    if any(aggregate.unread for aggregate in figures.sums):
        raise typer.Exit(int(ExitCode.IO))
    if any(aggregate.bytes_damaged for aggregate in figures.sums) or any(
            lacking.lost.known_lost or lacking.holes for lacking in figures.lacking):
        raise typer.Exit(int(ExitCode.FINDINGS))


def _show(out: Output, figures: StatsFigures, options: StatsOptions) -> None:
    from rmqctl.store.stats import VALUE_COLUMNS, total

    # Sort all rows before the list is shortened.
    tz, sort = options.tz, options.sort
    rows = figures.rows(tz, sort)
    shown = rows[:options.top]
    keys = figures.keys
    # Programs get fields; an empty result is a note for people only.
    if out.is_value:
        out.document(document_of(figures, shown, len(rows)))
    elif out.is_data:
        out.rows(shown, (*keys, *VALUE_COLUMNS))
    elif not rows:
        out.note("no messages")
    else:
        # Fillers count as messages, so their number is stated.
        fillers = sum(aggregate.fillers for aggregate in figures.sums)
        if fillers:
            out.note(f"fillers among the messages: {fillers:,} (`recover` put them in place of "
                     "lost messages)")
        page = out.human()
        # Without a key there is a single row, which is shown as a list.
        if options.plot:
            _plot(page, figures, shown, sort, tz)
        elif not keys:
            _pairs(page, shown[0], tz)
            return
        else:
            page.table(map(_named, shown), (*keys, *_values_shown(page, figures.by)),
                       render=_render(figures.by, tz))
        page.blank()
        page.text(_summary(total(*figures.sums), len(rows), len(shown), tz))


def _values_shown(page: Human, by: str) -> tuple[str, ...]:
    """Return the names of the figures that fit on the screen as columns."""
    if page.width < _BRIEF_COLUMNS:
        return _NARROW
    wide = page.width >= _WIDE_COLUMNS and by not in ("minute", "hour", "day")
    return (*_BRIEF, *_TIMES) if wide else _BRIEF


def _named(row: dict[str, Any]) -> dict[str, Any]:
    """Return a human-readable row: a missing tag or key becomes ``(no tag)`` or ``(no key)``."""
    absent = {name: f"(no {name})" for name in ("tag", "key") if row.get(name, "") is None}
    return {**row, **absent} if absent else row


def document_of(figures: StatsFigures, shown: list[dict[str, Any]], groups: int) -> dict[str, Any]:
    """Return the figures as a JSON object. ``shown``: its rows; ``groups``: number of all rows."""
    from rmqctl.store.stats import total

    document = {
        "by": figures.by,
        "rows": shown,
        "groups": groups,
        "cut": any(aggregate.is_cut for aggregate in figures.sums),
        "total": total(*figures.sums),
        **_coverage(figures.sums, figures.lacking),
    }
    if figures.stores is not None and len(figures.stores) > 1:
        document["stores"] = [
            {"store": name, **total(aggregate),
             **_coverage([aggregate], figures.lacking[number:number + 1])}
            for number, (name, aggregate) in enumerate(zip(figures.stores, figures.sums,
                                                           strict=True))
        ]
    return document


def _coverage(sums: Sequence[Aggregate], lacking: Sequence[StoreGaps]) -> dict[str, Any]:
    names = ("bytes_in_messages", "bytes_blank", "bytes_zero", "bytes_damaged")
    counts = {name: sum(getattr(aggregate, name) for aggregate in sums) for name in names}
    replaced = sum(aggregate.replaced for aggregate in sums)
    losses = {} if not lacking else {
        "complete": not (counts["bytes_damaged"] or replaced
                         or any(aggregate.unread for aggregate in sums)
                         or any(lack.lost.total or lack.holes for lack in lacking)),
        "messages_already_lost": None if any(lack.lost.counted is None for lack in lacking)
        else sum(lack.lost.already for lack in lacking)}
    return {
        **losses,
        "damaged_bytes": counts["bytes_damaged"],
        "bodies_damaged": sum(aggregate.bodies_damaged for aggregate in sums),
        "damaged_spans": sum(aggregate.damaged_spans for aggregate in sums),
        "messages_undecided": sum(aggregate.undecided for aggregate in sums) + sum(
            lack.lost.discarded for lack in lacking),
        "messages_replaced": replaced,
        "fillers": sum(aggregate.fillers for aggregate in sums),
        "coverage": {"bytes_total": sum(counts.values()), **counts},
    }


def _render(by: str, tz: tzinfo) -> Render:
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
    """Return the text of a day (``2023-11-14``), hour or minute (``2023-11-14 22:15``)."""
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
    })


def _summary(total: dict[str, Any], groups: int, shown: int, tz: tzinfo) -> str:
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


def _plot(
    page: Human, figures: StatsFigures, rows: list[dict[str, Any]], sort: str | None, tz: tzinfo
) -> None:
    from rmqctl.output.plot import bars
    from rmqctl.store.stats import TIME_STEPS

    by, keys = figures.by, figures.keys
    metric = sort if sort is not None and sort != "key" and sort not in _TIMES else "messages"
    render = _render(by, tz)
    single = len(figures.stores or ()) < 2 or metric != "average_size"  # else it may be added up
    if by in TIME_STEPS and single and _columns(page, by, rows, metric, tz):
        return
    show: Callable[[float], str] = render[metric]
    items = [
        (" ".join(_label(name, row[name], render) for name in keys), row[metric] or 0)
        for row in map(_named, rows)
    ]
    page.text(
        bars(items, width=page.width, unicode=page.unicode, show=lambda v: show(_whole(v)))
    )


def _columns(page: Human, by: str, rows: list[dict[str, Any]], metric: str, tz: tzinfo) -> bool:
    """Draw a chart with time from left to right; return False if the time range is too long."""
    from rmqctl.output.plot import columns
    from rmqctl.store.stats import TIME_STEPS

    # The chart has one column per step of time, so a long range cannot be drawn.
    step = TIME_STEPS[by]
    values = {row["time"]: row[metric] or 0 for row in rows if isinstance(row["time"], int)}
    if not values:
        return False
    first, last = min(values), max(values)
    if (last - first) // step >= _MAX_COLUMNS:
        return False
    # Days differ in length in a zone with summer time: use the nearest place.
    series = [0.0] * (round((last - first) / step) + 1)
    for when, value in values.items():
        series[round((when - first) / step)] += value
    # Label the axis like the table labels this metric.
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
    """Return ``value``, as an int if it is integral, so that it is formatted as a count or size."""
    return int(value) if value == int(value) else value


# -- counting ------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class StatsSource:
    """The log files of a store that will be read. ``store``: its name; ``opened``: the store."""

    store: str
    files: list[StoreFile]
    opened: Store

    @classmethod
    def choose(cls, out: Output, store: Store, query: Query, name: str | None = None) -> Self:
        """Return the log files that may contain messages of the time range in ``query``. ``name``:
        the store's name if several stores are counted.
        """
        from rmqctl.store.stats import choose_files

        files = choose_files(store, query)
        for trouble in store.log_troubles:
            out.warn(f"{trouble.path}: {trouble.reason}")
        left = len(store.log.files) - len(files)
        if left:
            where = "" if name is None else f"{name}: "
            out.debug(f"{where}{left} log files are outside the given time range")
        return cls(name or store.root, files, store)

    @property
    def size(self) -> int:
        return sum(file.size for file in self.files)


def range_size(sources: Sequence[StatsSource], partitions: int | None, jobs: int) -> int:
    """Return the size in bytes of the ranges into which each log is divided. ``partitions``: number
    of ranges of the largest log (None: chosen for ``jobs`` workers).
    """
    from rmqctl.store.stats import range_size_for

    logs = [source.files for source in sources]
    if partitions is not None:
        logs = [max(sources, key=lambda source: source.size).files]
    return range_size_for(logs, jobs, partitions)


def count(out: Output, sources: Sequence[StatsSource], query: Query, spark: SparkOptions, *,
          together: bool = False) -> list[Aggregate]:
    """Count the messages of each store, and warn about data that was not counted. ``together``:
    whether to return one sum for all stores.
    """
    from rmqctl.output.progress import Progress
    from rmqctl.store.log.ranges import RANGE_SIZE, Threads
    from rmqctl.store.stats import collect_many

    size = sum(source.size for source in sources)
    logs = [source.files for source in sources]
    jobs, partitions = spark.workers, spark.partitions
    with spark.pool(out, size) as pool:
        local = isinstance(pool, Threads)
        fine = RANGE_SIZE if local and partitions is None else range_size(sources, partitions,
                                                                           pool.jobs)
        # A single thread continues at the end of the last range, without searching for borders.
        plain = local and partitions is None
        # Spark returns all results at once, so its own bar shows the finished tasks.
        with out.progress("counting", size) if local else Progress() as progress:
            total = [size]

            def again(more: int) -> None:
                total[0] += more
                progress.total(total[0])
                progress.label("counting the large groups")
                out.debug("too many groups for memory: reading the log again for the large ones")

            sums = collect_many(logs, query, jobs, range_size=fine,
                                progress=progress.advance, pool=None if plain else pool,
                                again=again, together=together)
    for number, aggregate in enumerate(sums):
        named = len(sources) > 1 and not together
        warn(out, aggregate, sources[number].store if named else None)
    return sums


def lacking(out: Output, sources: Sequence[StatsSource],
            sums: Sequence[Aggregate]) -> list[StoreGaps]:
    """Return what is missing from the figures of each store, and warn about it. If ``sums`` is a
    single sum for several stores, return a single element.
    """
    from rmqctl.checks.preflight.missing import MissingMessages, missing
    from rmqctl.commands.shared.store_warnings import lost_texts
    from rmqctl.store.stats import unused

    groups = [[source] for source in sources] if len(sums) == len(sources) else [sources]
    lacks = []
    for group, aggregate in zip(groups, sums, strict=True):
        gaps = any(any(source.opened.log.gaps()) for source in group)
        holes = gaps or (not aggregate.unread and aggregate.bytes_zero > sum(
            unused(source.files) for source in group))
        damaged = holes or bool(aggregate.bytes_damaged or aggregate.bodies_damaged)
        losses = [missing(source.opened, damaged=damaged) for source in group]
        lost = MissingMessages(sum(loss.known_lost or 0 for loss in losses),
                               sum(loss.in_repairs for loss in losses),
                               sum(loss.discarded for loss in losses))
        where = f"{group[0].store}: " if len(groups) > 1 else ""
        if holes:
            out.warn(f"{where}the log has a gap (zeros or a missing file) between messages; "
                     "`rmqctl verify` shows where")
        for text in lost_texts(lost):
            out.warn(where + text)
        lacks.append(StoreGaps(lost, holes))
    return lacks


def pieces(sources: Sequence[StatsSource], spark: SparkOptions) -> tuple[
        str, str, list[dict[str, Any]]]:
    """Return what would be read: (the engine, the reason for choosing it, rows). Each row has the
    number of files, ranges and bytes of one store. The logs are read only to find the end of their
    data.
    """
    from rmqctl.store.log.ranges import RANGE_SIZE, split

    jobs, partitions = spark.workers, spark.partitions
    name, why = chosen_engine(spark.engine, spark.master, sum(source.size for source in sources))
    if name == "spark":
        from rmqctl.ext.spark.session import workers_of

        jobs = workers_of(spark.master) or jobs
    local = name == "local" and partitions is None
    fine = RANGE_SIZE if local else range_size(sources, partitions, jobs)
    rows = []
    for source in sources:
        parts = list(split(source.files, fine))
        rows.append({"store": source.store, "files": len(source.files), "partitions": len(parts),
                      "bytes": sum(part.end - part.start for part in parts),
                      "file_bytes": source.size})
    return name, why, rows
