"""Tasks that run in a thread, one at a time, with progress; the user can stop them."""

from __future__ import annotations

import asyncio
import signal
import time
from collections.abc import Callable
from typing import Any, TypeVar

from rich.text import Text
from textual.app import App
from textual.screen import Screen
from textual.widgets import Static
from textual.worker import Worker, get_current_worker

from rmqctl.errors import RmqctlError
from rmqctl.ext.browse.listing import ReadCancelled, Watch, sentence
from rmqctl.output.escape import visible

T = TypeVar("T")
_REPORT_S = 0.1
"""Minimum seconds between two updates of the progress line."""


class Working(App[None]):
    """An application whose main screen has a line ``#status``.

    * ``failure``: the unexpected error that ended the application, if any
    * ``terminated``: whether SIGTERM ended the application
    """

    def __init__(self) -> None:
        super().__init__()
        self.failure: BaseException | None = None
        self.terminated = False
        self._work: Worker[None] | None = None

    def mind_signals(self) -> None:
        """Let SIGTERM close the application, so that the terminal is restored."""
        if not self.is_headless:
            asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, self._terminate)

    def _terminate(self) -> None:
        self.terminated = True
        self.exit()

    def _handle_exception(self, error: Exception) -> None:
        """End the application with the exit code for unexpected errors, and show no traceback.
        Errors after the screens were closed are ignored.
        """
        if not self.screen_stack:
            return
        self.failure = self.failure or error
        if self.is_headless:
            super()._handle_exception(error)
        else:
            self.exit()

    @property
    def main(self) -> Screen[Any]:
        """The main screen, below all other screens."""
        return self.screen_stack[0]

    def say(self, words: str, *, bad: bool = False) -> None:
        self.main.query_one("#status", Static).update(Text(visible(words)))
        self.main.query_one("#status", Static).set_class(bad, "bad")

    @property
    def is_working(self) -> bool:
        return self._work is not None

    def run_task(self, title: str, total: int, work: Callable[[Watch], T],
             then: Callable[[T], None]) -> None:
        """Run a long task in a thread and show its progress, then call ``then`` with its result. A
        new task stops the previous task.
        """
        self.stop_task()

        def run() -> None:
            worker, done, reported_at = get_current_worker(), 0, 0.0

            # Stop when cancelled, and show progress at a limited rate.
            def watch(more: int) -> None:
                nonlocal done, reported_at
                if worker.is_cancelled:
                    raise ReadCancelled
                done += more
                now = time.monotonic()
                if now - reported_at > _REPORT_S:
                    reported_at = now
                    share = f" {min(done / total, 1):.0%}" if total else ""
                    self.call_from_thread(self.say, f"{title}{share}, Esc stops")

            # The result or the error is shown only if no later task has replaced this one.
            try:
                result = work(watch)
            except ReadCancelled:
                return
            except (RmqctlError, OSError) as error:
                words = sentence(error)
                self._end_task(worker, lambda: self.say(words, bad=True))
            else:
                self._end_task(worker, lambda: then(result))

        self.say(f"{title} …")
        self._work = self.run_worker(run, thread=True, group="task")

    def _end_task(self, worker: Worker[Any], then: Callable[[], None]) -> None:
        """Finish a task, unless it was stopped. Runs in the task's thread."""
        def end() -> None:
            if not worker.is_cancelled:
                self._work = None
                self.say("")
                then()

        if not worker.is_cancelled:
            self.call_from_thread(end)

    def stop_task(self) -> bool:
        task, self._work = self._work, None
        if task is not None:
            task.cancel()
        return task is not None
