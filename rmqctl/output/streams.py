"""stdout and stderr: their properties, and how text is written to them.

All formats write to a :class:`Sink`, which encodes the text. Data formats are in UTF-8 with any
locale. Every character can be encoded.
"""

from __future__ import annotations

import io
import os
import select
import shutil
import sys
import time
from collections.abc import Callable, Mapping
from typing import IO, TYPE_CHECKING, Any, NamedTuple

from rmqctl.errors import StoreIOError

if TYPE_CHECKING:
    from rmqctl.output.language import Language

_FALLBACK_WIDTH = 100


def is_terminal(stream: Any) -> bool:
    """Return whether ``stream`` is a terminal; False for closed and missing streams."""
    try:
        return stream is not None and bool(stream.isatty())
    except ValueError:  # closed
        return False


def has_screen(environ: Mapping[str, str]) -> bool:
    """Return whether this process has a terminal to draw on and to read keys from."""
    return environ.get("TERM") != "dumb" and all(
        map(is_terminal, (sys.stdin, sys.stdout, sys.stderr)))


def wants_colour(stream: Any, environ: Mapping[str, str]) -> bool:
    """Return whether to use colours on ``stream``. NO_COLOR (https://no-color.org) prevents
    colours, and FORCE_COLOR enables them. If neither is set, only a terminal gets colours.
    """
    if environ.get("NO_COLOR"):
        return False
    if environ.get("FORCE_COLOR"):
        return True
    return is_terminal(stream) and environ.get("TERM") != "dumb"


def known_width(stream: Any, environ: Mapping[str, str]) -> int | None:
    """Return the maximum number of columns of a line: COLUMNS, or else the terminal's width. None
    for a file or a pipe, whose lines may have any length.
    """
    columns = environ.get("COLUMNS", "")
    if columns.isdecimal() and int(columns) > 0:
        return int(columns)
    if is_terminal(stream):
        try:
            return os.get_terminal_size(stream.fileno()).columns or _FALLBACK_WIDTH
        except (OSError, ValueError):
            return shutil.get_terminal_size((_FALLBACK_WIDTH, 24)).columns
    return None


def terminal_width(stream: Any, environ: Mapping[str, str]) -> int:
    """Return the number of columns for a layout: `known_width`, or 100 if it returns None."""
    return known_width(stream, environ) or _FALLBACK_WIDTH


def takes_a_line(stream: Any) -> bool:
    """Return whether a line of up to 4096 bytes (PIPE_BUF) can be written without waiting for the
    reader of ``stream``.
    """
    try:
        number = stream.fileno()
    except (AttributeError, OSError, ValueError):
        return True
    poll = select.poll()
    poll.register(number, select.POLLOUT)
    return bool(poll.poll(0))


def can_encode(stream: Any, sample: str) -> bool:
    """Return whether the encoding of ``stream`` can encode every character of ``sample``."""
    try:
        sample.encode(getattr(stream, "encoding", None) or "utf-8")
    except (UnicodeEncodeError, LookupError):
        return False
    return True


class Sink:
    """A text stream.

    ``encoding``: encoding to use instead of that of ``stream``.
    ``before_write``: called before each write, to clear a progress bar from the screen.

    Characters that cannot be encoded become backslash escapes. In UTF-8, these are only lone
    surrogates, whose backslash escapes are also valid in JSON. Writing raises BrokenPipeError if
    the reader has exited, StoreIOError for any other failure.
    """

    def __init__(self, stream: IO[str] | None, encoding: str | None = None) -> None:
        self._stream = stream
        self._buffer: IO[bytes] | None = getattr(stream, "buffer", None)
        self.encoding = encoding or getattr(stream, "encoding", None) or "utf-8"
        self.before_write: Callable[[], None] | None = None
        if self._buffer is not None and stream is not None:
            self._guard(stream.flush)  # earlier text comes first

    def write(self, text: str | bytes | memoryview) -> None:
        """Write a text, which may already be encoded."""
        if self._stream is None:
            raise StoreIOError("cannot write to standard output: it is closed")
        if self.before_write is not None:
            self.before_write()
        data = (text.encode(self.encoding, "backslashreplace") if isinstance(text, str)
                else text)
        if self._buffer is None:
            self._guard(self._stream.write, str(data, self.encoding))
        else:
            self._guard(self._write_all, data)

    def _write_all(self, data: bytes | memoryview) -> None:
        """Write all of ``data``, even to an unbuffered stdout, where a single write may be
        incomplete.
        """
        assert self._buffer is not None
        remaining = memoryview(data)
        while remaining:
            done: int | None = self._buffer.write(remaining)
            if done is None and isinstance(self._buffer, io.RawIOBase):
                # Another process with this pipe made it non-blocking, and it is full.
                select.select([], [self._buffer.fileno()], [])
                done = 0
            remaining = remaining[len(remaining) if done is None else done:]

    def flush(self) -> None:
        """Pass all data written so far to the operating system."""
        if self._stream is not None:
            self._guard((self._buffer or self._stream).flush)

    def _guard(self, call: Any, *args: Any) -> None:
        try:
            call(*args)
        except BrokenPipeError:
            raise
        except OSError as exc:
            raise StoreIOError.from_oserror(exc, "standard output", "write to") from exc
        except ValueError as exc:  # closed meanwhile
            raise StoreIOError("cannot write to standard output: it is closed") from exc


class Raw(io.RawIOBase):
    """A `Sink` as a write-only binary file."""

    def __init__(self, sink: Sink) -> None:
        super().__init__()
        self._sink, self._at = sink, 0

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        """Write all of ``data``; return its length in bytes."""
        view = memoryview(data).cast("B")
        self._sink.write(view)
        self._at += len(view)
        return len(view)

    def tell(self) -> int:
        return self._at

    def flush(self) -> None:
        self._sink.flush()


class WriterTarget(NamedTuple):
    """The stream that a writer writes to, and its properties.

    ``terminal``: whether the stream is a terminal, which would interpret control characters.
    ``warn``: prints a warning on stderr.
    ``language``: language of pages for people; None for English.
    ``every``: see `Output.open`.
    """

    sink: Sink
    stream: IO[str] | None
    environ: Mapping[str, str]
    terminal: bool
    warn: Callable[[str], None]
    language: Language | None
    every: bool = False

    @property
    def width(self) -> int:
        """Return the number of columns for a layout."""
        return terminal_width(self.stream, self.environ)

    @property
    def limit(self) -> int | None:
        """Return the maximum number of columns of a line; None for a file or a pipe."""
        return known_width(self.stream, self.environ)


def wait(seconds: float) -> None:
    """Sleep; raise BrokenPipeError as soon as the reader of stdout has exited.

    A plain sleep would not notice the exit before the next write: ``tail -f | head -1`` would run
    forever on a store without new messages.
    """
    until = time.monotonic() + seconds
    try:
        watched = select.poll()
        watched.register(sys.stdout.fileno(), 0)  # errors and hang-ups are always reported
        events = watched.poll(seconds * 1000)
    except (OSError, ValueError, AttributeError):  # stdout has no descriptor, or is missing
        events = []
    if any(event & (select.POLLERR | select.POLLHUP) for _, event in events):
        raise BrokenPipeError
    time.sleep(max(until - time.monotonic(), 0))
