"""The consume queues of a store: those in files, and those that a broker reads."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

from rmqctl import vfs
from rmqctl.errors import RmqctlError, StoreIOError
from rmqctl.formats.local import batch_consume_queue, consume_queue, names
from rmqctl.formats.local.consume_queue import UnitRecord
from rmqctl.formats.local.properties import LMQ_PREFIX
from rmqctl.store import live
from rmqctl.store.files import Listing, StoreFile, listing, listing_of
from rmqctl.store.layout import Layout, is_database
from rmqctl.store.live import Snapshot
from rmqctl.store.log.commit_log import CommitLog
from rmqctl.store.log.once import cached_property
from rmqctl.store.queue.batch_queue import BatchQueue
from rmqctl.store.queue.consume_queue import ConsumeQueue, FileQueue
from rmqctl.store.store_settings import StoreConfig

if TYPE_CHECKING:
    import numpy as np

    from rmqctl.scan.queue_reach import Leads, LightQueues
    from rmqctl.store.rocksdb.queues import RocksQueues

PLAIN, BATCH = "consumequeue", "batchconsumequeue"


class QueueFolders:
    """The consume queues in files below a root.

    ``file_size``: the configured size of their files; None if the files determine it.
    """

    def __init__(self, root: str, file_size: int | None = None) -> None:
        self.root, self._file_size = root, file_size
        self._tops = tuple(os.path.join(root, name) for name in (PLAIN, BATCH))
        self._queues: dict[tuple[str, int], FileQueue] = {}
        self._lent: dict[tuple[str, int], FileQueue] = {}
        self._listings: dict[str, Listing] = {}

    def _begin(self) -> None:
        """Called before the first folder is listed."""

    def _files(self, files: list[StoreFile], unit: np.dtype[Any]) -> list[StoreFile]:
        """Return files as they are to be read. ``unit``: the layout of their entries."""
        return files

    def listed(self, folder: str) -> Listing:
        """Return the listing of a folder of queues, or of the files of one queue; cached after the
        first call.
        """
        if folder not in self._listings:
            self._begin()
            self._listings[folder] = listing(folder)
        return self._listings[folder]

    def note_listed(self, folder: str, entries: Iterable[os.DirEntry[str]]) -> None:
        """Save the caller's listing of a folder for later calls of `listed`."""
        self._begin()
        if folder.startswith(self._tops) and folder not in self._listings:
            self._listings[folder] = listing_of(entries)

    def _folders(self, structure: str) -> Iterator[tuple[str, int, Listing, str]]:
        top = os.path.join(self.root, structure)
        for topic in self.listed(top).folders:
            folder = os.path.join(top, topic)
            for name in sorted(self.listed(folder).folders, key=lambda n: (len(n), n)):
                queue_id = names.parse_queue_id(name)
                if queue_id is not None:
                    queue_folder = os.path.join(folder, name)
                    yield topic, queue_id, self.listed(queue_folder), queue_folder

    @cached_property
    def plain(self) -> dict[tuple[str, int], FileQueue]:
        """The queues in files by (topic, queue id), even if a broker reads others."""
        unit = consume_queue.dtype()
        if self._lent:
            return {key: queue.again() for key, queue in self._lent.items()}
        self._lent = {(topic, queue): FileQueue(topic, queue, folder,
                                                self._files(listed.files, unit),
                                                listed.troubles, self._file_size)
                      for topic, queue, listed, folder in self._folders(PLAIN)}
        return self._lent

    def find_plain(self, topic: str, queue_id: int) -> FileQueue | None:
        """Return one queue of `plain`; None if it does not exist. Only its own folder is listed."""
        key = topic, queue_id
        if key not in self._queues and key in self._lent:
            self._queues[key] = self._lent[key].again()
        elif key not in self._queues:
            folder = os.path.join(self.root, PLAIN, topic, str(queue_id))
            if not topic or "/" in topic or "\0" in topic or not vfs.isdir(folder):
                return None
            listed = self.listed(folder)
            self._queues[key] = FileQueue(topic, queue_id, folder, self._files(
                listed.files, consume_queue.dtype()), listed.troubles, self._file_size)
        return self._queues[key]

    @cached_property
    def batch(self) -> dict[tuple[str, int], BatchQueue]:
        """All batch consumequeues (5.x) by (topic, queue id)."""
        unit = batch_consume_queue.dtype()
        return {(topic, queue): BatchQueue(topic, queue, folder, self._files(listed.files, unit),
                                           listed.troubles)
                for topic, queue, listed, folder in self._folders(BATCH)}

    def borrow(self, other: QueueFolders) -> None:
        """Use what another view of the same store knows about its queues."""
        self._lent = other._lent

    def close(self) -> None:
        for queue in (*self._queues.values(), *self.__dict__.get("plain", {}).values()):
            queue.close()


