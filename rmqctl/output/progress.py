"""Progress on stderr: a line if stderr is a terminal, otherwise nothing."""

from __future__ import annotations

import contextlib
import signal
import threading
import time
from collections.abc import Callable
from types import TracebackType
from typing import IO, Self

from rmqctl.output.cells import display_width
from rmqctl.output.units import count_text, rate_text, size_text

_REDRAW_SECONDS = 0.25
_SURE_SECONDS = 2.0
"""Time in seconds after which a rate is reliable enough to show the remaining time."""
_STALLED_SECONDS = 10.0
"""Time in seconds without progress after which the remaining time is no longer shown."""
_ENDING = (signal.SIGINT, signal.SIGTERM)
_MIN_BAR = 8
_MAX_BAR = 40
_SPINNER = "|/-\\"


class Progress:
    """Progress that shows nothing, as a context manager. This class defines the interface of all
    progress classes.

    ``advance`` is fast and may be called from any thread.
    """

    def __enter__(self) -> Self:
        return self

    def __exit__(self, exc_type: type[BaseException] | None, exc: BaseException | None,
                 traceback: TracebackType | None) -> None:
        """End the display. Exceptions are not suppressed."""

    def advance(self, amount: int) -> None:
        """Add ``amount`` completed units: bytes, or the unit of the total."""

    def total(self, amount: int) -> None:
        """Set the total number of units."""

    def label(self, text: str) -> None:
        """Set the label of the current work."""

    def phase(self, text: str, total: int | None = None) -> None:
        """Start another phase of ``total`` units (None: unknown)."""

    def hide(self) -> None:
        """Clear the line from the screen before something else is printed."""


