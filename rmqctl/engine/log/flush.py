"""Flush the log to disk (spec: recovery.md §11).

`FlushService` flushes periodically, `GroupCommit` when a caller waits for it. After an error, they
do not flush again. The operating system may have dropped the unwritten pages, and the next fsync
would report success.
"""

from __future__ import annotations

import math
import threading
import time
from abc import ABC, abstractmethod
from typing import Protocol

from rmqctl.broker.settings import Settings
from rmqctl.errors import InternalError, RefusedError, RmqctlError
from rmqctl.scan import ending

COMMIT_INTERVAL = 0.2
"""Seconds between two commits of the buffers of the transient store pool."""


class Forceable(Protocol):
    """Interface of an object that is flushed: `LogFiles`, or anything that can be synced up to a
    position.
    """

    @property
    def position(self) -> int: ...

    @property
    def synced(self) -> int: ...

    def commit(self) -> None: ...

    def sync(self, least_pages: int = 0) -> int: ...


class _Service(ABC):
    """A thread that can be stopped, and that remembers its error."""

    _name: str

    def __init__(self, log: Forceable) -> None:
        self._log = log
        self._change = threading.Condition()
        self._stopping = False
        self._failure: RmqctlError | None = None
        self.syncs = 0
        """Number of flushes so far."""
        self._thread = threading.Thread(target=self._guarded, name=self._name, daemon=True)
        ending.note(self)

    @property
    def failure(self) -> RmqctlError | None:
        """The error that stopped the service; None if it has not failed."""
        return self._failure

    def check(self) -> None:
        """Raise the error of the thread, if it has one. This is cheap."""
        if self._failure is not None:
            # A new exception each time: threads must not share a traceback.
            raise type(self._failure)(str(self._failure))

    def end(self) -> None:
        """If the service is still running, stop it before the interpreter ends."""
        if self._thread.is_alive():
            self.stop()

    def stop(self) -> None:
        """Flush what is not flushed yet and end the thread. Raise the error if any flush failed."""
        with self._change:
            self._stopping = True
            self._change.notify_all()
        self._thread.join()
        self.check()

    def _guarded(self) -> None:
        failure: RmqctlError
        try:
            self._run()
        except RmqctlError as error:
            failure = error
        except Exception as error:  # noqa: BLE001  # nobody may wait for a thread that is gone
            failure = InternalError(f"the flush service failed: {error!r}")
        else:
            return
        with self._change:
            self._failure = failure
            self._change.notify_all()

    @abstractmethod
    def _run(self) -> None: ...

    def _sync(self, least_pages: int = 0) -> int:
        reached = self._log.sync(least_pages)
        self.syncs += 1
        return reached


class FlushService(_Service):
    """Asynchronous flush in a thread that starts at once.

    * Every ``flush_interval`` ms: flush if the log has at least ``flush_least_pages`` dirty pages.
    * Every ``flush_thorough_interval`` ms: flush in any case.
    * Every 200 ms: commit the buffers of the transient store pool.

    An error ends the service; call `check`, which raises it, before each put.
    """

    _name = "log-flush"

    def __init__(self, log: Forceable, settings: Settings) -> None:
        super().__init__(log)
        self._interval = max(settings.flush_interval, 1) / 1000
        self._least = settings.flush_least_pages
        self._thorough = settings.flush_thorough_interval / 1000
        self._commit = COMMIT_INTERVAL if settings.transient_pool else math.inf
        self._thread.start()

    def _run(self) -> None:
        now = time.monotonic()
        next_sync, next_thorough = now + self._interval, now + self._thorough
        next_commit = now + self._commit
        while True:
            with self._change:
                pause = min(next_sync, next_commit) - time.monotonic()
                self._change.wait_for(lambda: self._stopping, max(pause, 0))
                stopping = self._stopping
            now = time.monotonic()
            if now >= next_commit:
                self._log.commit()
                next_commit = now + self._commit
            thorough = stopping or now >= next_thorough
            if thorough or now >= next_sync:
                self._sync(0 if thorough else self._least)
                next_sync = now + self._interval
                if thorough:
                    next_thorough = now + self._thorough
            if stopping:
                return


class GroupCommit(_Service):
    """Synchronous flush: a thread, which starts at once, flushes the log for all waiting callers.

    The next flush serves all callers that arrive during a flush.
    """

    _name = "log-group-commit"

    def __init__(self, log: Forceable) -> None:
        super().__init__(log)
        self._wanted = self._reached = log.synced
        self._asked = 0
        """Number of calls of `wait`.

        Only a new call starts a flush. Otherwise a caller that waits for bytes that are not written
        yet would keep the thread busy.
        """
        self._thread.start()

    def wait(self, position: int, timeout_ms: float) -> bool:
        """Wait until the log is on disk up to ``position``; return False after a timeout.

        After a timeout, the bytes are in the log, and may reach the disk later.
        Raises: StoreIOError if a flush failed, now or earlier; RefusedError if the service has
        ended.
        """
        with self._change:
            self.check()
            if self._reached >= position:
                return True
            if self._stopping:
                raise RefusedError("the flush service is not running")
            self._wanted = max(self._wanted, position)
            self._asked += 1
            self._change.notify_all()
            self._change.wait_for(
                lambda: self._reached >= position or self._failure is not None,
                timeout_ms / 1000)
            self.check()
            return self._reached >= position

    def _run(self) -> None:
        served = 0

        def is_due() -> bool:
            return self._stopping or (self._asked != served and self._wanted > self._reached)

        while True:
            with self._change:
                self._change.wait_for(is_due)
                stopping, served = self._stopping, self._asked
            reached = self._sync()
            with self._change:
                self._reached = max(self._reached, reached)
                self._change.notify_all()
            if stopping:
                return
