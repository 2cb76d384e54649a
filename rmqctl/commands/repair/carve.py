"""``rmqctl carve``: carve messages out of any bytes, by content alone."""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rmqctl.commands.app.option_groups import pick
from rmqctl.commands.shared.deferred_signals import DeferredSignals
from rmqctl.commands.shared.engine_options import EngineOptions, new_settings
from rmqctl.commands.shared.message_options import (
    BRIEF,
    IN_LOG_ORDER,
    NARROW,
    MessageOptions,
    SelectOptions,
)
from rmqctl.commands.shared.messages import message_render
from rmqctl.commands.shared.options import LayoutOptions, Out
from rmqctl.errors import ExitCode, UsageError
from rmqctl.output import Output
from rmqctl.output.units import count_text, size_text
from rmqctl.phrases import Phrase

if TYPE_CHECKING:
    from rmqctl.output import Human
    from rmqctl.repair.carve.carve import CarveOptions, CarveTally, Carving
    from rmqctl.repair.carve.sources import Input
    from rmqctl.repair.carve.store import StoreMaker
    from rmqctl.store.projection import Projection

_WHERE_FROM = ("source", "source_offset", "placement")
_DUPLICATE = "duplicate"
_MAX_SKIPPED = 5


def command(
    *,
    paths: Annotated[list[str], typer.Argument(
        metavar="PATH", show_default=False,
        help="Files, disk images, block devices, or folders with all files below them.")],
    out_store: Annotated[str | None, typer.Option(
        "--out", metavar="NEWSTORE",
        help="Write the messages to a new store here instead of listing them.")] = None,
    summary: Annotated[bool, typer.Option(
        "--summary", help="Only count the messages.")] = False,
    misplaced: Annotated[bool, typer.Option(
        "--misplaced/--no-misplaced", help="With --out: also write misplaced messages to the new "
                                           "store.")] = True,
    doubtful: Annotated[bool, typer.Option(
        "--doubtful/--no-doubtful", help="With --out: also write messages that may be part of a "
                                         "damaged message's body.")] = True,
    embedded: Annotated[bool, typer.Option(
        "--embedded", help="Also show intact records inside damaged ones (mostly copies in their "
                           "bodies).")] = False,
    damaged: Annotated[bool, typer.Option(
        "--damaged", help="Also show records with a body CRC mismatch.")] = False,
    duplicates: Annotated[bool, typer.Option(
        "--duplicates", help="Also show duplicates.")] = False,
    select: Annotated[SelectOptions, pick(IN_LOG_ORDER)],
    show: MessageOptions,
    engine: Annotated[EngineOptions, pick("version")],
    layout: Annotated[LayoutOptions, pick("commitlog_file_size consumequeue_file_size "
                                           "index_slots index_max broker_conf")],
    out: Out,
) -> None:
    """Carve messages out of damaged files, disk images, devices or folders.

    Recognizes records by magic, lengths and body CRC, anywhere and in any order; bytes inside an
    intact record are ignored. Each message is listed once with its source, offset and placement:
    in-place, doubtful (maybe part of a damaged message's body) or misplaced (other messages
    contradict its physical offset). --out writes them to a new store at their physical and queue
    offsets, or to one store per log. Exit code 1 if no message was found, or if there is damage.

        rmqctl carve disk.img -o jsonl > messages.jsonl
        rmqctl carve disk.img --fields source_offset,placement,topic,body -o csv
        rmqctl carve broken/commitlog --out NEWSTORE
    """
    from rmqctl.repair.carve.carve import DOUBTFUL, MISPLACED, CarveOptions, Carving

    # Refuse options that cannot be combined.
    _check(out_store, paths, summary=summary, misplaced=misplaced, doubtful=doubtful,
           damaged=damaged, duplicates=duplicates, redact=show.redact)
    projection = show.projection(out, (*_WHERE_FROM, *([_DUPLICATE] if duplicates else ())))
    # Translate the options into a selection of records.
    left_out = {placement for placement, is_in in ((MISPLACED, misplaced), (DOUBTFUL, doubtful))
                if not is_in}
    conditions = tuple(select.selection(show.tz, show.decoding).in_log())
    wanted = CarveOptions(conditions, embedded, damaged, duplicates)
    maker: StoreMaker | None = None
    # Check source and target before the first byte is read.
    sources = _inputs(out, paths)
    if out_store is not None:
        maker = _maker(out_store, sources, engine.version, layout)
    total = sum(source.size for source in sources)
    # Read the sources once: into a new store, as a summary, or as a list.
    with out.progress("carving", total) as progress, Carving(
        sources, wanted, report=out.warn, advance=progress.advance
    ) as carving:
        if maker is not None:
            _into_store(out, carving, maker, left_out)
        elif summary:
            for _ in carving.pages():
                pass
            document = carving.tally.as_dict()
            out.document(document, lambda page: _show(page, document))
        else:
            _list(out, carving, projection, show.tz, duplicates=duplicates)
    show.tell_undecoded(out)
    _end(out, carving.tally, wanted, maker, left_out)


