"""The engine: a store directory opened for appending, as by a broker.

`Engine.open` takes the store's lock and finds the end of the log. It rejects a store that appending
would damage further. Nothing is written before the first message is accepted. From then on,
``abort`` exists, as with a running broker, until `close` shuts the store down cleanly.
"""

from __future__ import annotations

import contextlib
import math
import os
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack

import numpy as np

from rmqctl.broker.settings import Settings
from rmqctl.engine import small_files
from rmqctl.engine.config.topics import Topics
from rmqctl.engine.dispatch.reput import Dispatcher
from rmqctl.engine.log.flush import FlushService, GroupCommit
from rmqctl.engine.log.log_files import LogFiles
from rmqctl.engine.opening import (
    LogState,
    catch_up_start,
    done_again,
    examine,
    forget_cut_off,
    lock_for,
    recorded_runs,
    set_right,
    sizes_of,
)
from rmqctl.engine.put import admission
from rmqctl.engine.put.columns import sizes
from rmqctl.engine.put.cursor import Backlog
from rmqctl.engine.put.message import (
    OutgoingBatch,
    OutgoingList,
    PutColumns,
    PutResult,
    PutResults,
    Results,
)
from rmqctl.engine.put.put import Message, PutPath, Putting
from rmqctl.engine.small_files import CheckpointFile
from rmqctl.errors import RefusedError, RmqctlError
from rmqctl.files import disk_usage
from rmqctl.files.aside import AsideFolder
from rmqctl.files.lock import StoreLock
from rmqctl.parse_values import now_ms
from rmqctl.scan import malloc_tuning
from rmqctl.store.store import Store

GROUP_MESSAGES = 1024
GROUP_BYTES = 1 << 20


