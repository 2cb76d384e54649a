"""``rmqctl carve``: messages out of any bytes, by content alone."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rmqctl.commands.shared.deferred_signals import Gently
from rmqctl.commands.shared.engine_options import BrokerVersion
from rmqctl.commands.shared.filters import Key, Tag, Where, conditions
from rmqctl.commands.shared.messages import BRIEF, Fields, projection
from rmqctl.commands.shared.options import (
    Body,
    CommitlogFileSize,
    ConsumequeueFileSize,
    Decompress,
    IndexMax,
    IndexSlots,
    NoProgress,
    OutputFormat,
    Queue,
    Quiet,
    Since,
    Topic,
    Until,
    Verbose,
    Zone,
    open_output,
)
from rmqctl.commands.shared.parsing import parse_time_range
from rmqctl.errors import ExitCode, UsageError
from rmqctl.output import Output

if TYPE_CHECKING:
    from rmqctl.output import Human
    from rmqctl.repair.carve.carve import Carving, Tally, Wanted
    from rmqctl.repair.carve.sources import Input
    from rmqctl.repair.carve.store import StoreMaker
    from rmqctl.store.projection import Projection

NAME = ("carve",)
EFFECT = "writes-new"

_WHERE_FROM = ("source", "source_offset", "placement")
_DUPLICATE = "duplicate"
_SKIPPED = 5


def command(
    paths: Annotated[
        list[str],
        typer.Argument(
            metavar="PATH",
            help="Files, disk images, block devices, or folders with all files below them.",
            show_default=False,
        ),
    ],
    out_store: Annotated[
        str | None,
        typer.Option(
            "--out", metavar="NEWSTORE",
            help="Write the messages into a new store here instead of listing them.",
        ),
    ] = None,
    summary: Annotated[
        bool, typer.Option("--summary", help="Only count what is there.")
    ] = False,
    misplaced: Annotated[
        bool,
        typer.Option(
            "--misplaced", help="With --out: misplaced messages go into the new store too."
        ),
    ] = False,
    embedded: Annotated[
        bool,
        typer.Option(
            "--embedded",
            help="Also intact records inside of damaged ones: copies in their bodies, mostly.",
        ),
    ] = False,
    damaged: Annotated[
        bool,
        typer.Option("--damaged", help="Also records whose body does not match its CRC."),
    ] = False,
    duplicates: Annotated[
        bool, typer.Option("--duplicates", help="Also what is found a second time.")
    ] = False,
    topic: Topic = None,
    queue: Queue = None,
    since: Since = None,
    until: Until = None,
    tag: Tag = None,
    key: Key = None,
    where: Where = None,
    fields: Fields = None,
    body: Body = "auto",
    decompress: Decompress = False,
    tz: Zone = "UTC",  # type: ignore[assignment]
    broker_version: BrokerVersion = None,
    commitlog_file_size: CommitlogFileSize = None,
    consumequeue_file_size: ConsumequeueFileSize = None,
    index_slots: IndexSlots = None,
    index_max: IndexMax = None,
    output: OutputFormat = None,
    quiet: Quiet = 0,
    verbose: Verbose = 0,
    no_progress: NoProgress = False,
) -> None:
    """Get messages out of any bytes: damaged files, disk images, free space, whole folders.

    A record proves itself by its magic, its lengths and the CRC of its body, wherever it lies;
    what lies in the body of an intact record is never taken for one. Each message is given once,
    with its source, its place there and its placement: in-place, or misplaced where its physical
    offset does not fit what surrounds it. With --out they are written into a new store, in the
    order of their log. The exit code is 1 where nothing was found or damage was seen.

        rmqctl carve disk.img -o jsonl > messages.jsonl

        rmqctl carve broken/commitlog --out NEWSTORE
    """
    from rmqctl.repair.carve.carve import Carving, Wanted
    from rmqctl.store.query.select import Selection

    out = open_output(output, quiet, verbose, no_progress)
    _check(out_store, paths, summary=summary, misplaced=misplaced, damaged=damaged,
           duplicates=duplicates)  # fmt: skip
    made = projection(out, fields, body, decompress)
    begin, end = parse_time_range(since, until, tz=tz)
    found = Selection(since=begin, until=end, tag=tag, key=key,
                      where=conditions(where, tz)).conditions()  # fmt: skip
    wanted = Wanted((*_queue(topic, queue), *found), embedded, damaged, duplicates)
    maker: StoreMaker | None = None
    sources = _inputs(out, paths)
    if out_store is not None:
        maker = _maker(out_store, sources, broker_version=broker_version,
                       commitlog_file_size=commitlog_file_size,
                       consumequeue_file_size=consumequeue_file_size, index_slots=index_slots,
                       index_max=index_max)  # fmt: skip
    total = sum(one.size for one in sources)
    with out.progress("carving", total) as progress, Carving(
        sources, wanted, report=out.warn, advance=progress.advance
    ) as carving:
        if maker is not None:
            _into_store(out, carving, maker, misplaced=misplaced)
        elif summary:
            for _ in carving.found():
                pass
            document = carving.tally.as_dict()
            out.document(document, lambda page: _show(page, document))
        else:
            _list(out, carving, made, tz, duplicates=duplicates)
    _end(out, carving.tally, wanted, maker)


def _check(out_store: str | None, paths: list[str], *, summary: bool, misplaced: bool,
           damaged: bool, duplicates: bool) -> None:
    if out_store is None:
        if misplaced:
            raise UsageError("--misplaced goes with --out; without it they are listed anyway")
        return
    if summary or damaged or duplicates:
        raise UsageError("--out takes each intact message once: neither --summary, --damaged nor "
                         "--duplicates goes with it")  # fmt: skip
    target = os.path.realpath(out_store)
    for path in paths:
        inside = os.path.realpath(path)
        if target == inside or target.startswith(inside.rstrip(os.sep) + os.sep):
            raise UsageError(f"--out {out_store} lies in {path}, which is to be carved")


def _queue(topic: str | None, queue: int | None) -> Iterator[Any]:
    from rmqctl.store.query.conditions import Condition

    if topic is not None:
        yield Condition("topic", "=", topic)
    if queue is not None:
        yield Condition("queue_id", "=", queue)


def _inputs(out: Output, paths: list[str]) -> list[Input]:
    """The files to carve; what is left out of folders is told."""
    from rmqctl.repair.carve.sources import inputs

    skipped: list[str] = []
    found = list(inputs(paths, lambda path, why: skipped.append(f"{path}: {why}")))
    for text in skipped[:_SKIPPED]:
        out.warn(f"{text}; left out")
    if len(skipped) > _SKIPPED:
        out.warn(f"and {len(skipped) - _SKIPPED} more were left out")
    return found


def _maker(root: str, sources: list[Input], **given: Any) -> StoreMaker:
    from rmqctl.commands.shared.engine_options import new_settings
    from rmqctl.repair.carve.store import StoreMaker, log_file_size

    version = given.pop("broker_version")
    if given["commitlog_file_size"] is None:
        given["commitlog_file_size"] = log_file_size(sources)
    # Records that name rows in other queues had them, whatever this store is made for.
    settings = new_settings(version=version, lmq=True, multi_dispatch=True, **given)
    return StoreMaker(root, settings)


def _list(out: Output, carving: Carving, made: Projection, tz: Any, *, duplicates: bool) -> None:
    from rmqctl.output.units import time_text

    def worded(millis: Any) -> str:
        return time_text(millis, tz)

    rows = _rows(carving, made, duplicates=duplicates)
    columns = [*made.names, *_WHERE_FROM, *([_DUPLICATE] if duplicates else [])]
    brief = made.fields is BRIEF
    out.rows(rows, [*_WHERE_FROM, *made.names] if brief else columns, empty="no messages", render={
        "store_timestamp": worded, "born_timestamp": worded, "keys": " ".join})  # fmt: skip


def _rows(carving: Carving, made: Projection, *, duplicates: bool) -> Iterator[Mapping[str, Any]]:
    for found in carving.found():
        source, placement = carving.inputs[found.source].path, found.placement
        for row, offset in zip(made.rows(found.page), found.offset.tolist(), strict=True):
            row["source"], row["source_offset"], row["placement"] = source, offset, placement
            if duplicates:
                row[_DUPLICATE] = found.duplicate
            yield row


def _into_store(out: Output, carving: Carving, maker: StoreMaker, *, misplaced: bool) -> None:
    from rmqctl.repair.carve.carve import MISPLACED

    with maker, Gently() as gently:
        for found in carving.found():
            gently.check()
            if misplaced or found.placement != MISPLACED:
                maker.take(found)
        if len(maker):
            with out.progress("writing", maker.size) as progress:
                maker.write(carving, progress.advance, gently.check)
    document = {**carving.tally.as_dict(), **maker.written.as_dict()}
    out.document(document, lambda page: _show(page, document))


def _show(page: Human, counts: Mapping[str, Any]) -> None:
    from rmqctl.output.units import count_text, size_text

    worded = {name.replace("_", " "): value for name, value in counts.items() if value is not None}
    page.pairs({name: value if isinstance(value, str) else size_text(value) if "bytes" in name
                else count_text(value) for name, value in worded.items()})


def _end(out: Output, tally: Tally, wanted: Wanted, maker: StoreMaker | None) -> None:
    """What is to be said in the end, and the exit code."""
    for text in _remarks(tally, wanted, maker):
        out.note(text)
    if maker is not None:
        for text in maker.reasons():
            out.warn(f"refused: {text}")
        if maker.written.vanished:
            out.warn(f"{maker.written.vanished} messages were no longer there when they were to "
                     "be written: something changes the source")  # fmt: skip
    if tally.unreadable_bytes or tally.unreadable_sources:
        raise typer.Exit(int(ExitCode.IO))
    lost = maker is not None and (maker.written.refused or maker.written.vanished)
    if tally.is_damaged or not tally.given or lost:
        raise typer.Exit(int(ExitCode.FINDINGS))


def _remarks(tally: Tally, wanted: Wanted, maker: StoreMaker | None) -> Iterator[str]:
    listed = maker is None

    def hint(option: str, given: bool) -> str:
        return f" (--{option} lists them)" if listed and not given else ""

    if tally.breaks:
        yield f"{_many(tally.breaks, 'place')} where a log is broken off or interrupted"
    if tally.damaged:
        yield (f"{_many(tally.damaged, 'record')} with a body that does not match its CRC"
               f"{hint('damaged', wanted.damaged)}")
    if tally.embedded:
        how = "" if wanted.embedded else "; --embedded gives them"
        yield (f"{_many(tally.embedded, 'intact record')} inside of damaged ones, perhaps copies "
               f"in a body{how}")
    if tally.duplicates:
        yield (f"{_many(tally.duplicates, 'duplicate')} found"
               f"{hint('duplicates', wanted.duplicates)}")
    if maker is None:
        return
    if tally.counts.get("misplaced"):
        yield (f"{_many(tally.counts['misplaced'], 'misplaced message')} found (--misplaced writes "
               "them too; without --out they are listed)")
    if maker.written.messages:
        yield (f"config/topics.json of {maker.written.store} is as a new store has it: a broker "
               "does not let clients use topics it does not find there")
    if maker.written.renumbered:
        yield (f"{_many(maker.written.renumbered, 'message')} got new queue offsets, because "
               "others before them are missing")


def _many(count: int, what: str) -> str:
    return f"{count} {what}" if count == 1 else f"{count} {what}s"
