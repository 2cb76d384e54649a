"""The :class:`Output` of one run, which writes rows, documents, messages and progress."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import IO, TYPE_CHECKING, Any, cast

from rmqctl.errors import UsageError
from rmqctl.output.cells import Encoded, Render, Row, RowLayout, Styles, folded, folded_command
from rmqctl.output.escape import visible, visible_lines
from rmqctl.output.formats import FORMATS, FormatWriter, PageWriter
from rmqctl.output.progress import Progress
from rmqctl.output.streams import (
    Raw,
    Sink,
    WriterTarget,
    can_encode,
    has_screen,
    is_terminal,
    known_width,
    takes_a_line,
    terminal_width,
)

if TYPE_CHECKING:
    from rmqctl.output.human import Human
    from rmqctl.output.language import Language
    from rmqctl.output.screen import Screen


ENGLISH = "en"
_WARNING = "warning: "
_MESSAGE_INDENT = "  "
"""Indent of a message's second and later lines on stderr."""


def _language(name: str) -> Language:
    """Return a language other than English. Languages are imported only when needed."""
    from rmqctl.output.language import language

    return language(name)


class Output:
    """The output of a command. Data goes to stdout, everything else to stderr."""

    def __init__(self, fmt: str, *, quiet: int, verbose: int, no_progress: bool,
                 stdout: IO[str] | None, stderr: IO[str] | None,
                 environ: Mapping[str, str], lang: str = ENGLISH, every: bool = False) -> None:
        if fmt not in FORMATS:
            raise ValueError(f"unknown output format {fmt!r}")
        self.format = fmt
        self.quiet = quiet
        self.verbose = verbose
        self._no_progress = no_progress
        self._stdout = stdout
        self._stderr = stderr
        self._environ = environ
        self.lang = lang
        self._every = every
        self._language = None if lang == ENGLISH else _language(lang)
        self._format = FORMATS[fmt]
        self._terminal = is_terminal(stdout)
        self._progress: Progress | None = None
        self._value_written = False
        self._has_noted_english = False
        self._sink = Sink(stdout, "utf-8" if self._format.is_data else None)

    @classmethod
    def open(cls, fmt: str | None = None, *, quiet: int = 0, verbose: int = 0,
             no_progress: bool = False, stdout: IO[str] | None = None,
             stderr: IO[str] | None = None, environ: Mapping[str, str] | None = None,
             lang: str = ENGLISH, every: bool = False) -> Output:
        """Return an output in format ``fmt``; None means ``table`` on a terminal, else ``plain``.

        ``quiet``: 1 suppresses notes and progress, 2 also warnings.
        ``verbose``: 1 shows debug lines.
        ``stdout``, ``stderr``: by default those of the process, which may be closed.
        ``lang``: the language of texts for people.
        ``every``: whether pages list every entry, even if many are similar.
        """
        out = sys.stdout if stdout is None else stdout
        return cls(
            fmt or ("table" if is_terminal(out) else "plain"),
            quiet=quiet,
            verbose=verbose,
            no_progress=no_progress,
            stdout=out,
            stderr=sys.stderr if stderr is None else stderr,
            environ=os.environ if environ is None else environ,
            lang=lang,
            every=every,
        )

    @property
    def is_data(self) -> bool:
        """Return whether the format is for programs (json, jsonl, csv, tsv), not for people."""
        return self._format.is_data

    @property
    def is_flat(self) -> bool:
        """Return whether the format has only cells, not nested values (csv, tsv, and the formats
        for people).
        """
        return self._format.is_flat or not self._format.is_data

    @property
    def is_value(self) -> bool:
        """Return whether the output is a single value (json), which is complete only at the end."""
        return self._format.is_data and not self._format.streams

    @property
    def streams(self) -> bool:
        """Return whether each row is usable as soon as it is written (jsonl, csv, tsv)."""
        return self._format.streams

    @property
    def is_json(self) -> bool:
        """Return whether rows become JSON objects (json, jsonl) and may be passed as `Encoded`."""
        return self._format.is_json

    # -- data ---------------------------------------------------------------------------------

    def rows(self, rows: Iterable[Row | Encoded], columns: Sequence[str] | None = None, *,
             brief: Sequence[str] | None = None, title: str | None = None, empty: str = "no rows",
             render: Render | None = None, styles: Styles | None = None) -> int:
        """Show ``rows`` as they are produced; return their number.

        json and jsonl write all fields of each row. csv and tsv write ``columns``. The formats for
        people write ``brief`` or, without ``brief``, ``columns``.

        ``columns``: None for the keys of the first rows.
        ``render``: for a column, a function that formats its values for people.
        ``styles``: for a column, a function that returns the style of a value on a terminal.
        ``title``: shown only in the formats for people.
        ``empty``: a note on stderr if there are no rows, only in the formats for people.

        If `is_json`, many rows may be passed as one `Encoded`. The row ``FLUSH`` causes all
        earlier rows to be written. At most one page of rows is in memory.
        """
        layout = RowLayout(columns, brief, title, render, styles)
        count = self._writer().rows(cast("Iterable[Row]", rows), layout)
        if not count and empty and not self.is_data:
            self.note(empty)
        return count

    def document(
        self, document: Mapping[str, Any], human: Callable[[Human], None] | None = None
    ) -> None:
        """Show one object: as JSON, as ``key,value`` records (csv, tsv), or as the page that
        ``human`` writes.

        ``human`` receives a :class:`~rmqctl.output.human.Human`, to which it writes. Without
        ``human``, the page has a generic layout.
        """
        self._writer().document(document, human)

    def listing(self, document: Mapping[str, Any], human: Callable[[Human], None], *,
                rows: Iterable[Row], columns: Sequence[str]) -> None:
        """Show a document that consists of a list and a summary, as far as the format supports it.

        * json: ``document``.
        * jsonl, csv, tsv: only the ``rows`` of the list, because all rows of a stream must be of
          one kind.
        * formats for people: the page that ``human`` writes.
        """
        if self.streams:
            self.rows(rows, columns)
        else:
            self.document(document, human)

    def human(self) -> Human:
        """Return a page for people in the format of this output (table, plain or markdown)."""
        return cast(PageWriter, self._writer()).page()

    def conclude(self, verdict: str, style: str | None = None) -> None:
        """Repeat the verdict of a page as the last line; for people only."""
        if not self.is_data:
            page = self.human()
            page.blank()
            page.text(verdict, style)
            self.flush()

    def _writer(self) -> FormatWriter:
        if self.is_value:
            # Two JSON values on stdout are not valid JSON: a defect of the command.
            if self._value_written:
                raise RuntimeError("a command wrote two JSON values")
            self._value_written = True
        return self._format.writer(self.format, WriterTarget(
            self._sink, self._stdout, self._environ, self._terminal, self.warn, self._language,
            self._every))

    def binary(self) -> Raw:
        """Return standard output for binary data. Raises: UsageError if it is a terminal."""
        if self._terminal:
            raise UsageError("this format is for a file or a program, not for a terminal")
        return Raw(self._sink)

    @property
    def takes_a_line(self) -> bool:
        """Return whether a line can be written to standard output without waiting for the
        reader.
        """
        return takes_a_line(self._stdout)

    def flush(self) -> None:
        """Flush all data written so far to the operating system."""
        self._sink.flush()

    # -- messages -----------------------------------------------------------------------------

    def note(self, text: str) -> None:
        """Print a note on stderr, unless -q was given."""
        if self.quiet < 1:
            self._say(f"rmqctl: {visible(self._translated(text))}")

    def tell(self, text: str) -> None:
        """Print on stderr a line that belongs to a question, even if -q was given."""
        self._say(f"rmqctl: {visible(self._translated(text))}")

    def warn(self, text: str) -> None:
        """Print a warning on stderr, unless -qq was given."""
        if self.quiet < 2:
            translated = visible(self._translated(text))
            self._say(f"rmqctl: {self.caption(_WARNING)}{translated}")

    def debug(self, text: str) -> None:
        """Print a detail on stderr if -v was given."""
        if self.verbose >= 1:
            self._say(f"rmqctl: debug: {visible(text)}")

    def caption(self, text: str) -> str:
        """Return a label or a question in the user's language. The text must not contain data."""
        return text if self._language is None else self._language.caption(text)

    def _translated(self, text: str) -> str:
        if self._language is None:
            return text
        if not self._has_noted_english and self._language.lacks(text):
            from rmqctl.output.language import IN_ENGLISH

            self._has_noted_english = True
            self._say(f"rmqctl: {self._language.say(IN_ENGLISH)}")
        return self._language.text(text)

    def _say(self, line: str) -> None:
        if self._progress is not None:
            self._progress.hide()
        # Data already shown comes first on a terminal that shows both streams.
        if self._terminal:
            self._sink.flush()
        say(line, self._stderr, self._environ)

    # -- progress -----------------------------------------------------------------------------

    def screen(self) -> Screen | None:
        """Return the terminal as a screen; None if stdout cannot show a screen, if the format is
        not table, or if -q or --no-progress is given.
        """
        if self.format != "table" or self.quiet or self._no_progress or not has_screen(
                self._environ) or self._stdout is None:
            return None
        from rmqctl.output.screen import Screen

        return Screen(self._stdout, self._environ, self._language)

    def progress(self, label: str, total: int | None = None, *, unit: str = "bytes") -> Progress:
        """Return a context manager that reports progress; ``total`` in bytes, or in ``unit``.

        A bar is drawn only if stderr is a terminal, and not with --no-progress or -q. While another
        bar is shown, the new progress is a phase of it.
        """
        if (
            self._no_progress
            or self.quiet
            or self._stderr is None
            or not is_terminal(self._stderr)
            or self._environ.get("TERM") == "dumb"
        ):
            self._progress = None
            return Progress()
        from rmqctl.output.progress import BarProgress, Nested

        around = self._progress
        if isinstance(around, BarProgress) and around.is_running:
            return Nested(around, visible(label), total,
                          unit_bytes=unit == "bytes")
        bar = BarProgress(visible(label), total, self._stderr, unit_bytes=unit == "bytes",
                          width=lambda: terminal_width(self._stderr, self._environ),
                          unicode=can_encode(self._stderr, "\u2588\u2591"),
                          caption=self.caption)
        if self._terminal:
            self._sink.before_write = bar.hide  # rows and the bar share one screen
        self._progress = bar
        return bar

    @contextlib.contextmanager
    def watch(self, label: str, total: int) -> Iterator[Callable[[int], None]]:
        """Report the progress of a library function; yield the ``advance`` function to pass to
        it.
        """
        with self.progress(label, total) as progress:
            yield progress.advance


def say(line: str, stream: IO[str] | None, environ: Mapping[str, str] | None = None) -> None:
    """Write a message to ``stream`` (stderr), folded to the width of the terminal.

    A line with a command is folded so that it can still be copied. Errors of the stream are
    ignored.
    """
    width = known_width(stream, os.environ if environ is None else environ)
    text = visible_lines(line)
    if width is not None:
        text = "\n".join(part for text_line in text.split("\n") for part in (
            folded_command(text_line, width) if text_line.lstrip(" ").startswith("rmqctl ")
            else folded(text_line, width, _MESSAGE_INDENT) or [""]))
    text += "\n"
    if not can_encode(stream, text):
        text = text.encode("ascii", "backslashreplace").decode("ascii")
    if stream is not None:
        with contextlib.suppress(OSError, ValueError):
            stream.write(text)
            stream.flush()