class QueueOwner(Protocol):
    """The part of the interface of `rmqctl.store.store.Store` that its queues need."""

    root: str

    @property
    def snapshot(self) -> Snapshot | None: ...
    @property
    def layout(self) -> Layout: ...
    @property
    def config(self) -> StoreConfig: ...
    @property
    def generation(self) -> int: ...
    @property
    def log_as_it_is(self) -> CommitLog: ...
    def log_end_now(self, beyond: int) -> int: ...


class StoreQueues(QueueFolders):
    """The consume queues of a store, in files or in a database. The state of the store's snapshot
    is read.
    """

    def __init__(self, store: QueueOwner, file_size: int | None) -> None:
        super().__init__(store.root, file_size)
        self._store = store
        self._as_is: RocksQueues | None = None

    def _begin(self) -> None:
        _ = self._store.snapshot  # first: a file that is created meanwhile would be missing

    def _files(self, files: list[StoreFile], unit: np.dtype[Any]) -> list[StoreFile]:
        snapshot = self._store.snapshot
        if snapshot is None:
            return files
        return live.queue_files(files, unit, snapshot.log_end, self._store.log_end_now)

    @property
    def by_key(self) -> Mapping[tuple[str, int], ConsumeQueue]:
        """All plain consume queues that a broker reads, by (topic, queue id), in the order of their
        folders or keys.

        Raises: UnsupportedError if the queues, or the log to which they point, cannot be read.
        """
        self._store.layout.require(self.root, PLAIN)
        if self._store.layout.consumequeue != "rocksdb":
            return self.plain
        return {} if self.rocksdb is None else self.rocksdb.queues

    @property
    def readable(self) -> Mapping[tuple[str, int], ConsumeQueue]:
        """The queues, for code that can do without them: empty if they cannot be read."""
        return self.by_key if self._store.layout.reads(PLAIN) else {}

    def find(self, topic: str, queue_id: int) -> ConsumeQueue | None:
        """Return one queue; only its own folder is listed.

        Raises: UnsupportedError like `by_key`.
        """
        self._store.layout.require(self.root, PLAIN)
        if self._store.layout.consumequeue == "rocksdb":
            return self.by_key.get((topic, queue_id))
        return self.find_plain(topic, queue_id)

    def find_readable(self, topic: str, queue_id: int) -> ConsumeQueue | None:
        """Return one queue, for code that can do without it; None if the consume queues cannot be
        read.
        """
        return self.find(topic, queue_id) if self._store.layout.reads(PLAIN) else None

    @cached_property
    def rocksdb(self) -> RocksQueues | None:
        """The opened database of consume queues; None if the database does not exist.

        Raises: FormatError, StoreIOError and MissingExtraError like `Database.open`.
        """
        folder = os.path.join(self.root, PLAIN)
        if not is_database(folder):
            return None
        from rmqctl.store.rocksdb.queues import RocksQueues

        snapshot = self._store.snapshot
        return RocksQueues(folder, self._leads_to_its_message,
                           None if snapshot is None else snapshot.log_end)

    def without_database(self) -> None:
        """From now on, read the queues as if the database did not exist."""
        self.rocksdb = None

    def _leads_to_its_message(self, queue: ConsumeQueue, queue_offset: int,
                              unit: UnitRecord) -> bool:
        try:
            record = self._store.log_as_it_is.record_at(unit.physical_offset, unit.size)
        except StoreIOError:
            return False
        return record is not None and (queue.topic.startswith(LMQ_PREFIX) or (
            record.topic, record.queue_id, record.queue_offset) == (
                os.fsencode(queue.topic), queue.queue_id, queue_offset))

    def as_evidence(self) -> Mapping[tuple[str, int], ConsumeQueue]:
        """Return the existing plain queues as evidence of record positions, even if a broker does
        not read these queues.

        They come from files or, if there are no files, from a database, including its left-over
        rows. No record is read. Unreadable parts are omitted.
        """
        return self.plain or self._rocksdb_as_is

    def find_evidence(self, topic: str, queue_id: int) -> ConsumeQueue | None:
        """Return one queue of `as_evidence`; None if it does not exist."""
        return self.find_plain(topic, queue_id) or self._rocksdb_as_is.get((topic, queue_id))

    @cached_property
    def _rocksdb_as_is(self) -> Mapping[tuple[str, int], ConsumeQueue]:
        folder = os.path.join(self.root, PLAIN)
        if not is_database(folder):
            return {}
        from rmqctl.store.rocksdb.queues import RocksQueues

        try:
            self._as_is = RocksQueues(folder)
        except RmqctlError:
            return {}
        return self._as_is.queues

    @cached_property
    def light(self) -> LightQueues:
        """The known facts about the light queues of the store; `leads` checks their entries."""
        from rmqctl.store.queue.light_queues import light_queues_of

        return light_queues_of(self.readable, self._store.config.values, self._store.generation)

    @property
    def leads(self) -> Leads:
        from rmqctl.store.queue.light_queues import leading

        return partial(leading, self.readable)

    def close(self) -> None:
        for opened in (self.__dict__.pop("rocksdb", None), self._as_is):
            if opened is not None:
                opened.close()
        super().close()
