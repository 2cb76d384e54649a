"""``rmqctl diff``: compare two stores, message by message."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from datetime import UTC
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from rmqctl.commands import STORE_VARIABLE
from rmqctl.commands.app import typed
from rmqctl.commands.app.option_groups import pick
from rmqctl.commands.shared.options import LayoutOptions, ListedOut, Zone, complete_folders
from rmqctl.commands.shared.store_warnings import warn_if_held, warn_of_log
from rmqctl.commands.shared.summed import MAX_LISTED
from rmqctl.errors import ExitCode, UsageError
from rmqctl.output.units import count_text, counted, size_text
from rmqctl.parse_values import show_times_in
from rmqctl.phrases import Phrase, some_of

if TYPE_CHECKING:
    from rmqctl.checks.diff.diff import Diff
    from rmqctl.checks.diff.differences import Difference, DifferenceRun
    from rmqctl.output import Output
    from rmqctl.output.human import Human
    from rmqctl.store import Store as OpenedStore

_MAX_GROUPS = 5
_MAX_TOPICS = 3
_MAX_TERMS = 4
_OF_A_MEMBER = ("member", "store", "entries", "terms", "committed", "lacks", "damaged")
_BRIEF = ("kind", "where", "queue", "fields", "detail")
_STYLES = {"different": "warn", "queue": "warn", "config": "dim"}


def command(
    *,
    a: Annotated[str, typer.Argument(
        metavar="A", envvar=STORE_VARIABLE, autocompletion=complete_folders, show_default=False,
        help="The first store (its root).")],
    b: Annotated[str, typer.Argument(
        metavar="B", autocompletion=complete_folders, show_default=False,
        help="The second store.")],
    c: Annotated[str | None, typer.Argument(
        metavar="C", autocompletion=complete_folders, show_default=False,
        help="A third member of a DLedger group; then only entries are compared.")] = None,
    by: Annotated[Literal["auto", "physical", "queue"], typer.Option(
        "--by", help="Pair by physical offset (slave, backup) or by queue offset (rebuilt, "
                     "migrated store); auto: detect.")] = "auto",
    whole: Annotated[bool, typer.Option(
        "--whole", help="Also count configuration files, and messages that only one store still "
                        "has because the other starts later.")] = False,
    strict: Annotated[bool, typer.Option(
        "--strict", help="With --by queue, also compare physical offset, store host and record "
                         "version.")] = False,
    view: Annotated[Literal["disk", "broker"], typer.Option(
        "--view", help="disk: everything on disk, also after damage. broker: what a broker would "
                       "keep at startup.")] = "disk",
    max_differences: Annotated[int, typer.Option(
        "--limit", "--max-differences", metavar="N", min=0,
        help="List at most N differences; all are counted.")] = 1000,
    layout: Annotated[LayoutOptions, pick("commitlog_dirs")],
    commitlog_dirs_b: Annotated[list[str] | None, typer.Option(
        "--commitlog-dir-b", metavar="DIR", rich_help_panel="Store layout",
        help="--commitlog-dir for store B, if it differs; repeatable.")] = None,
    sizes: Annotated[LayoutOptions, pick("commitlog_file_size consumequeue_file_size "
                                          "broker_conf")],
    tz: Zone = UTC,
    out: ListedOut,
) -> None:
    """Compare two stores: missing, extra and different messages.

    Compares messages byte for byte where the logs overlap. Damage in either log is listed and
    skipped. Messages after the end of the other log count as missing there; messages before its
    start have expired and are only noted. Also compares queue ranges, configuration and checkpoint.
    For members of a DLedger group, entries, terms and commit positions are compared. Exit code 1 if
    anything differs; configuration and consumer offsets count only with --whole.

        rmqctl diff /data/master/store /data/slave/store
        rmqctl diff /backup/store /data/store --by queue -o json
        rmqctl diff /data/n0/store /data/n1/store /data/n2/store
    """
    from rmqctl.checks.diff.diff import Diff, DiffOptions
    from rmqctl.store import Store as OpenedStore

    show_times_in(tz)
    if strict and by == "physical":
        raise UsageError("--strict requires --by queue: by physical offset, every byte is compared "
                         "anyway")
    with ExitStack() as stack:
        left = stack.enter_context(OpenedStore.open(a, layout.folders, sizes.sizes))
        folders = commitlog_dirs_b or layout.folders
        right = stack.enter_context(OpenedStore.open(b, folders, sizes.sizes))
        third = None if c is None else stack.enter_context(
            OpenedStore.open(c, folders, sizes.sizes))
        for store, name in ((left, "a"), (right, "b"), (third, "c")):
            if store is not None:
                _warn(out, store, name)
        with out.progress("diff") as progress:
            options = DiffOptions(by, whole, strict, max_differences, view)
            run = Diff(left, right, options, progress.advance, third)
            progress.total(run.prepare())
            run.run()
    _show(out, run)
    if not run.equal:
        raise typer.Exit(int(ExitCode.FINDINGS))


def _warn(out: Output, store: OpenedStore, name: str) -> None:
    warn_of_log(out, store)
    warn_if_held(out, store.lock, f"store {name}")


def _show(out: Output, run: Diff) -> None:
    from rmqctl.checks.diff.differences import COLUMNS

    differences = run.differences
    if differences.total > len(differences.listed):
        more = count_text(differences.total - len(differences.listed))
        out.warn(f"differences counted but not listed: {more} (--limit)")
    rows = [difference.as_dict() for difference in differences.listed]
    following = _next(run)
    document = run.as_dict() | {"next": [] if following is None else [following]}
    out.listing(document, lambda page: _page(page, run, rows), rows=rows, columns=COLUMNS)
    out.conclude(*_first_line(run))


def _first_line(run: Diff) -> tuple[str, str]:
    """Return (the verdict in one line, the style of this line)."""
    if not run.equal:
        return counted(run.differences.total, "difference"), "bad"
    groups = len(run.summary.get("offsets", ()))
    if groups:  # a replica is usually behind, so offsets are differences only with --whole
        return Phrase("no differences in messages; the consumer offsets of {groups} differ",
                      groups=counted(groups, "group")), "warn"
    return "no differences", "good"


def _page(page: Human, run: Diff, rows: list[dict[str, Any]]) -> None:
    page.text(*_first_line(run))
    if run.impact is not None:
        page.text(run.impact.in_words())
    if run.remarks:
        page.text("\n".join(run.remarks), "warn")
    if rows:
        page.blank()
        _show_differences(page, run.differences.listed)
    summary = run.summary
    if summary["entries"] is not None:
        page.heading("Members")
        page.table(map(_member, *zip(*summary["entries"]["members"].items(), strict=True)),
                   _OF_A_MEMBER)
    page.heading("Summary")
    if run.c is not None:
        page.pairs({"entries": _entries(summary["entries"])})
    else:
        page.pairs(_summary(summary))
    following = _next(run)
    if following is not None:
        page.heading("What next")
        page.text(following)


def _show_differences(page: Human, listed: Sequence[Difference]) -> None:
    """Show a table of differences. If there are many, each kind and topic gets only one row."""
    from rmqctl.checks.diff.differences import runs

    styles = {"kind": lambda value: _STYLES.get(value, "bad")}
    all_runs = list(runs(listed))
    if page.every or len(all_runs) <= MAX_LISTED:
        page.table(map(_brief, all_runs), _BRIEF, styles=styles)
        return
    groups: dict[tuple[str, str], list[Difference]] = {}
    for difference in listed:
        key = difference.kind, difference.topic or difference.file or ""
        groups.setdefault(key, []).append(difference)
    page.table([{
        "kind": kind, "count": len(alike), "topic": where,
        "queues": len({difference.queue_id for difference in alike}) if alike[0].topic else "",
        "offset": min((difference.physical_offset for difference in alike
                       if difference.physical_offset is not None), default=""),
        "fields": ", ".join(dict.fromkeys(
            name for difference in alike for name in difference.fields)),
    } for (kind, where), alike in groups.items()], styles=styles)
    page.text(Phrase("{what} in {lines:,} lines (--all lists each)", what=counted(
        len(listed), "difference"), lines=len(groups)), "dim")


def _member(name: str, has: dict[str, Any]) -> dict[str, Any]:
    terms = [f"{term['term']} from {term['first_index']}" for term in has["terms"][-_MAX_TERMS:]]
    return {"member": name, "store": f"{has['store']} ({has['node']})",
            "entries": "none" if has["last_index"] is None else
            f"{has['first_index']} to {has['last_index']}",
            "terms": ", ".join([*(["..."] if len(has["terms"]) > _MAX_TERMS else []), *terms]),
            "committed": "unknown" if has["committed_index"] is None else
            f"to {has['committed_index']}", "lacks": has["behind"] or "",
            "damaged": has["damaged"] or ""}


def _entries(entries: dict[str, Any]) -> str:
    same = (f"{count_text(entries['equal'])} equal in all, {count_text(entries['different'])} "
            "different")
    common = entries["common"]
    return same if common is None else (
        f"{same}; last common entry: {common['index']} of term {common['term']}, at "
        f"{common['offset']}")


def _summary(summary: dict[str, Any]) -> dict[str, str]:
    # Describe both stores before the differences, so that the numbers have a context.
    pairs = {}
    for name in ("a", "b"):
        store = summary[name]
        spans, size = store["damaged_spans"], size_text(store["bytes_damaged"])
        damage = f", {counted(spans, 'damaged range')} ({size})" if spans else ""
        pairs[name] = (
            f"{store['store']}: {count_text(store['messages'])} messages, physical offsets "
            f"{store['min_phy_offset']} to {store['max_phy_offset']}{damage}"
        )
    pairs["paired by"] = {"physical": "physical offset", "queue": "topic, queue and queue offset"}[
        summary["by"]
    ]
    # Each kind of difference has one line.
    pairs["messages"] = ", ".join(
        f"{count_text(summary[name])} {words}"
        for name, words in (("equal", "equal"), ("different", "different"),
                            ("missing_in_a", "missing in a"), ("missing_in_b", "missing in b"))
    )
    queues = summary["queues"]
    pairs["consumequeues"] = (
        f"{queues['compared']} compared, {queues['different']} with different ranges"
    )
    pairs["configuration"] = _config(summary["config"])
    pairs["committed offsets"] = _offsets(summary["offsets"])
    pairs["checkpoints"] = ", ".join(summary["checkpoint"]["different"]) or "equal"
    pairs["epochs"] = _epochs(summary["epochs"])
    # Only two DLedger logs have entries to compare; empty lines are dropped.
    if summary["entries"] is not None:
        pairs["entries"] = _entries(summary["entries"])
    return {name: text for name, text in pairs.items() if text}


def _next(run: Diff) -> str | None:
    """Return the command that shows more about the differences; None if nothing differs."""
    if run.following is None:
        return None
    name, words = run.following
    return typed.other(*words, second=name != "a")


def _config(counts: dict[str, Any]) -> str:
    parts = [f"{words} {', '.join(counts[name])}" for name, words in (
        ("different", "different:"), ("only_in_a", "only in a:"), ("only_in_b", "only in b:"))
        if counts[name]]
    if not parts:
        return f"{counts['same']} files, all equal" if counts["same"] else ""
    return "; ".join(parts)


def _offsets(groups: list[dict[str, Any]]) -> str:
    """Return a text like ``differ: billing, audit`` about ``groups``; "" if the list is empty."""
    if not groups:
        return ""
    names = [group["group"] for group in groups]
    return Phrase("differ: {names}", names=some_of(names, _MAX_GROUPS))


def _epochs(epochs: dict[str, Any] | None) -> str:
    if epochs is None:
        return ""
    have = ", ".join(f"{name} has {len(epochs[name])}" for name in "ab")
    point = epochs["consistent_point"]
    upto = "nothing" if point is None else f"up to {point}"
    return f"{have}, the first {epochs['common']} are equal; same log: {upto}"


def _brief(run: DifferenceRun) -> dict[str, Any]:
    """Return the table row for a run of one or more consecutive differences of one kind."""
    first, last = run.first, run.last
    where = first.file or ("" if first.physical_offset is None else str(first.physical_offset))
    if run.count > 1 and first.physical_offset is not None:
        where += f" to {run.end}"
    if first.physical_offset_b is not None:
        where += f" / {first.physical_offset_b}"
    topics = sorted({topic for topic, _ in run.queues if topic is not None})
    if len(run.queues) > 1:
        queue = f"{counted(len(run.queues), 'queue')} of {', '.join(topics[:_MAX_TOPICS])}" + (
            f" and {len(topics) - _MAX_TOPICS} more topics" if len(topics) > _MAX_TOPICS else "")
    else:
        queue = "" if first.topic is None else f"{first.topic}/{first.queue_id}" + (
            f" #{first.queue_offset}" if first.queue_offset is not None else "") + (
            f" to #{last.queue_offset}" if run.count > 1 else "")
    detail = first.detail if run.count == 1 else counted(run.count, "message") + (
        f"; the first: {first.detail}" if first.detail else "")
    return {"kind": first.kind, "where": where, "queue": queue, "fields": ", ".join(first.fields),
            "detail": detail}
