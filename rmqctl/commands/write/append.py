"""``rmqctl append``: append messages from message objects in JSON lines."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from typing import IO, TYPE_CHECKING, Annotated, Any, Self

import typer

from rmqctl.commands.app.option_groups import pick
from rmqctl.commands.shared.applying import WriteOutside
from rmqctl.commands.shared.deferred_signals import DeferredSignals
from rmqctl.commands.shared.engine_options import PUT_MANY, EngineOptions
from rmqctl.commands.shared.options import DryRun, Out, StoreOptions
from rmqctl.errors import ExitCode, RefusedError, StoreIOError, UsageError
from rmqctl.output import FLUSH, Output, Progress
from rmqctl.output.units import count_text, rate_text, size_text

if TYPE_CHECKING:
    from rmqctl.engine.input.append_stream import AppendSession, LineAppender, LineFault
    from rmqctl.engine.input.lines import LineReader
    from rmqctl.output import Human

_COLUMNS = ("line", "status", "physical_offset", "wrote_bytes", "msg_id", "queue_offset",
            "msg_num", "store_timestamp", "reason")
_MAX_NAMED = 20
_MANNERS = ("stop", "skip", "collect")


def command(
    *,
    file: Annotated[str, typer.Argument(
        metavar="[FILE]", show_default=False, help="JSON lines file; - is stdin.")] = "-",
    collect: Annotated[str | None, typer.Argument(
        metavar="[COLLECT]", help="File for bad lines, with --on-error collect.")] = None,
    as_recorded: Annotated[bool, typer.Option(
        "--as-recorded", help="Store each object exactly as recorded: times, hosts, topic, queue, "
                              "flags and properties.")] = False,
    replay: Annotated[bool, typer.Option(
        "--replay", help="Put messages as a broker would at the recorded times and from the "
                         "recorded hosts; this gives the same bytes.")] = False,
    batch: Annotated[bool, typer.Option(
        "--batch",
        help="Put consecutive messages with the same topic, queue, times and hosts as one "
             "batch.")] = False,
    batch_size: Annotated[int, typer.Option(
        "--batch-size", metavar="N", min=1, help="Maximum number of messages in a batch.")] = 32,
    on_error: Annotated[str, typer.Option(
        "--on-error", metavar="stop|skip|collect FILE",
        help="What to do with a bad line: stop the run, skip it, or collect it in the new "
             "FILE.")] = "stop",
    keep_queue_offsets: Annotated[bool, typer.Option(
        "--keep-queue-offsets", help="With --as-recorded: keep queue offsets that do not continue "
                                     "the queue (default: renumber them).")] = False,
    auto_create_topic: Annotated[bool, typer.Option(
        "--auto-create-topic", help="Add unknown topics to config/topics.json, as a broker "
                                    "does.")] = False,
    engine: Annotated[EngineOptions, pick(PUT_MANY)],
    write_outside: WriteOutside = None,
    dry_run: DryRun = False,
    store: StoreOptions,
    out: Out,
) -> int:
    """Append messages from JSON lines to a store; no broker may run on it.

    Each line is a message object as `rmqctl read -o jsonl` prints it; only topic and body are
    required. Without --replay or --as-recorded, messages are put as if a client had just sent them.
    An object with a list "messages" is a batch. With -o jsonl, csv or tsv each result is printed
    once its message is stored (with --flush sync: once it is on disk); other formats print a
    summary. Ctrl-C stops between two messages and flushes.

        rmqctl read OLD -o jsonl --body base64 | rmqctl append NEW --as-recorded
    """
    from rmqctl.engine.input.append_stream import LineAppender, converter, open_session
    from rmqctl.engine.input.lines import open_lines

    if engine.warm and not engine.mapped:
        raise UsageError("--warm requires --mapped")
    if engine.transient_pool and (engine.mapped or engine.flush == "sync"):
        raise UsageError("--transient-pool cannot be combined with --mapped or --flush sync")
    if as_recorded + replay + batch * as_recorded > 1:
        raise UsageError("--as-recorded cannot be combined with --replay or --batch")
    manner, file, collect = _manner(on_error, file, collect)
    more: dict[str, Any] = {"broker_checks": False if replay else None}
    if as_recorded:
        # A record that names rows in other queues gets them, whatever the options of this store.
        more |= {name: True for name in ("lmq", "multi_dispatch") if getattr(engine, name) is None}
    settings = engine.settings(store, PUT_MANY, **more)
    with (DeferredSignals() as signals, open_lines(file) as reader,
          RejectFile(collect) as rejects):
        run = None
        try:
            with open_session(store.root, settings, store.folders, dry_run=dry_run,
                              auto_create_topic=auto_create_topic,
                              keep_queue_offsets=keep_queue_offsets,
                              outside=write_outside or ()) as session:
                appender = LineAppender(
                    session, converter(settings, as_recorded=as_recorded, replay=replay),
                    stop=manner == "stop", obey_topics=not (as_recorded or replay),
                    batch=batch_size if batch else 0)
                run = _Append(out, session, appender, reader, signals, rejects)
                run.go()
        finally:
            # However the run ends, written messages stay, so always report them.
            if run is not None:
                run.report()
    if appender.stopped_by is not None:
        raise RefusedError(appender.stopped_by)
    return ExitCode.FINDINGS if appender.tally.refused else ExitCode.OK


def _manner(on_error: str, file: str, collect: str | None) -> tuple[str, str, str | None]:
    """Return (how to handle an invalid line, the input, the file for invalid lines)."""
    manner, _, named = on_error.partition("=")
    if manner not in _MANNERS or (named and manner != "collect"):
        raise UsageError(f"--on-error: expected {', '.join(_MANNERS[:2])} or collect FILE, got "
                         f"{on_error!r}")
    if manner != "collect" or named:
        if collect is not None:
            raise UsageError(f"a second file, {collect!r}, requires --on-error collect")
        return manner, file, named or None
    if collect is None:
        # `append STORE --on-error collect FILE`: the only file is the one after the option.
        if file == "-":
            raise UsageError("--on-error collect requires a file: --on-error collect FILE")
        return manner, "-", file
    return manner, file, collect


class RejectFile:
    """The file for invalid lines, which is created when the first such line is added."""

    def __init__(self, path: str | None) -> None:
        if path is not None and os.path.lexists(path):
            raise UsageError(f"{path} already exists; bad lines must go to a new file")
        if path is not None and not os.path.isdir(os.path.dirname(path) or "."):
            raise StoreIOError(f"cannot create {path}: no such folder")
        if path is not None:
            from rmqctl.files.named import refuse_link_of_others

            refuse_link_of_others(path, itself=False)
        self._path = path
        self._file: IO[bytes] | None = None

    def add(self, line: bytes) -> None:
        """Add a line; never write to a file that another process has created. Raises:
        StoreIOError.
        """
        if self._path is None:
            return
        try:
            if self._file is None:
                self._file = open(self._path, "xb", buffering=0)  # noqa: SIM115
            self._file.write(line + b"\n")
        except OSError as error:
            raise StoreIOError.from_oserror(error, self._path, "write to") from None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._file is not None:
            self._file.close()


class _Append:
    """A run of the command: it appends the lines and prints rows or a summary, notes and
    progress.
    """

    def __init__(self, out: Output, session: AppendSession, appender: LineAppender,
                 reader: LineReader, signals: DeferredSignals,
                 rejects: RejectFile) -> None:
        self._out, self._session, self._appender, self._reader = out, session, appender, reader
        self._signals, self._rejects = signals, rejects
        self._bad_lines = 0

    def go(self) -> None:
        for note in self._session.notes:
            self._out.note(note)
        from rmqctl.scan import malloc_tuning

        malloc_tuning.collect_rarely()
        malloc_tuning.keep_freed_memory()
        with self._out.progress("appending", _size(self._reader.fd)) as progress:
            if self._out.streams:
                self._out.rows(self._rows(progress), _COLUMNS, empty="")
            else:
                for _ in self._rows(progress, make=False):
                    pass

    def _rows(self, progress: Progress, *, make: bool = True) -> Iterator[Any]:
        self._reader.wake = self._signals.wake
        groups = self._reader.groups()
        done = 0
        while self._appender.stopped_by is None:
            lines = self._signals.wait_for(lambda: next(groups, None))
            if lines is None:
                break
            results = self._appender.put(lines)
            if make:
                for number, result in results:
                    yield {"line": number, **result.as_dict()}
                yield FLUSH
            for fault in self._appender.faults:
                self._tell(fault)
            if self._reader.waits:  # the input pauses: let consumers and queries see the messages
                self._session.engine.reput()
            progress.advance(self._reader.taken - done)
            done = self._reader.taken

    def _tell(self, fault: LineFault) -> None:
        if isinstance(fault.raw, bytes):
            self._rejects.add(fault.raw)
        if self._appender.stopped_by is not None:
            return
        self._bad_lines += 1
        if self._bad_lines <= _MAX_NAMED:
            self._out.warn(str(fault))

    def report(self) -> None:
        """Print the summary and warnings."""
        tally = self._appender.tally
        if self._bad_lines > _MAX_NAMED:
            self._out.warn(f"and {self._bad_lines - _MAX_NAMED} more bad lines")
        for text in self._session.warnings:
            self._out.warn(text)
        for text in self._session.remarks:
            self._out.note(text)
        if not self._out.streams:
            document = tally.as_dict()
            self._out.document(document, lambda page: _show(page, document))


def _show(page: Human, tally: dict[str, Any]) -> None:
    first, end = tally["first_physical_offset"], tally["end_physical_offset"]
    page.pairs({
        "messages": count_text(tally["messages"]),
        **({"size": f"{size_text(tally['bytes'])}, physical offsets {first} to {end}"}
           if first is not None else {}),
        **({"refused": count_text(tally["refused"])} if tally["refused"] else {}),
        "time": f"{tally['seconds']} s, {rate_text(tally['messages_per_second'])}",
    })


def _size(fd: int) -> int | None:
    """Return the size of a regular file in bytes; None for a pipe, whose length is unknown."""
    try:
        about = os.fstat(fd)
    except OSError:
        return None
    return about.st_size if stat.S_ISREG(about.st_mode) else None
