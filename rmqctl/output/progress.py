"""Progress on stderr: a bar on a terminal, nothing anywhere else."""

from __future__ import annotations

import time
from collections.abc import Callable
from types import TracebackType
from typing import IO, TYPE_CHECKING, Any, Self

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Progress as RichProgress
    from rich.progress import TaskID

_REDRAW_SECONDS = 0.1


class Progress:
    """The silent kind, and the interface of both: use as a context manager.

    ``advance`` may be called as often as one likes: it costs an addition and a clock reading.
    """

    def __enter__(self) -> Self:
        return self

    def __exit__(self, exc_type: type[BaseException] | None, exc: BaseException | None,
                 traceback: TracebackType | None) -> None:
        """End the display; never swallows an exception."""

    def advance(self, amount: int) -> None:
        """``amount`` more units (bytes, or whatever the total counts) are done."""

    def total(self, amount: int) -> None:
        """The total is now known, or another one."""

    def label(self, text: str) -> None:
        """What is being done now."""

    def hide(self) -> None:
        """Clear the bar from the screen, because something else is about to be printed."""


class BarProgress(Progress):
    """A rich progress bar. It comes up only after a moment, so that quick commands never flash."""

    def __init__(self, label: str, total: int | None, stream: IO[str], *, unit_bytes: bool = True,
                 delay: float = 0.3, clock: Callable[[], float] = time.monotonic) -> None:
        self._label = label
        self._total = total
        self._stream = stream
        self._unit_bytes = unit_bytes
        self._clock = clock
        self._show_at = clock() + delay
        self._drawn_at = 0.0
        self._done = 0
        self._shown = False
        self._bar: RichProgress | None = None
        self._task: TaskID | None = None

    def __exit__(self, exc_type: type[BaseException] | None, exc: BaseException | None,
                 traceback: TracebackType | None) -> None:
        self.hide()

    def advance(self, amount: int) -> None:
        self._done += amount
        now = self._clock()
        if now >= self._show_at and now - self._drawn_at >= _REDRAW_SECONDS:
            self._drawn_at = now
            self._draw()

    def total(self, amount: int) -> None:
        self._total = amount

    def label(self, text: str) -> None:
        self._label = text

    def hide(self) -> None:
        """Clear the bar from the screen; it comes back with the next ``advance``."""
        if self._bar is not None and self._shown:
            self._bar.stop()
            self._shown = False

    def _draw(self) -> None:
        if self._bar is None:
            self._bar = self._start()
            self._task = self._bar.add_task(self._label, total=self._total)
        if self._task is not None:
            self._bar.update(
                self._task, completed=self._done, total=self._total, description=self._label
            )
        if not self._shown:
            self._bar.start()
            self._shown = True
        self._bar.refresh()

    def _start(self) -> RichProgress:
        from rich.progress import (
            BarColumn,
            DownloadColumn,
            MofNCompleteColumn,
            ProgressColumn,
            TextColumn,
            TimeRemainingColumn,
            TransferSpeedColumn,
        )
        from rich.progress import (
            Progress as RichProgress,
        )

        amount: list[ProgressColumn] = (
            [DownloadColumn(binary_units=True), TransferSpeedColumn()]
            if self._unit_bytes
            else [MofNCompleteColumn()]
        )
        return RichProgress(
            TextColumn("{task.description}", markup=False),
            BarColumn(),
            *amount,
            TimeRemainingColumn(),
            console=_console(self._stream),
            transient=True,
            auto_refresh=False,  # it shows what it is told of, and needs no thread
            redirect_stdout=False,  # stdout is data; rich must not wrap it
            redirect_stderr=False,
        )


def _console(stream: IO[str]) -> Console:
    from rich.console import Console

    class QuietConsole(Console):
        """A console that falls silent when its reader goes away, instead of ending the program."""

        def on_broken_pipe(self) -> None:
            self.quiet = True

    options: dict[str, Any] = {"file": stream, "highlight": False, "markup": False}
    return QuietConsole(**options)
