"""The opened store: its contents, read folder by folder, and the damage found while reading.

Only one thread at a time may use a `StoreView`. A long scan uses a second reader, which sees the
store in the same state.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Sequence
from contextlib import closing
from functools import cached_property

from rmqctl.checks.offset_runs import OffsetRuns
from rmqctl.errors import FormatError, UsageError
from rmqctl.ext.browse.listing import LogListing, QueueListing, RecordListing, RowListing
from rmqctl.files.lock_probe import LockState
from rmqctl.formats.local.message import Record, parse_message_id
from rmqctl.lazy_dataclass import dataclass
from rmqctl.output.escape import visible
from rmqctl.output.units import counted
from rmqctl.store.config.offsets import Lag
from rmqctl.store.files import StoreFile
from rmqctl.store.log.bounds import View
from rmqctl.store.problems import Problem
from rmqctl.store.query.conditions import Condition
from rmqctl.store.query.lookup import by_key, known_topics, message_at, where_is
from rmqctl.store.queue.rows import queue_ids, topic_rows
from rmqctl.store.store import Store

_MAX_PROBLEMS = 10_000
_ID_DIGITS = (32, 56)
"""Number of hexadecimal digits of an offset message id, with an IPv4 or an IPv6 address."""


@dataclass(frozen=True, slots=True)
class BrowsedPlace:
    """A node of the tree.

    * ``kind``: ``log`` (the complete log), ``file`` (at ``path``), ``topic``, ``queue`` (of
      ``topic``), or a branch, whose message list is empty
    * ``group``, ``at``: a consumer group and its consumer offset in the queue
    """

    kind: str = "log"
    topic: str = ""
    queue_id: int | None = None
    path: str = ""
    group: str = ""
    at: int | None = None

    @property
    def name(self) -> str:
        """The name to show, safe for a terminal."""
        if self.kind in ("topic", "queue"):
            return visible(self.topic + ("" if self.queue_id is None else f"/{self.queue_id}"))
        return visible(os.path.basename(self.path)) if self.kind == "file" else "log"


class StoreView:
    """A view of the store, used by one thread at a time: the thread that holds ``guard``."""

    def __init__(self, store: Store, note: Callable[[Problem], None],
                 note_read: Callable[[int, int], None] = lambda _start, _end: None) -> None:
        self.store, self.view, self.guard = store, View(store), threading.RLock()
        self._note, self._note_read = note, note_read

    @cached_property
    def lag(self) -> Lag:
        """The consumer lag of all groups. Raises: RmqctlError."""
        return Lag(self.store, self.view)

    def listing(self, place: BrowsedPlace, conditions: Sequence[Condition] = ()) -> RowListing:
        """Return the listing of a place. Raises: RmqctlError if the place cannot be read."""
        store = self.store
        if place.kind == "log":
            files = store.log.files
            title = f"log: {counted(len(files), 'file')}" if files else "the log has no files"
            return LogListing(self.view, title, None, conditions, self._note, self._note_read)
        if place.kind == "file":
            file = self.log_file(place.path)
            if file is not None:
                return LogListing(self.view, f"log file {file.name}", (file.base, file.end),
                                  conditions, self._note, self._note_read)
            from rmqctl.ext.browse.dump_listing import DumpListing  # rarely needed

            return DumpListing(place.path, visible(os.path.relpath(place.path, store.root)))
        queues = topic_rows(store, place.topic, place.queue_id, self.view, self._note)
        bounds = ""
        if len(queues) == 1:
            bounds = f": offsets {queues[0].first} to {queues[0].end - 1}" if (
                queues[0].end > queues[0].first) else ": empty"
        elif place.kind == "topic":
            bounds = f": {counted(len(queues), 'queue')}, one after the other"
        return QueueListing(self.view, f"{place.name}{bounds}", queues, conditions, self._note)

    def log_file(self, path: str) -> StoreFile | None:
        """Return the log file at a path; None for any other file."""
        if not self.store.layout.reads("commitlog"):
            return None
        return next((file for file in self.store.log.files if file.path == path), None)

    def record(self, physical: int) -> Record | None:
        """Return the message at a physical offset. Raises: StoreIOError."""
        return self.store.log.record_at(physical)

    def with_key(self, key: str, topics: Sequence[str]) -> RecordListing:
        """Return a listing of the messages with a key, a unique key or an offset message id.
        Raises: UsageError if no message has it.
        """
        if len(key) in _ID_DIGITS:
            try:
                physical = parse_message_id(key)[2]
            except (FormatError, ValueError):
                physical = -1
            record = message_at(self.store, physical) if physical >= 0 else None
            if record is not None and record.message_id == key.upper():
                return RecordListing(f"message id {visible(key)}", [record])
        records: list[Record] = []
        for topic in topics:
            records += by_key(self.view, topic, key, report=self._note).records
        if not records:
            where = visible(topics[0]) if len(topics) == 1 else counted(len(topics), "topic")
            raise UsageError(f"the index has no message with the key {key!r} in {where}")
        return RecordListing(f"key {visible(key)}: {counted(len(records), 'message')}", records)

    def check_offset(self, physical: int) -> None:
        """Raise UsageError with the reason if a physical offset is outside the log."""
        if self.store.log.file_of(physical) is None:
            raise UsageError(f"physical offset {physical}: {where_is(self.store, physical)}")

    def close(self) -> None:
        self.store.close()


@dataclass(frozen=True, slots=True)
class FolderEntry:
    """An entry of a folder: a file or a subfolder."""

    name: str
    path: str
    is_folder: bool


class BrowsedStore:
    """The store that the screen shows; `refresh` reopens it."""

    def __init__(self, open_store: Callable[[], Store]) -> None:
        self._open = open_store
        self.problems: dict[tuple[str, int | None], Problem] = {}
        self.lock = LockState(False)
        self._read = OffsetRuns()
        """The ranges of the log that were read, for the map of the log."""
        self._reading = threading.Lock()
        self._start()

    def _start(self) -> None:
        store = self._open()
        try:
            self.lock = store.lock
            self.reader = StoreView(store, self.note, self.note_read)
            self._scans = list[StoreView]()
        except BaseException:
            store.close()
            raise

    @property
    def root(self) -> str:
        return self.reader.store.root

    def note(self, problem: Problem) -> None:
        """Remember a problem, unless it is already known."""
        if problem.is_fault and len(self.problems) < _MAX_PROBLEMS:
            self.problems.setdefault((problem.kind, problem.offset), problem)

    def note_read(self, start: int, end: int) -> None:
        """Remember that a range of the log was read."""
        with self._reading:
            self._read.add_run(start, end)

    def read_of(self, start: int, end: int) -> int:
        """Return the number of bytes already read in a range of the log."""
        with self._reading:
            return self._read.count(start, end)

    @property
    def damaged(self) -> list[tuple[int, int]]:
        """The ranges of physical offsets in which damage was found."""
        return [(problem.offset, problem.offset + max(problem.length or 0, 1))
                for problem in list(self.problems.values())
                if problem.offset is not None and problem.kind not in ("row", "gap")]

    @property
    def seen(self) -> tuple[int, int]:
        """(number of damaged ranges in the log, number of dangling consume queue entries) found so
        far.
        """
        rows = sum(kind == "row" for kind, _ in list(self.problems))
        return len(self.problems) - rows, rows

    def refresh(self) -> None:
        """Reopen the store to show new data of a broker.
        Raises: RmqctlError. The store then stays open in its earlier state.
        """
        before, scans = self.reader, self._scans
        self._start()
        self.problems.clear()
        with self._reading:
            self._read = OffsetRuns()
        for reader in (before, *scans):
            with reader.guard:
                reader.close()

    def another(self) -> StoreView:
        """Return a second reader of the same state of the store, for a long scan. The caller closes
        it.
        """
        reader = self.reader
        with reader.guard:  # values that a store caches are not computed by two threads
            store = reader.store
            copy = Store(store.root, store.log_folders, store.sizes, store.snapshot)
        return StoreView(copy, self.note, self.note_read)

    def scanning(self) -> StoreView:
        """Return the reader for filters and searches, which is separate so that other reads do not
        wait.
        """
        if not self._scans:
            self._scans = [self.another()]
        return self._scans[0]

    def close(self) -> None:
        for reader in (self.reader, *self._scans):
            with reader.guard:
                reader.close()

    # -- the tree -----------------------------------------------------------------------------

    def known_topics(self) -> list[str]:
        """Return the topics that have queues, or are configured."""
        return known_topics(self.reader.store)

    def queues(self, topic: str) -> list[int]:
        store = self.reader.store
        return sorted({*queue_ids(store, "consumequeue", topic),
                       *queue_ids(store, "batchconsumequeue", topic)})

    def log_files(self) -> list[StoreFile]:
        """Return the log files. Raises: UnsupportedError if the log cannot be read."""
        return self.reader.store.log.files

    def unread(self) -> dict[str, str]:
        """Return, for each structure that cannot be read, the reason."""
        return dict(self.reader.store.layout.unread)

    def folder(self, path: str) -> list[FolderEntry]:
        """Return the entries of a folder of the store. Raises: OSError."""
        with closing(os.scandir(path)) as entries:
            return sorted(
                (FolderEntry(entry.name, entry.path, entry.is_dir()) for entry in entries),
                key=lambda entry: (not entry.is_folder, entry.name))