class Engine(Putting):
    """A store opened for appending. Thread-safe. Use `open`."""

    def __init__(self, root: str, settings: Settings, lock: StoreLock, state: LogState,
                 store: Store, clock: Callable[[], int], wall_clock: Callable[[], int],
                 keep_queue_offsets: bool) -> None:
        self.root, self.settings, self.state = root, settings, state
        self.clock = clock
        self._store = store
        # Puts append under a lock, then wait together for the disk.
        self._put_lock = threading.Lock()
        self._settled = threading.Condition(self._put_lock)
        self._settling = 0
        """Number of puts that have appended their messages and are waiting for the fsync."""
        self._locked_since = 0.0
        # Create what works without the open log: limits, batch topics, checkpoint, backlog.
        self._disk = disk_usage.Watch(store.log_folders, settings.disk_watermark)
        self._batch_topics = settings.batch_topics | Topics(root, settings, clock).batch_topics()
        self._checkpoint = CheckpointFile(root, settings.profile.generation)
        self._running = self._failed = self._closed = False
        self._group: GroupCommit | None = None
        self._service: FlushService | None = None
        self._backlog = Backlog(lambda run: self._dispatcher.dispatch(
            run.data, run.base, run.bit_maps))
        self._next_checkpoint = math.inf
        self.recovered = 0
        """Number of messages that were dispatched again when the store was opened."""
        self.aside = AsideFolder(root)
        """The folder to which replaced files are moved."""
        # Close in reverse order if a step fails, so that the lock is released last.
        with ExitStack() as held:
            held.callback(lock.release)
            held.callback(store.close)
            self.log = LogFiles(store.log_folders, settings, state.end, store.log.files)
            held.callback(self.log.close)
            held.callback(self._give_up_services)
            # Repair the end of the log and the index before anything is appended.
            again = set_right(store, state, self._checkpoint, self.aside, self._begin)
            self._dispatcher = Dispatcher(root, settings, wall_clock, self.is_batch_topic,
                                          state.end, aside=self.aside)
            held.callback(self._dispatcher.close)
            if state.cut_off:
                self._dispatcher.wipe_cut()
                self._checkpoint.flush()
                forget_cut_off(root)
            # Dispatch the rest of the last run before queue offsets are assigned.
            self._path = PutPath(settings, self.log, self._dispatcher.next_offsets(),
                                 self.is_batch_topic, clock, self._begin, keep_queue_offsets)
            self._catch_up(again)
            self._held = held.pop_all()
            """The resources that `close` releases, the lock last."""

    @classmethod
    def open(cls, root: str | os.PathLike[str], settings: Settings | None = None, *,
             commitlog_dirs: Iterable[str] = (), clock: Callable[[], int] = now_ms,
             wall_clock: Callable[[], int] = now_ms,
             keep_queue_offsets: bool = False, outside: Iterable[str] = ()) -> Engine:
        """Open a store for appending and take its lock.

        ``settings``: must have the sizes of the store.
        ``clock``: returns the store time (ms) for messages without one; default: the system's
            clock.
        ``wall_clock``: returns the time (ms) for the names of index files; default: the system's
            clock.
        ``commitlog_dirs``, ``outside``: the only folders outside the root that are written to. If
            such a folder is in another store, the lock of that store is also taken.

        Raises: NotAStoreError; StoreHeldError while a broker or another rmqctl uses the store;
        RefusedError if appending would damage the store further; StoreIOError.
        """
        settings = settings or Settings()
        path = os.fspath(root)
        dirs = list(commitlog_dirs)
        unlocked = Store.open(path, dirs)
        unlocked.layout.require_writable(path)
        lock = lock_for(unlocked, dirs, outside)
        lock.acquire()
        try:
            store = Store.open(path, dirs, sizes_of(settings))
            try:
                state = examine(store, settings.profile)
                return cls(path, settings, lock, state, store, clock, wall_clock,
                           keep_queue_offsets)
            except BaseException:
                store.close()
                raise
        except BaseException:
            lock.release()
            raise

    def is_batch_topic(self, topic: str) -> bool:
        """Return whether a topic has ``queue.type=BatchCQ``."""
        return self.settings.profile.batch_queues and topic in self._batch_topics

    # -- putting ------------------------------------------------------------------------------

    def append_many(self, messages: Iterable[Message]) -> Iterator[PutResult]:
        """Put messages in groups as they arrive; yield a result for each, in order.

        With ``flush=sync``, the messages of a group share an fsync, and their results are yielded
        after it. To limit memory, a group ends after 1024 messages, or once its bodies have 1 MiB
        or more.
        """
        malloc_tuning.keep_freed_memory()  # each group's records and bodies are in the same pages
        group: list[Message] = []
        size = 0
        for message in messages:
            group.append(message)
            if type(message) is OutgoingBatch:
                size += sum([len(item.body) for item in message.messages])
            else:
                size += len(message.body)  # type: ignore[union-attr]  # a batch has none
            if size >= GROUP_BYTES or len(group) >= GROUP_MESSAGES:
                yield from self.put_many(group)
                group, size = [], 0
        if group:
            yield from self.put_many(group)

    def put_many(self, messages: Sequence[Message], *, stop: bool = False) -> list[PutResult]:
        """Put a group of messages with one write (and one fsync); return a result for each.

        With ``stop``, the first rejected message ends the group, and its result is the last one.
        """
        results = PutResults()
        wrong = self._put(messages, results, stop=stop)
        return results if wrong is None else [wrong] * (1 if stop else len(messages))

    def append_columns(self, messages: OutgoingList) -> Iterator[PutColumns]:
        """Put messages that are given by column, in groups like `append_many`. Yield the results of
        each group by column, which takes less time than an object for each message.
        """
        malloc_tuning.keep_freed_memory()
        ends = np.cumsum(sizes(messages.columns[1]))
        start = 0
        while start < len(messages):
            limit = (int(ends[start - 1]) if start else 0) + GROUP_BYTES
            stop = min(start + GROUP_MESSAGES, int(np.searchsorted(ends, limit)) + 1)
            group, results = messages[start:stop], PutColumns()
            wrong = self._put(group, results)
            if wrong is not None:
                for _ in group:
                    results.append(wrong)
            yield results
            start = stop

    def _put(self, messages: Sequence[Message], results: Results, *,
             stop: bool = False) -> PutResult | None:
        """Put a group of messages, and add their results to ``results``. Return the reason if
        nothing can be put; nothing is then added.
        """
        wrong = self._not_now()
        if wrong is not None:
            return wrong
        with self._put_lock:
            if self._closed and (wrong := self._not_now()):  # while this waited for the lock
                return wrong
            self._usable()
            self._locked_since = time.monotonic()
            try:
                written = self._path.put(messages, results, stop=stop)
                if self._backlog.add(written):
                    self._backlog.clear()
                    if time.monotonic() >= self._next_checkpoint:
                        self._flush()
            except BaseException:
                # It is unknown how much of the group reached the file: this needs a recovery.
                self._failed = True
                raise
            finally:
                self._locked_since = 0.0
            end = self.log.position
            self._settling += bool(written)
        if written:
            self._settle(results, end)
        return None

    def _settle(self, results: Results, end: int) -> None:
        """If flushing is synchronous, wait until everything before ``end`` is on disk."""
        done = True
        try:
            if self._group is not None:
                done = self._group.wait(end, self.settings.sync_flush_timeout)
        except BaseException:
            self._failed = True
            raise
        finally:
            with self._settled:
                self._settling -= 1
                self._settled.notify_all()
        if not done:
            results.time_out()

    def _not_now(self) -> PutResult | None:
        """Return a result with the reason why nothing can be put; None if messages can be put
        (checkStoreStatus, before the put lock).
        """
        since = self._locked_since
        held = int((time.monotonic() - since) * 1000) if since else 0
        state = admission.StoreState(shutdown=self._closed, role=self.settings.role,
                                     writeable=not self._disk.is_full(), lock_held_ms=held)
        return admission.check_store(state, self.settings)

    def _usable(self) -> None:
        if self._closed:
            raise RefusedError(f"{self.root}: the store was closed")
        if self._failed:
            raise RefusedError(f"{self.root}: an earlier write failed; open the store again to "
                               "recover it")
        if self._service is not None:
            self._service.check()

    # -- running ------------------------------------------------------------------------------

    def _begin(self) -> None:
        """Mark the store as in use before the first byte is written."""
        if self._running:
            return
        small_files.create_abort(
            self.root, os.getpid() if self.settings.profile.abort_has_pid else None)
        self._running = True
        self._plan_checkpoint()
        if self.settings.flush == "sync":
            self._group = GroupCommit(self.log)
        else:
            self._service = FlushService(self.log, self.settings)

    def _catch_up(self, index_from: int) -> None:
        """Dispatch the undispatched end of the log, as a broker does at startup.

        After a clean shutdown, this is the part of the log after the message of the newest entry.
        """
        start = min(index_from, catch_up_start(self.state, self._dispatcher.max_physic()))
        if not self._running and not any(
                run.last_row for run in recorded_runs(self._store, start, self.state.end)):
            return
        self._begin()
        for run in recorded_runs(self._store, start, self.state.end):
            self._dispatcher.dispatch(run.data, run.base)
            self.recovered += run.count
            self._path.last_timestamp = run.last_timestamp
        self._path.table.update(self._dispatcher.next_offsets())

    def _plan_checkpoint(self) -> None:
        self._next_checkpoint = (time.monotonic()
                                 + self.settings.flush_consumequeue_thorough_interval / 1000)

    def reput(self) -> None:
        """Dispatch to the consumequeues and the index everything that was appended to the log, so
        that readers see it.
        """
        with self._put_lock:
            self._usable()
            try:
                self._backlog.clear()
                self._dispatcher.show()
            except BaseException:
                self._failed = True
                raise

    def flush(self) -> None:
        """Flush log, consumequeues and index to disk, then update the checkpoint."""
        with self._put_lock:
            self._usable()
            if self._running:
                self._flush()

    def _flush(self) -> None:
        try:
            self._backlog.clear()
            self.log.commit()
            self.log.sync()
            self._dispatcher.flush()
            self._checkpoint.advance(physic=self._path.last_timestamp,
                                     logics=self._dispatcher.logics_timestamp,
                                     index=self._dispatcher.index_timestamp)
            self._checkpoint.flush()
            done_again(self.root)
            self._plan_checkpoint()
        except BaseException:
            self._failed = True
            raise

    def close(self) -> None:
        """Shut down cleanly: flush everything, remove ``abort``, release the lock.

        After a failed write, ``abort`` is not removed, so that the next startup recovers the store.
        """
        with self._settled:
            if self._closed:
                return
            self._closed = True
            self._settled.wait_for(lambda: not self._settling)
        with self._held:
            for service in (self._group, self._service):
                if service is not None and not self._failed:
                    service.stop()
            if self._running and not self._failed:
                self._flush()
                self.log.remove_unused()
                small_files.remove_abort(self.root)

    def _give_up_services(self) -> None:
        """End the flush threads if they are still running; their errors were already raised."""
        for service in (self._group, self._service):
            if service is not None:
                with contextlib.suppress(RmqctlError):
                    service.stop()

    @property
    def failed(self) -> bool:
        """Return whether a write failed, after which nothing more can be put."""
        return self._failed