def _check(out_store: str | None, paths: list[str], *, summary: bool, misplaced: bool,
           doubtful: bool, damaged: bool, duplicates: bool, redact: bool) -> None:
    if out_store is None:
        if not misplaced:
            raise UsageError("--no-misplaced requires --out; in a listing, see the field "
                             "`placement`")
        if not doubtful:
            raise UsageError("--no-doubtful requires --out; in a listing, see the field "
                             "`placement`")
        return
    if summary or damaged or duplicates:
        raise UsageError("--out writes each intact message once and cannot be combined with "
                         "--summary, --damaged or --duplicates")
    if redact:
        raise UsageError("--out writes messages unchanged and cannot be combined with --redact")
    target = os.path.realpath(out_store)
    for path in paths:
        inside = os.path.realpath(path)
        if target == inside or target.startswith(inside.rstrip(os.sep) + os.sep):
            raise UsageError(f"--out {out_store} is inside {path}, which is to be carved")


def _inputs(out: Output, paths: list[str]) -> list[Input]:
    """Return the files to carve; warn about skipped files."""
    from rmqctl.repair.carve.sources import inputs

    skipped: list[str] = []
    sources = list(inputs(paths, lambda path, why: skipped.append(f"{path}: {why}")))
    for text in skipped[:_MAX_SKIPPED]:
        out.warn(Phrase("{text}; skipped", text=text))
    if len(skipped) > _MAX_SKIPPED:
        out.warn(Phrase("and {some} more skipped", some=len(skipped) - _MAX_SKIPPED))
    return sources


def _maker(root: str, sources: list[Input], version: str | None,
           layout: LayoutOptions) -> StoreMaker:
    from rmqctl.repair.carve.store import StoreMaker, log_file_size

    sizes = layout.over_conf({"version": version, "lmq": True, "multi_dispatch": True})
    if sizes["commitlog_file_size"] is None:
        sizes["commitlog_file_size"] = log_file_size(sources)
    is_sized = sizes["commitlog_file_size"] is not None
    # Records that name rows in other queues get them, whatever the options of this store.
    return StoreMaker(root, new_settings(**sizes), is_sized=is_sized)


def _list(out: Output, carving: Carving, projection: Projection, tz: Any, *,
          duplicates: bool) -> None:
    more = [*_WHERE_FROM, *([_DUPLICATE] if duplicates else [])]
    named = not set(more).isdisjoint(projection.fields)
    columns = projection.names if named else [*projection.names, *more]
    people = [*_WHERE_FROM, *projection.names] if projection.fields in (BRIEF, NARROW) else columns
    rows = _rows(carving, projection, columns, more)
    out.rows(rows, people, empty=Phrase("no messages"), render=message_render(tz))


def _rows(carving: Carving, projection: Projection, columns: Sequence[str],
          more: Sequence[str]) -> Iterator[Mapping[str, Any]]:
    """Yield a row with the fields ``columns``, in this order, for each carved message. The fields
    ``more`` describe where the message was found; all others are fields of the message.
    """
    own = replace(projection, fields=[name for name in projection.fields if name not in more])
    for carved in carving.pages():
        fixed = {"source": carving.inputs[carved.source].path, "placement": carved.placement,
                 _DUPLICATE: carved.duplicate}
        for row, offset in zip(own.rows(carved.page), carved.offset.tolist(), strict=True):
            row |= {name: fixed.get(name, offset) for name in columns if name in more}
            yield {name: row.pop(name) for name in columns} | row


def _into_store(out: Output, carving: Carving, maker: StoreMaker, left_out: set[str]) -> None:
    with maker, DeferredSignals() as signals:
        for carved in carving.pages():
            signals.check()
            if carved.placement not in left_out:
                maker.take(carved)
        if len(maker):
            with out.progress("writing", maker.size) as progress:
                maker.write(carving, progress.advance, signals.check)
    counts = {**carving.tally.as_dict(), **maker.written.as_dict()}
    following = [f"rmqctl verify {shlex.quote(store)}" for store in maker.written.stores
                 if carving.tally.given]

    def page(page: Human) -> None:
        _show(page, counts)
        if following:
            page.heading("What next")
            for command in following:
                page.text(command)

    out.document({**counts, "next": following}, page)


def _show(page: Human, counts: Mapping[str, Any]) -> None:
    worded = {name.replace("_", " "): value for name, value in counts.items()
              if value is not None and name != "logs"}
    page.pairs({name: value if isinstance(value, str) else size_text(value) if "bytes" in name
                else count_text(value) for name, value in worded.items()})


def _end(out: Output, tally: CarveTally, wanted: CarveOptions, maker: StoreMaker | None,
         left_out: set[str]) -> None:
    """Report the result, and return the exit code."""
    from rmqctl.repair.carve.store import remarks

    for text in remarks(tally, wanted, None if maker is None else maker.written, left_out):
        out.note(text)
    if maker is not None:
        for text in maker.reasons():
            out.warn(Phrase("rejected: {text}", text=text))
        if maker.written.vanished:
            out.warn(Phrase("{some} messages disappeared before they were written: another process "
                            "is changing the source", some=maker.written.vanished))
    if tally.unreadable_bytes or tally.unreadable_sources:
        raise typer.Exit(int(ExitCode.IO))
    lost = maker is not None and (maker.written.refused or maker.written.vanished)
    if tally.is_damaged or not tally.given or lost:
        raise typer.Exit(int(ExitCode.FINDINGS))