class BarProgress(Progress):
    """A line on a terminal, which a thread redraws four times a second.

    The line appears after a moment, so quick commands never show it. The remaining time covers only
    the current phase and is estimated from its average rate.
    """

    def __init__(self, label: str, total: int | None, stream: IO[str], *, unit_bytes: bool = True,
                 delay: float = 0.3, width: Callable[[], int] = lambda: 80, unicode: bool = False,
                 clock: Callable[[], float] = time.monotonic,
                 caption: Callable[[str], str] = str) -> None:
        self._label = self.own_label = label
        self._caption = caption
        self._total = total
        self._stream = stream
        self._unit_bytes = unit_bytes
        self._width = width
        self._unicode = unicode
        self._clock = clock
        self._delay = delay
        self._started = self._phase_began = self._moved = clock()
        self._show_at = self._started + delay
        self._done = 0
        self._ticks = 0
        self._shown = False
        self._lock = threading.Lock()
        self._ended = threading.Event()
        self._drawer: threading.Thread | None = None

    def __enter__(self) -> Self:
        drawer = threading.Thread(target=self._run, name="progress", daemon=True)
        with contextlib.suppress(RuntimeError):  # no thread available: show no progress
            drawer.start()
            self._drawer = drawer
        return self

    def __exit__(self, exc_type: type[BaseException] | None, exc: BaseException | None,
                 traceback: TracebackType | None) -> None:
        self._ended.set()
        if self._drawer is not None:
            self._drawer.join()
        self.hide()

    def advance(self, amount: int) -> None:
        with self._lock:
            self._done += amount
            self._moved = self._clock()

    def total(self, amount: int) -> None:
        self._total = amount

    def label(self, text: str) -> None:
        self._label = text

    def phase(self, text: str, total: int | None = None) -> None:
        self.begin(text, total, unit_bytes=True)

    def begin(self, text: str, total: int | None, *, unit_bytes: bool) -> None:
        """Begin a phase. ``unit_bytes``: whether its units are bytes."""
        with self._lock:
            self._label, self._total, self._done = text, total, 0
            self._unit_bytes = unit_bytes
            self._phase_began = self._moved = self._clock()

    @property
    def is_running(self) -> bool:
        """Return whether the display has started and has not ended."""
        return self._drawer is not None and not self._ended.is_set()

    def hide(self) -> None:
        """Clear the line; it reappears a moment later if the work continues."""
        with self._lock:
            self._show_at = self._clock() + self._delay
            if self._shown:
                self._shown = False
                self._write("\r\x1b[2K")

    def _run(self) -> None:
        signal.pthread_sigmask(signal.SIG_BLOCK, _ENDING)  # signals are handled in the main thread
        while not self._ended.wait(_REDRAW_SECONDS):
            self.draw()

    def draw(self) -> None:
        """Draw the line, unless it is too early to show it."""
        with self._lock:
            if self._clock() < self._show_at:
                return
            self._ticks += 1
            self._shown = True
            self._write(f"\r\x1b[2K{self.line()}")

    def _write(self, text: str) -> None:
        try:
            self._stream.write(text)
            self._stream.flush()
        except (OSError, ValueError):  # the terminal is gone
            self._ended.set()

    def line(self) -> str:
        """Return the line. If it is wider than the terminal, the least important parts are
        omitted.
        """
        now = self._clock()
        total = self._total
        # Everything is read, but the work continues: a full bar would look finished.
        is_known = bool(total) and self._done < (total or 0)
        label = f"{_SPINNER[self._ticks % len(_SPINNER)]} {self._caption(self._label)}"
        elapsed = _clock_text(now - self._started)
        # Percentage and remaining time need a total that is not reached yet.
        parts: dict[str, str] = {"label": label}
        if total and is_known:
            parts["percent"] = f"{100 * self._done // total:3d}%"
            parts["amount"] = f"{self._amount(self._done)} of {self._amount(total)}"
        elif self._done and not total:
            parts["amount"] = self._amount(self._done)
        rate = self._rate(now)
        if rate is not None and not (total and not is_known):
            parts["rate"] = (f"{size_text(round(rate))}/s" if self._unit_bytes else
                             rate_text(rate))
        parts["elapsed"] = elapsed
        if total and is_known and rate:
            parts["left"] = f"{_clock_text((total - self._done) / rate)} left"
        # Drop parts until the line fits, and add a bar only if there is space left.
        room = self._width() - 1
        for name in ("rate", "elapsed", "amount", "percent", "left"):
            if _length(parts) > room:
                parts.pop(name, None)
        bar = min(room - _length(parts) - 2, _MAX_BAR)
        if total and is_known and "percent" in parts and bar >= _MIN_BAR:
            parts = {"label": parts.pop("label"), "bar": self._bar(bar, self._done / total),
                     **parts}
        text = "  ".join(parts.values())
        while display_width(text) > room and text:
            text = text[:-1]
        return text

    def _rate(self, now: float) -> float | None:
        """Return the number of units per second since the phase began; None if the rate is not
        reliable.
        """
        spent = now - self._phase_began
        if spent < _SURE_SECONDS or not self._done or now - self._moved > _STALLED_SECONDS:
            return None
        return self._done / spent

    def _amount(self, count: int) -> str:
        return size_text(count) if self._unit_bytes else count_text(count)

    def _bar(self, width: int, share: float) -> str:
        done = min(round(width * share), width)
        full, empty = ("█", "░") if self._unicode else ("#", ".")
        return full * done + empty * (width - done)


class Nested(Progress):
    """One phase of an enclosing progress display, shown in the line of that display."""

    def __init__(self, around: BarProgress, label: str, total: int | None, *, unit_bytes: bool
                 ) -> None:
        self._around, self._label, self._total = around, label, total
        self._unit_bytes = unit_bytes

    def __enter__(self) -> Self:
        self._around.begin(self._label, self._total, unit_bytes=self._unit_bytes)
        return self

    def __exit__(self, exc_type: type[BaseException] | None, exc: BaseException | None,
                 traceback: TracebackType | None) -> None:
        self._around.phase(self._around.own_label)

    def advance(self, amount: int) -> None:
        self._around.advance(amount)

    def total(self, amount: int) -> None:
        self._around.total(amount)

    def label(self, text: str) -> None:
        self._around.label(text)

    def phase(self, text: str, total: int | None = None) -> None:
        self._around.phase(text, total)

    def hide(self) -> None:
        self._around.hide()


def _length(parts: dict[str, str]) -> int:
    return sum(map(display_width, parts.values())) + 2 * (len(parts) - 1)


def _clock_text(seconds: float) -> str:
    minutes, rest = divmod(max(round(seconds), 0), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"
