"""``rmqctl append``: many messages, from message objects in JSON lines."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rmqctl.commands.shared.deferred_signals import Gently
from rmqctl.commands.shared.engine_options import (
    AppendCrc,
    BrokerVersion,
    Cluster,
    ConsumequeueExt,
    DryRun,
    FlushMode,
    Lmq,
    Mapped,
    MultiDispatch,
    Preallocate,
    TransientPool,
    Warm,
    Watermark,
    settings_from,
)
from rmqctl.commands.shared.options import (
    CommitlogDirs,
    CommitlogFileSize,
    ConsumequeueFileSize,
    IndexMax,
    IndexSlots,
    NoProgress,
    OutputFormat,
    Quiet,
    Store,
    Verbose,
    open_output,
)
from rmqctl.commands.shared.reject_file import Kept
from rmqctl.errors import ExitCode, RefusedError, UsageError
from rmqctl.output import FLUSH, Output, Progress

if TYPE_CHECKING:
    from rmqctl.engine.input.append_stream import AppendSession, LineAppender, LineFault
    from rmqctl.engine.input.lines import LineReader
    from rmqctl.output import Human

NAME = ("append",)
EFFECT = "mutates"

_STREAMING = ("jsonl", "csv", "tsv")
_COLUMNS = ("line", "status", "physical_offset", "wrote_bytes", "msg_id", "queue_offset",
            "msg_num", "store_timestamp", "reason")
_NAMED = 20
_MANNERS = ("stop", "skip", "collect")


def command(
    store: Store,
    file: Annotated[
        str, typer.Argument(metavar="[FILE]", help="JSON lines; - is stdin.", show_default=False)
    ] = "-",
    collect: Annotated[
        str | None,
        typer.Argument(metavar="[COLLECT]", help="With --on-error collect: where bad lines go."),
    ] = None,
    as_recorded: Annotated[
        bool,
        typer.Option(
            "--as-recorded",
            help="Store each object as the record it was: times, hosts, topic, queue, flags and "
            "properties as given, nothing rewritten.",
        ),
    ] = False,
    replay: Annotated[
        bool,
        typer.Option(
            "--replay",
            help="The whole put path with the recorded clock and hosts: the same input gives a "
            "broker's bytes.",
        ),
    ] = False,
    batch: Annotated[
        bool,
        typer.Option(
            "--batch", help="Put neighbours that share topic, queue, times and hosts as one batch."
        ),
    ] = False,
    batch_size: Annotated[
        int, typer.Option("--batch-size", metavar="N", min=1, help="Most messages of a batch.")
    ] = 32,
    on_error: Annotated[
        str,
        typer.Option(
            "--on-error",
            metavar="stop|skip|collect FILE",
            help="What a bad line does: end the run, be left out, or be left out and kept in a "
            "new file named behind it.",
        ),
    ] = "stop",
    keep_queue_offsets: Annotated[
        bool,
        typer.Option(
            "--keep-queue-offsets",
            help="With --as-recorded: recorded queue offsets as they are, even where the queue "
            "does not go on there. Without it such messages are numbered anew.",
        ),
    ] = False,
    auto_create_topic: Annotated[
        bool,
        typer.Option(
            "--auto-create-topic",
            help="Enter topics that are not known into config/topics.json, as a broker does.",
        ),
    ] = False,
    flush: FlushMode = "async",
    mapped: Mapped = False,
    warm: Warm = False,
    preallocate: Preallocate = False,
    transient_pool: TransientPool = 0,
    cluster: Cluster = None,
    broker_version: BrokerVersion = None,
    lmq: Lmq = None,
    multi_dispatch: MultiDispatch = None,
    consumequeue_ext: ConsumequeueExt = None,
    append_crc: AppendCrc = None,
    disk_watermark: Watermark = None,
    dry_run: DryRun = False,
    commitlog_dir: CommitlogDirs = None,
    commitlog_file_size: CommitlogFileSize = None,
    consumequeue_file_size: ConsumequeueFileSize = None,
    index_slots: IndexSlots = None,
    index_max: IndexMax = None,
    output: OutputFormat = None,
    quiet: Quiet = 0,
    verbose: Verbose = 0,
    no_progress: NoProgress = False,
) -> int:
    """Put many messages into a store that no broker is running on.

    Each line is a message object as `rmqctl read -o jsonl` writes it; only topic and body are
    required. Without --replay or --as-recorded a message is put as if a client had just sent it.
    An object with a list "messages" is a batch. With -o jsonl (csv, tsv) every result is printed
    once its message is stored, with --flush sync once it is on the disk: what was printed is
    never lost. Other formats show a summary. Ctrl-C stops between two messages and flushes.

        rmqctl read OLD -o jsonl --body base64 | rmqctl append NEW --as-recorded
    """
    from rmqctl.engine.input.append_stream import LineAppender, converter, open_session
    from rmqctl.engine.input.lines import open_lines

    if warm and not mapped:
        raise UsageError("--warm is for memory maps: it goes with --mapped")
    if transient_pool and (mapped or flush == "sync"):
        raise UsageError("--transient-pool goes with neither --mapped nor --flush sync")
    if as_recorded + replay + batch * as_recorded > 1:
        raise UsageError("--as-recorded stores records as they are: neither --replay nor --batch "
                         "goes with it")  # fmt: skip
    out = open_output(output, quiet, verbose, no_progress)
    manner, file, kept = _manner(on_error, file, collect)
    if as_recorded:
        # A record that names its rows in other queues had them, whatever this store is made for.
        lmq = True if lmq is None else lmq
        multi_dispatch = True if multi_dispatch is None else multi_dispatch
    settings = settings_from(
        store, version=broker_version, cluster=cluster, lmq=lmq, multi_dispatch=multi_dispatch,
        consumequeue_ext=consumequeue_ext, append_properties_crc=append_crc, flush=flush,
        disk_watermark=disk_watermark, commitlog_file_size=commitlog_file_size,
        consumequeue_file_size=consumequeue_file_size, index_slots=index_slots,
        index_max=index_max, commitlog_dirs=commitlog_dir,
        broker_checks=False if replay else None, mapped=mapped, warm=warm,
        preallocate=preallocate, transient_pool=transient_pool,
    )  # fmt: skip
    with Gently() as gently, open_lines(file) as reader, Kept(kept) as keep:
        run = None
        try:
            with open_session(store, settings, commitlog_dir or (), dry_run=dry_run,
                              auto_create_topic=auto_create_topic,
                              keep_queue_offsets=keep_queue_offsets) as session:  # fmt: skip
                appender = LineAppender(
                    session, converter(settings, as_recorded=as_recorded, replay=replay),
                    stop=manner == "stop", obey_topics=not (as_recorded or replay),
                    batch=batch_size if batch else 0)  # fmt: skip
                run = _Run(out, session, appender, reader, gently, keep, dry_run=dry_run)
                run.go()
        finally:
            # Whatever ended it: what was written stays, and the user has to know of it.
            if run is not None:
                run.report()
    if run.stopped_by is not None:
        raise RefusedError(run.stopped_by)
    return ExitCode.FINDINGS if appender.tally.refused else ExitCode.OK


def _manner(on_error: str, file: str, collect: str | None) -> tuple[str, str, str | None]:
    """(what to do with a bad line, the input, the file for bad lines)."""
    manner, _, named = on_error.partition("=")
    if manner not in _MANNERS or (named and manner != "collect"):
        raise UsageError(f"--on-error is {', '.join(_MANNERS[:2])} or collect FILE, not "
                         f"{on_error!r}")  # fmt: skip
    if manner != "collect" or named:
        if collect is not None:
            raise UsageError(f"a second file, {collect!r}, goes with --on-error collect only")
        return manner, file, named or None
    if collect is None:
        # `append STORE --on-error collect FILE`: the only file is the one behind the option.
        if file == "-":
            raise UsageError("--on-error collect needs a file: --on-error collect FILE")
        return manner, "-", file
    return manner, file, collect


class _Run:
    """One run over the input: rows or a summary, notes, progress."""

    def __init__(self, out: Output, session: AppendSession, appender: LineAppender,
                 reader: LineReader, gently: Gently, keep: Kept, *, dry_run: bool) -> None:
        self._out, self._session, self._appender, self._reader = out, session, appender, reader
        self._gently, self._keep, self._dry_run = gently, keep, dry_run
        self._told = 0
        self.stopped_by: str | None = None
        """The line that ended the run, and why."""

    def go(self) -> None:
        for said in self._session.notes:
            self._out.note(said)
        from rmqctl.scan import malloc_tuning

        malloc_tuning.calm()
        with self._out.progress("appending", _size(self._reader.fd)) as progress:
            if self._out.format in _STREAMING:
                self._out.rows(self._rows(progress), _COLUMNS, empty="")
            else:
                for _ in self._rows(progress, make=False):
                    pass

    def _rows(self, progress: Progress, *, make: bool = True) -> Iterator[Any]:
        self._reader.wake = self._gently.wake
        groups = self._reader.groups()
        done = 0
        while not self._appender.stopped:
            lines = self._gently.wait_for(lambda: next(groups, None))
            if lines is None:
                break
            results = self._appender.put(lines)
            if make:
                for number, result in results:
                    yield {"line": number, **result.as_dict()}
                yield FLUSH
            for fault in self._appender.faults:
                self._tell(fault)
            if self._reader.waits:  # time enough to let consumers and queries see it
                self._session.engine.reput()
            progress.advance(self._reader.taken - done)
            done = self._reader.taken

    def _tell(self, fault: LineFault) -> None:
        if isinstance(fault.raw, bytes):
            self._keep.add(fault.raw)
        status = f"{fault.status}: " if fault.status else ""
        text = f"line {fault.line}: {status}{fault.reason}"
        if self._appender.stopped:
            self.stopped_by = f"{text}; stopped here, {self._before()}"
            return
        self._told += 1
        if self._told <= _NAMED:
            self._out.warn(text)

    def _before(self) -> str:
        """What became of the lines before the one that ended the run."""
        count = self._appender.tally.messages
        if not count:
            return "nothing was written"
        many = "the message" if count == 1 else f"the {count} messages"
        became = "would be" if self._dry_run else "was" if count == 1 else "were"
        return f"{many} before it {became} stored"

    def report(self) -> None:
        """The summary, and what the user should know besides."""
        tally, engine = self._appender.tally, self._session.engine
        if self._told > _NAMED:
            self._out.warn(f"and {self._told - _NAMED} more bad lines")
        if engine.renumbered:
            many = "1 message" if engine.renumbered == 1 else f"{engine.renumbered} messages"
            self._out.warn(f"{many} got new queue offsets, because the queues here do not go on "
                           "at the recorded ones")  # fmt: skip
        if engine.misplaced:
            self._out.warn(f"{engine.misplaced} messages kept a queue offset at which their queue "
                           "does not go on: consumers will not find them there, or find others "
                           "moved")  # fmt: skip
        if self._session.unknown:
            named = ", ".join(sorted(self._session.unknown)[:5])
            self._out.note(f"config/topics.json does not know {named}: a broker will not let "
                           "clients use it (--auto-create-topic enters it)")  # fmt: skip
        if self._dry_run:
            self._out.note("dry run: nothing was written")
        if self._out.format not in _STREAMING:
            document = tally.as_dict()
            self._out.document(document, lambda page: _show(page, document))


def _show(page: Human, tally: dict[str, Any]) -> None:
    from rmqctl.output.units import count_text, rate_text, size_text

    first, end = tally["first_physical_offset"], tally["end_physical_offset"]
    page.pairs({
        "messages": count_text(tally["messages"]),
        **({"size": f"{size_text(tally['bytes'])}, physical offsets {first} to {end}"}
           if first is not None else {}),
        **({"refused": count_text(tally["refused"])} if tally["refused"] else {}),
        "time": f"{tally['seconds']} s, {rate_text(tally['messages_per_second'])}",
    })


def _size(fd: int) -> int | None:
    """Bytes of a regular file; None for a pipe, whose end nobody knows."""
    try:
        about = os.fstat(fd)
    except OSError:
        return None
    return about.st_size if stat.S_ISREG(about.st_mode) else None
