"""The two streams: what is known of them, and how text gets onto them.

Formats write through a :class:`Sink`, which encodes itself, so that data formats are UTF-8 under
every locale and no character ever fails to encode.
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
    """Whether ``stream`` is a terminal; closed and missing streams are none."""
    try:
        return stream is not None and bool(stream.isatty())
    except ValueError:  # closed
        return False


def has_screen(environ: Mapping[str, str]) -> bool:
    """Whether this process has a terminal to draw on and to read keys from."""
    return environ.get("TERM") != "dumb" and all(
        map(is_terminal, (sys.stdin, sys.stdout, sys.stderr)))


def wants_colour(stream: Any, environ: Mapping[str, str]) -> bool:
    """Whether to colour ``stream``: NO_COLOR (https://no-color.org), then FORCE_COLOR, then tty."""
    if environ.get("NO_COLOR"):
        return False
    if environ.get("FORCE_COLOR"):
        return True
    return is_terminal(stream) and environ.get("TERM") != "dumb"


def known_width(stream: Any, environ: Mapping[str, str]) -> int | None:
    """Columns that there are: COLUMNS, else the terminal's width; None for a file or a pipe, in
    which a line may be as long as it is.
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
    """Columns to lay out for: those that there are, else 100."""
    return known_width(stream, environ) or _FALLBACK_WIDTH


def takes_a_line(stream: Any) -> bool:
    """Whether a line of up to 4096 bytes (PIPE_BUF) can be written without waiting for whoever
    reads ``stream``.
    """
    try:
        number = stream.fileno()
    except (AttributeError, OSError, ValueError):
        return True
    poll = select.poll()
    poll.register(number, select.POLLOUT)
    return bool(poll.poll(0))


def can_encode(stream: Any, sample: str) -> bool:
    """Whether the encoding of ``stream`` holds every character of ``sample``."""
    try:
        sample.encode(getattr(stream, "encoding", None) or "utf-8")
    except (UnicodeEncodeError, LookupError):
        return False
    return True


class Sink:
    """Encoded writing onto a text stream; ``encoding`` None takes the stream's own.

    Characters an encoding lacks become backslash escapes. For JSON in UTF-8 these can only be
    lone surrogates, whose escape is at the same time the JSON escape.
    ``before_write`` is called first, each time: it clears a progress bar from the screen.
    Raises BrokenPipeError where the reader went away and StoreIOError for every other failure.
    """

    def __init__(self, stream: IO[str] | None, encoding: str | None = None) -> None:
        self._stream = stream
        self._buffer: IO[bytes] | None = getattr(stream, "buffer", None)
        self.encoding = encoding or getattr(stream, "encoding", None) or "utf-8"
        self.before_write: Callable[[], None] | None = None
        if self._buffer is not None and stream is not None:
            self._guard(stream.flush)  # whatever was written as text stands before our bytes

    def write(self, text: str | bytes | memoryview) -> None:
        """Write all of ``text``, which may be encoded already."""
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
        """Where stdout is not buffered, a signal may cut a write to a full pipe short."""
        assert self._buffer is not None
        rest = memoryview(data)
        while rest:
            done: int | None = self._buffer.write(rest)
            if done is None and isinstance(self._buffer, io.RawIOBase):
                # Whoever shares the pipe made it non-blocking, and it is full.
                select.select([], [self._buffer.fileno()], [])
                done = 0
            rest = rest[len(rest) if done is None else done:]

    def flush(self) -> None:
        """Hand everything written so far to the system."""
        if self._stream is not None:
            self._guard((self._buffer or self._stream).flush)

    def _guard(self, call: Any, *args: Any) -> None:
        try:
            call(*args)
        except BrokenPipeError:
            raise
        except OSError as exc:
            raise StoreIOError.from_oserror(exc, "standard output", "write to") from exc
        except ValueError as exc:  # closed under our feet
            raise StoreIOError("cannot write to standard output: it is closed") from exc


class Raw(io.RawIOBase):
    """A `Sink` as a binary file that is only written to."""

    def __init__(self, sink: Sink) -> None:
        super().__init__()
        self._sink, self._at = sink, 0

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        """All of it, always."""
        view = memoryview(data).cast("B")
        self._sink.write(view)
        self._at += len(view)
        return len(view)

    def tell(self) -> int:
        return self._at

    def flush(self) -> None:
        self._sink.flush()


class Target(NamedTuple):
    """Where a writer's data goes, and what there is to know of the place.

    ``terminal``: somebody watches, and control characters would act. ``warn`` speaks on stderr.
    ``language``: that of pages for people, None for English. ``every``: see `Output.open`.
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
        """Columns to lay out for."""
        return terminal_width(self.stream, self.environ)

    @property
    def limit(self) -> int | None:
        """Columns that no line may exceed; None for a file or a pipe."""
        return known_width(self.stream, self.environ)


def wait(seconds: float) -> None:
    """Sleep; raise BrokenPipeError as soon as whoever reads stdout has gone.

    Without it ``tail -f | head -1`` on a quiet store would stay for ever: a write is what
    usually tells, and there is nothing to write. A terminal or a file never goes away.
    """
    until = time.monotonic() + seconds
    try:
        watched = select.poll()
        watched.register(sys.stdout.fileno(), 0)  # errors and hang-ups are told unasked
        events = watched.poll(seconds * 1000)
    except (OSError, ValueError, AttributeError):  # no descriptor behind it, or none at all
        events = []
    if any(event & (select.POLLERR | select.POLLHUP) for _, event in events):
        raise BrokenPipeError
    time.sleep(max(until - time.monotonic(), 0))
