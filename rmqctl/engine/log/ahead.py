"""The next commitlog file, made in the background before it is needed (spec: recovery.md §7)."""

from __future__ import annotations

import threading
from collections.abc import Callable

from rmqctl.engine.log.log_file import LogFile
from rmqctl.errors import InternalError, RmqctlError


class Ahead:
    """One thread that makes files by their base offsets. It starts with the first request."""

    def __init__(self, make: Callable[[int], LogFile]) -> None:
        self._make = make
        self._change = threading.Condition()
        self._wanted: list[int] = []
        self._made: dict[int, LogFile | RmqctlError] = {}
        self._thread: threading.Thread | None = None
        self._stopping = False

    def ask(self, base: int) -> None:
        """Wants the file that starts at ``base``; does not wait."""
        with self._change:
            if self._stopping:
                raise InternalError("the files of a closed log are asked for")
            if base in self._made or base in self._wanted:
                return
            self._wanted.append(base)
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="log-ahead", daemon=True)
                self._thread.start()
            self._change.notify_all()

    def take(self, base: int) -> LogFile:
        """The file that starts at ``base``, waited for. The error that kept it from being made.

        What failed earlier, in the background, is tried once more: the disk may have room now.
        """
        with self._change:
            if isinstance(self._made.get(base), RmqctlError):
                del self._made[base]
        self.ask(base)
        with self._change:
            self._change.wait_for(lambda: base in self._made)
            found = self._made.pop(base)
        if isinstance(found, RmqctlError):
            raise found
        return found

    def _run(self) -> None:
        while True:
            with self._change:
                self._change.wait_for(lambda: self._wanted or self._stopping)
                if self._stopping:
                    return
                base = self._wanted[0]
            found: LogFile | RmqctlError
            try:
                found = self._make(base)
            except RmqctlError as error:
                found = error
            except Exception as error:  # noqa: BLE001  # whoever waits must get an answer
                found = InternalError(f"the file at {base} could not be made: {error!r}")
            with self._change:
                self._wanted.remove(base)
                self._made[base] = found
                self._change.notify_all()

    def close(self) -> list[LogFile]:
        """Ends the thread; the files nobody took."""
        with self._change:
            self._stopping = True
            self._change.notify_all()
        if self._thread is not None:
            self._thread.join()
        left = [one for one in self._made.values() if isinstance(one, LogFile)]
        self._made.clear()
        return left
