"""A store directory, opened read-only, and the search for its files.

``Store.open`` finds sizes, multi-path logs, queues, index files and the holder of the lock. It
writes nothing.

* If another process holds the lock, its later writes are ignored (`rmqctl.store.live`).
* Missing and unreadable parts are reported (`troubles`).
* The settings that `init` recorded (`rmqctl.store.store_settings`) are used only for values that
  the files do not determine.
"""

from __future__ import annotations

import os
import stat
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import closing, suppress
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from rmqctl import vfs
from rmqctl.errors import FormatError, NotAStoreError, RmqctlError, StoreIOError
from rmqctl.files.lock_probe import LockState, probe
from rmqctl.formats.local import batch_consume_queue, consume_queue
from rmqctl.formats.local import checkpoint as checkpoint_format
from rmqctl.formats.local.checkpoint import CheckpointRecord
from rmqctl.formats.local.consume_queue import UnitRecord
from rmqctl.formats.local.index_file import IndexShape
from rmqctl.formats.local.names import INDEX_DIGITS
from rmqctl.formats.local.properties import LMQ_PREFIX
from rmqctl.formats.local.sysflag import (
    TRANSACTION_COMMIT,
    TRANSACTION_MASK,
    TRANSACTION_NONE,
)
from rmqctl.lazy_dataclass import dataclass
from rmqctl.scan.source import BESIDES_BODY, LARGEST_RECORD, Closing, FileSource
from rmqctl.store import live, log_folders
from rmqctl.store.broker_conf import NO_CONF, BrokerConf
from rmqctl.store.files import (
    Listing,
    StoreFile,
    Trouble,
    listing,
    listing_of,
    log_listing,
    node_of,
)
from rmqctl.store.index.files import IndexFile, open_index
from rmqctl.store.index.shape import Decided
from rmqctl.store.layout import Layout, is_database, recognise, whose_log
from rmqctl.store.live import Snapshot
from rmqctl.store.log.commit_log import CommitLog
from rmqctl.store.log.cut_off import CutOff, cut_off
from rmqctl.store.log.once import cached_property
from rmqctl.store.log.witness import StoreWitness
from rmqctl.store.queue.batch_queue import BatchQueue
from rmqctl.store.queue.consume_queue import ConsumeQueue, FileQueue
from rmqctl.store.store_settings import LOG_FOLDERS, Remembered, recall

if TYPE_CHECKING:
    import numpy as np

    from rmqctl.scan.queue_reach import Leads, LightQueues
    from rmqctl.store.config.rocksdb import ConfigPart
    from rmqctl.store.log.chain import LeftOver
    from rmqctl.store.log.dledger import Node
    from rmqctl.store.repair_losses import RepairLosses
    from rmqctl.store.rocksdb.queues import RocksQueues
    from rmqctl.store.version_hints import VersionEvidence

_MARKS = ("commitlog", "consumequeue", "index", "config", "checkpoint", "batchconsumequeue",
          "timerlog")
MAX_QUEUE_ID = (1 << 31) - 1
_MAX_CANDIDATES, _MAX_NAMED = 32, 3
"""Limits of the note that suggests other stores if the given folder is not a store.

``_MAX_CANDIDATES``: number of entries of a folder that are searched for stores.
``_MAX_NAMED``: number of stores that the note names.
"""
_TRIES, _PAUSE = 3, 0.05
"""``_TRIES``: maximum number of attempts to read a store while a broker is writing.
``_PAUSE``: seconds between two attempts.
"""
_INDEX_VOTERS = 3
"""Maximum number of index files of one size that are examined to determine the shape of all these
files.
"""


def _near(root: str) -> str:
    """Return a note that suggests a store instead of the folder ``root``: the parent folder, or
    stores up to two levels below ``root``.
    """
    around = vfs.normpath(os.path.join(root, os.pardir))
    if vfs.isdir(os.path.join(around, _MARKS[0])):
        return f"; it is inside the store {around}"
    from rmqctl.formats.tiered.names import parse_cluster

    if not vfs.is_remote(root) and {"points", "small"} <= {*_names(root)}:
        return f"; it is a backup, which is read through its URL: file://{os.path.abspath(root)}"
    if any(map(parse_cluster, _names(root))):
        return "; it is a tier, which `rmqctl read`, `stats`, `verify` and `export` accept"
    stores: list[str] = []
    folders = [root]
    for _ in range(2):
        folders = [os.path.join(folder, name) for folder in folders[:_MAX_CANDIDATES]
                   for name in _names(folder)]
        stores += [folder for folder in folders if vfs.isdir(os.path.join(folder, _MARKS[0]))]
    if not stores:
        return ""
    more = f" and {len(stores) - _MAX_NAMED} more" if len(stores) > _MAX_NAMED else ""
    return f"; did you mean {', '.join(sorted(stores)[:_MAX_NAMED])}{more}?"


def _names(folder: str) -> list[str]:
    try:
        return sorted(vfs.listdir(folder))[:_MAX_CANDIDATES]
    except OSError:
        return []


@dataclass(frozen=True, slots=True)
class Sizes:
    """The settings of a store from options and configuration files.

    An option takes precedence over ``conf``, the broker's own configuration file. A size of None is
    determined from the files.

    ``largest_record``: maximum size of a record of the log.
    ``folders_given``: whether an option names the log's folders.
    ``decided``: whether a broker opens exactly these folders, even if others exist.
    """

    commitlog_file: int | None = None
    consumequeue_file: int | None = None
    index_slots: int | None = None
    index_max: int | None = None
    conf: BrokerConf = NO_CONF
    largest_record: int | None = None
    batch_queue_file: int | None = None
    folders_given: bool = False
    decided: bool = False
    refuted: frozenset[str] = frozenset()
    """Names of the sizes in ``conf`` that contradict the store's files."""

    def is_refuted(self, name: str, value: Any) -> bool:
        """Return whether ``value`` is a configured size that contradicts the store's files."""
        return name in self.refuted and value == self.conf.values.get(name)


def _remembered_folders(root: str) -> list[str]:
    """Return the log folders that `init` recorded; empty if ``commitlog/`` contains a file."""
    try:
        with vfs.scandir(os.path.join(root, "commitlog")) as entries:
            if any(entry.is_file() for entry in entries):
                return []
    except (OSError, ValueError):
        pass
    folders: list[str] = recall(root).values.get(LOG_FOLDERS, [])
    return folders


class Store(Closing):
    """A read-only view of one store root. Use `open`; it is a context manager.

    ``moment``: the snapshot of another view, to be used by this view. ``current``: read the current
    files, without a snapshot.
    """

    def __init__(self, root: str, log_folders: list[str], sizes: Sizes,
                 moment: Snapshot | None = None, *, current: bool = False) -> None:
        self.root, self.log_folders, self.sizes = root, log_folders, sizes
        self._moment, self._current = moment, current
        self._queues: dict[tuple[str, int], FileQueue] = {}
        self._lent: dict[tuple[str, int], FileQueue] = {}
        self._evidence: StoreWitness | None = None
        self._shapes_met: dict[str, Decided] = {}
        self._shapes_lent: dict[str, Decided] | None = None
        self._listings: dict[str, Listing] = {}
        self._as_is: RocksQueues | None = None
        self._seen_end = 0
        self._uses: tuple[str, ...] = ()

    @classmethod
    def open(cls, path: str | os.PathLike[str], commitlog_dirs: Iterable[str] = (),
             sizes: Sizes | None = None, *, sampled: bool = False) -> Store:
        """Open a store root.

        ``sampled``: for a store at a URL, find the end of the data in each file by sampling the
        zeros after it, instead of reading all of them.
        ``commitlog_dirs``: the folders of a multi-path log, relative to the root or absolute. By
        default, the log is in ``commitlog/``, in the folders with which the store was created, or
        in the folders that `rmqctl.store.log_folders` finds.

        Raises: NotAStoreError if it contains no part of a store.
        """
        # Reject anything that is not a readable directory, with the reason.
        root = os.fspath(path)
        if vfs.is_elsewhere(root):
            from rmqctl.files.remote.tree import mounted

            root = mounted(root, sampled=sampled)
        try:
            info = vfs.stat(root)
        except OSError as error:
            if isinstance(error, PermissionError):
                raise StoreIOError.from_oserror(error, root, "open") from None
            raise NotAStoreError(
                str(StoreIOError.from_oserror(error, root)) + "; not a store") from None
        except ValueError as error:
            raise NotAStoreError(f"{root!r}: {error}") from None
        if not stat.S_ISDIR(info.st_mode):
            raise NotAStoreError(f"{root}: not a directory, so not a store (`rmqctl dump` shows "
                                 "single files)")
        # Folders from options override recorded ones, and these override folders found on disk.
        named = list(commitlog_dirs)
        where = named or _remembered_folders(root) or log_folders.find(root)
        folders = [name if "://" in name else os.path.join(root, name) for name in where]
        for number, folder in enumerate(folders if named else ()):
            if vfs.is_elsewhere(folder) and not vfs.is_mounted(folder):
                from rmqctl.files.remote.tree import mounted

                folders[number] = mounted(folder, sampled=sampled)
            elif not vfs.isdir(folder):
                raise NotAStoreError(f"{folder}: commitlog directory does not exist")
        try:
            vfs.scandir(root).close()
        except OSError as error:
            raise StoreIOError.from_oserror(error, root, "list") from None
        # A broker.conf may belong to another store: files that refute its sizes have priority.
        sizes = sizes or Sizes()
        if sizes.conf.values:
            from rmqctl.store.conf_sizes import as_files_are

            sizes = as_files_are(cls(root, folders, Sizes(), current=True), sizes)
        store = cls(root, folders, sizes)
        if any(map(vfs.is_mounted, (root, *folders))):  # here a file that changes is an error
            store._shapes_lent = store._shapes_met
            store._uses = root, *folders
            for place in store._uses:
                vfs.use(place, 1)
        # Refuse a folder without any mark of a store, unless its log is known to be elsewhere.
        if not named and not any(vfs.lexists(store.path(mark)) for mark in _MARKS) and (
                folders == [store.path("commitlog")] and not log_folders.nodes_below(root)):
            raise NotAStoreError(f"{root}: not a store (it has none of "
                                 f"{', '.join(_MARKS)}){_near(root)}")
        return store

    def path(self, *parts: str) -> str:
        return os.path.join(self.root, *parts)

    @cached_property
    def settings_file(self) -> Remembered:
        """The settings that `init` recorded for the store, and descriptions of the faults of their
        file.
        """
        return recall(self.root)

    @property
    def remembered(self) -> dict[str, Any]:
        """The valid values of `settings_file`, by the names of
        `rmqctl.store.store_settings.KEYS`.
        """
        return self.settings_file.values

    @cached_property
    def snapshot(self) -> Snapshot | None:
        """The snapshot of the store, taken when it is first needed; None if no other process has
        the store open.
        """
        if self._moment is not None or self._current:
            return self._moment
        holder = self.lock
        if not holder.held or holder.pid == os.getpid() or not self._log_is_known:
            return None
        return self._taken_now()

    @cached_property
    def cut_off(self) -> CutOff | None:
        """The note on bytes that a repair truncated from the log but left in its file. None if no
        such bytes exist, or if a process writes to the store.
        """
        if not self._log_is_known or self.snapshot is not None:
            return None
        return cut_off(self.root, self._log)

    @cached_property
    def repair_losses(self) -> RepairLosses:
        """The losses from earlier repairs of this store that no filler shows."""
        from rmqctl.store.repair_losses import repair_losses  # look-ups rarely need it

        cut = self.cut_off
        return repair_losses(self.root, self._log, None if cut is None else cut.end)

    def up_to(self, end: int) -> Store:
        """Return a view of this store whose log ends at the physical offset ``end``. The caller
        closes it.
        """
        return Store(self.root, self.log_folders, self.sizes, Snapshot(
            end, frozenset(file.name for file in self.index_listing.files)))

    def before_unfinished(self) -> Store:
        """Return a view of this store whose log ends before an incomplete record that a broker did
        not continue.

        Return the store itself if no such record exists, or if intact messages follow it.
        """
        held = self.snapshot
        if held is None or held.whole_end is None or held.whole_end == held.log_end or any(
                len(batch) for batch in self.log.walk(held.whole_end)):
            return self
        return Store(self.root, self.log_folders, self.sizes,
                     replace(held, log_end=held.whole_end))

    def _as_now(self) -> Store:
        return Store(self.root, self.log_folders, self.sizes, current=True)

    def _taken_now(self) -> Snapshot | None:
        """Return a snapshot of the current state; None if a file cannot be read.

        The unreadable file is reported when it is used.
        """
        for _ in range(_TRIES):  # a file may have just been created or renamed
            with suppress(StoreIOError), self._as_now() as now:
                return live.take(now)
            time.sleep(_PAUSE)
        return None

    def _log_end_now(self, beyond: int) -> int:
        """Return the current end of the log, to check rows that point beyond the end of the
        snapshot.

        The end is determined again only if the last result is not greater than ``beyond``.
        """
        if beyond >= self._seen_end:
            now = self._taken_now()
            self._seen_end = 0 if now is None else now.log_end
        return self._seen_end

    @cached_property
    def layout(self) -> Layout:
        """The layout of the store, including the structures that cannot be read."""
        return recognise(self.root, self.log_folders, self._queues_reach_end,
                         lambda: self.rocksdb, self.sizes.conf.store_type,
                         decided=self.sizes.decided)

    def _queues_reach_end(self) -> bool:
        """Return whether the plain consume queues have an entry for the last message of the log."""
        reach = -1
        for queue in self.plain_queues.values():
            try:
                with closing(queue):
                    reach = max(reach, queue.max_physical(queue.written))
            except StoreIOError:
                continue
        if reach < 0:
            return False
        try:
            for batch in self._log.walk(reach):
                kind = batch.column("sys_flag") & TRANSACTION_MASK
                if ((kind == TRANSACTION_NONE) | (kind == TRANSACTION_COMMIT)).any():
                    return False
        except StoreIOError:
            return False
        return True

    # -- commitlog ----------------------------------------------------------------------------

    @cached_property
    def _log_listings(self) -> list[Listing]:
        _ = self.snapshot  # first: a file that is created meanwhile would be missing from the list
        return [log_listing(folder) for folder in self.log_folders]

    @property
    def log(self) -> CommitLog:
        """The log.

        Raises: UnsupportedError if several logs are possible.
        """
        if not self._log_is_known:
            self.layout.require(self.root, "commitlog")
        return self._log

    @cached_property
    def _log_is_known(self) -> bool:
        return self.sizes.decided or not whose_log(self.root, self.log_folders)

    @cached_property
    def _log(self) -> CommitLog:
        witness = self._evidence = self._evidence or self.new_witness()
        files = [replace(file, witness=witness)
                 for listed in self._log_listings for file in listed.files]
        size = self.sizes.commitlog_file
        if size is None and not files:
            size = self.remembered.get("commitlog_file_size")
        if self.snapshot is not None:
            files = live.log_files(files, self.snapshot.log_end)
        elif self.left_over is not None:
            files = live.log_files(files, self.left_over.end)
        return CommitLog(files, size)

    @cached_property
    def left_over(self) -> LeftOver | None:
        """The stale entries after the end of a DLedger log; they are not part of the log.

        None if no stale entries exist, if a process writes to the store, or if a file cannot be
        read.
        """
        framed = sorted((file for listed in self._log_listings for file in listed.files
                         if file.head), key=lambda file: file.name)
        if self.snapshot is not None or not framed or len(self.nodes) != 1:
            return None
        from rmqctl.store.log.chain import left_over

        with suppress(StoreIOError):
            return left_over(framed, self.nodes[0])
        return None

    def new_witness(self, *, current: bool = False) -> StoreWitness:
        """Return the evidence of record positions from entries and keys. The evidence is read when
        it is first used.

        ``current``: read the current files instead of a snapshot.
        """
        set_to = self.sizes.conf.values.get("max_message_size")
        witness = StoreWitness(
            partial(Store, self.root, self.log_folders, self.sizes, current=current),
            self.sizes.largest_record,
            LARGEST_RECORD if set_to is None else set_to + BESIDES_BODY)
        if not current:
            witness.lend = self.lend
        return witness

    @cached_property
    def nodes(self) -> list[Node]:
        """The DLedger nodes whose data is the log or its newer part; empty for a plain log."""
        folders = [node for node in map(node_of, self.log_folders) if node is not None]
        if not folders:
            return []
        from rmqctl.store.log.dledger import Node

        return [Node(folder) for folder in folders]

    @property
    def log_troubles(self) -> list[Trouble]:
        return [trouble for listed in self._log_listings for trouble in listed.troubles]

    # -- consumequeues ------------------------------------------------------------------------

    def _queue_files(self, files: list[StoreFile], unit: np.dtype[Any]) -> list[StoreFile]:
        if self.snapshot is None:
            return files
        return live.queue_files(files, unit, self.snapshot.log_end, self._log_end_now)

    def listed(self, folder: str) -> Listing:
        """Return the listing of a folder of queues, or of the files of one queue; cached after the
        first call.
        """
        if folder not in self._listings:
            _ = self.snapshot  # as for the log
            self._listings[folder] = listing(folder)
        return self._listings[folder]

    def note_listed(self, folder: str, entries: Iterable[os.DirEntry[str]]) -> None:
        """Save the caller's listing of a folder for later calls of `listed`."""
        if folder.startswith(self._tops_of_queues) and folder not in self._listings:
            self._listings[folder] = listing_of(entries)

    @cached_property
    def _tops_of_queues(self) -> tuple[str, str]:
        _ = self.snapshot  # as for the log
        return self.path("consumequeue"), self.path("batchconsumequeue")

    def _queue_folders(self, structure: str) -> Iterator[tuple[str, int, Listing, str]]:
        top = self.path(structure)
        for topic in self.listed(top).folders:
            folder = os.path.join(top, topic)
            for name in sorted(self.listed(folder).folders, key=lambda n: (len(n), n)):
                if name.isascii() and name.isdigit() and int(name) <= MAX_QUEUE_ID:
                    queue_folder = os.path.join(folder, name)
                    yield topic, int(name), self.listed(queue_folder), queue_folder

    @property
    def queues(self) -> Mapping[tuple[str, int], ConsumeQueue]:
        """All plain consume queues that a broker reads, by (topic, queue id), in the order of their
        folders or keys.

        Raises: UnsupportedError if the queues, or the log to which they point, cannot be read.
        """
        self.layout.require(self.root, "consumequeue")
        if self.layout.consumequeue != "rocksdb":
            return self.plain_queues
        return {} if self.rocksdb is None else self.rocksdb.queues

    @property
    def known_queues(self) -> Mapping[tuple[str, int], ConsumeQueue]:
        """The queues, for code that can do without them: empty if they cannot be read."""
        return self.queues if self.layout.reads("consumequeue") else {}

    @cached_property
    def plain_queues(self) -> dict[tuple[str, int], FileQueue]:
        """The queues in files, even if a broker reads others."""
        size = self.sizes.consumequeue_file
        unit = consume_queue.dtype()
        if self._lent:
            return {key: queue.again() for key, queue in self._lent.items()}
        self._lent = {(topic, queue): FileQueue(topic, queue, folder,
                                                self._queue_files(listed.files, unit),
                                                listed.troubles, size)
                      for topic, queue, listed, folder in self._queue_folders("consumequeue")}
        return self._lent

    def lend(self, to: Store, *, evidence: bool = False) -> None:
        """Lend the known queues and shapes of index files to another view of the store.

        ``evidence``: whether to also lend the evidence of record positions.
        """
        if self.snapshot is None:
            to._lent, to._shapes_lent = self._lent, self._shapes_met
            to._evidence = self._evidence if evidence else None

    def queue(self, topic: str, queue_id: int) -> ConsumeQueue | None:
        """Return one queue; only its own folder is listed.

        Raises: UnsupportedError like `queues`.
        """
        self.layout.require(self.root, "consumequeue")
        if self.layout.consumequeue == "rocksdb":
            return self.queues.get((topic, queue_id))
        return self.plain_queue(topic, queue_id)

    def plain_queue(self, topic: str, queue_id: int) -> FileQueue | None:
        """Return one queue of `plain_queues`; None if it does not exist. Only its own folder is
        listed.
        """
        key = topic, queue_id
        if key not in self._queues and key in self._lent:
            self._queues[key] = self._lent[key].again()
        elif key not in self._queues:
            folder = self.path("consumequeue", topic, str(queue_id))
            if not topic or "/" in topic or "\0" in topic or not vfs.isdir(folder):
                return None
            listed = self.listed(folder)
            files = self._queue_files(listed.files, consume_queue.dtype())
            self._queues[key] = FileQueue(topic, queue_id, folder, files, listed.troubles,
                                          self.sizes.consumequeue_file)
        return self._queues[key]

    @cached_property
    def rocksdb(self) -> RocksQueues | None:
        """The opened database of consume queues; None if the database does not exist.

        Raises: FormatError, StoreIOError and MissingExtraError like `Database.open`.
        """
        folder = self.path("consumequeue")
        if not is_database(folder):
            return None
        from rmqctl.store.rocksdb.queues import RocksQueues

        return RocksQueues(folder, self._leads_to_its_message,
                           None if self.snapshot is None else self.snapshot.log_end)

    def leave_damaged_out(self) -> None:
        """From now on, ignore a database of consume queues that cannot be opened: the calling
        repair rebuilds it.
        """
        damaged = self.layout.damaged
        self.layout = replace(self.layout, damaged=frozenset(), unread={
            name: why for name, why in self.layout.unread.items() if name not in damaged})
        if damaged:
            self.rocksdb = None

    def _leads_to_its_message(self, queue: ConsumeQueue, queue_offset: int,
                              unit: UnitRecord) -> bool:
        try:
            record = self._log.record_at(unit.physical_offset, unit.size)
        except StoreIOError:
            return False
        return record is not None and (queue.topic.startswith(LMQ_PREFIX) or (
            record.topic, record.queue_id, record.queue_offset) == (
                os.fsencode(queue.topic), queue.queue_id, queue_offset))

    def rows_as_evidence(self) -> Mapping[tuple[str, int], ConsumeQueue]:
        """Return the existing plain queues as evidence of record positions, even if a broker does
        not read these queues.

        They come from files or, if there are no files, from a database, including its left-over
        rows. No record is read. Unreadable parts are omitted.
        """
        return self.plain_queues or self._rocksdb_as_is

    @cached_property
    def _rocksdb_as_is(self) -> Mapping[tuple[str, int], ConsumeQueue]:
        if not is_database(self.path("consumequeue")):
            return {}
        from rmqctl.store.rocksdb.queues import RocksQueues

        try:
            self._as_is = RocksQueues(self.path("consumequeue"))
        except RmqctlError:
            return {}
        return self._as_is.queues

    def row_as_evidence(self, topic: str, queue_id: int) -> ConsumeQueue | None:
        """Return one queue of `rows_as_evidence`; None if it does not exist."""
        return self.plain_queue(topic, queue_id) or self._rocksdb_as_is.get((topic, queue_id))

    def known_queue(self, topic: str, queue_id: int) -> ConsumeQueue | None:
        """Return one queue, for code that can do without it; None if the consume queues cannot be
        read.
        """
        return self.queue(topic, queue_id) if self.layout.reads("consumequeue") else None

    @cached_property
    def light_queues(self) -> LightQueues:
        """The known facts about the light queues of the store; `leads` checks their entries."""
        from rmqctl.store.queue.light_queues import light_queues_of

        settings = self.remembered | self.sizes.conf.values
        return light_queues_of(self.known_queues, settings, self.generation)

    @property
    def leads(self) -> Leads:
        from rmqctl.store.queue.light_queues import leading

        return partial(leading, self.known_queues)

    @cached_property
    def batch_queues(self) -> dict[tuple[str, int], BatchQueue]:
        """All batch consumequeues (5.x) by (topic, queue id)."""
        unit = batch_consume_queue.dtype()
        return {(topic, queue): BatchQueue(topic, queue, folder,
                                           self._queue_files(listed.files, unit), listed.troubles)
                for topic, queue, listed, folder in self._queue_folders("batchconsumequeue")}

    # -- index --------------------------------------------------------------------------------

    @cached_property
    def index_listing(self) -> Listing:
        listed = listing(self.path("index"), INDEX_DIGITS)
        if self.snapshot is not None:
            listed.files = [file for file in listed.files if file.name in self.snapshot.index_names]
        return listed

    def open_index(self, file: StoreFile) -> IndexFile:
        """Open an index file.

        Raises: FormatError if the file's shape is unknown, StoreIOError if it is unreadable.
        """
        if self.snapshot is None or file.name not in self.snapshot.index_headers:
            return self._open_index(file)
        for _ in range(live.INDEX_TRIES - 1):
            try:  # a header that is older than the slots fits no shape, but the next one may
                index = self._open_index(file)
                break
            except FormatError:
                continue
        else:
            index = self._open_index(file)
        return live.fixed(index, self.snapshot.index_headers[file.name])

    def _open_index(self, file: StoreFile) -> IndexFile:
        lent = None if self._shapes_lent is None else self._shapes_lent.get(file.path)
        index = open_index(file, self.sizes.index_slots, self.sizes.index_max,
                           self._shapes_said(file), lent)
        if self._shapes_lent is not None:
            self._shapes_lent[file.path] = Decided(index.shape, index.sure)
        return index

    def _shapes_said(self, file: StoreFile) -> Iterator[IndexShape]:
        """Yield shapes that an index file may have: first from store.json, then from other index
        files of the same size.
        """
        slots, most = self.remembered.get("index_slots"), self.remembered.get("index_max")
        if slots is not None and most is not None:
            yield IndexShape(slots, most)
        for size, shape in self._index_shapes.items():
            if size == file.size:
                yield shape

    @cached_property
    def _index_shapes(self) -> dict[int, IndexShape]:
        """For each file size: the shape that the contents of most examined index files of this size
        prove.
        """
        votes: dict[int, Counter[IndexShape]] = {}
        for file in self.index_listing.files:
            shapes = votes.setdefault(file.size, Counter())
            if shapes.total() >= _INDEX_VOTERS:
                continue
            try:
                index = open_index(file)
            except (FormatError, StoreIOError):
                continue
            index.close()
            if index.sure and index.header.entries:
                shapes[index.shape] += 1
        return {size: shapes.most_common(1)[0][0] for size, shapes in votes.items() if shapes}

    def index_shape(self) -> tuple[IndexShape | None, str]:
        """Return (shape of the index files, reason).

        The newest file that proves a shape decides. If no file proves a shape, the result is (None,
        reason); if there are no index files, (None, "").
        """
        why = ""
        for file in reversed(self.index_listing.files):
            if not file.size:
                continue
            try:
                index = self.open_index(file)
            except (FormatError, StoreIOError) as error:
                why = why or str(error)
                continue
            index.close()
            if index.sure:
                return index.shape, ""
            why = why or (f"{file.path}: cannot determine the number of hash slots; pass "
                          "--index-slots and --index-max")
        return None, why

    def indexes_newest_first(self) -> Iterator[IndexFile]:
        """Yield the readable index files. Other index files are omitted; `verify` names them."""
        for file in reversed(self.index_listing.files):
            try:
                index = self.open_index(file)
            except (FormatError, StoreIOError):
                continue
            try:
                yield index
            finally:
                index.close()

    # -- small files --------------------------------------------------------------------------

    def read_small(self, *parts: str, most: int = 64 << 20) -> bytes:
        """Return the content of a small file below the root.

        Raises: StoreIOError if it cannot be read.
        """
        with FileSource(self.path(*parts)) as source:
            return source.read(0, min(source.size, most))

    @cached_property
    def checkpoint(self) -> CheckpointRecord | None:
        """The checkpoint; None if it is missing, too short or unreadable."""
        try:
            return checkpoint_format.parse(self.read_small("checkpoint", most=1 << 16))
        except (StoreIOError, FormatError):
            return None

    @cached_property
    def config_parts(self) -> dict[str, ConfigPart]:
        """For each file of ``config/`` that a database replaces: the part of the database with its
        content.

        Empty if no file is replaced, or if rmqctl does not read this layout.
        """
        if self.layout.config == "json" or not self.layout.reads("config"):
            return {}
        from rmqctl.store.config.rocksdb import read_config

        return read_config(self.root, self.layout.config)

    @property
    def has_abort(self) -> bool:
        return vfs.lexists(self.path("abort"))

    @property
    def lock(self) -> LockState:
        """The state of the lock, read again each time, because a broker may start or stop."""
        return probe(self.path("lock"))

    @cached_property
    def generation(self) -> int:
        """The generation (4 or 5) of the broker that wrote the files, according to
        `rmqctl.store.version_hints.evidence`.
        """
        return self.evidence.generation

    @cached_property
    def evidence(self) -> VersionEvidence:
        """Evidence of which generation of brokers (4 or 5) wrote the store, and whether this
        evidence is proof.
        """
        from rmqctl.store.version_hints import evidence

        return evidence(self)

    def close(self) -> None:
        uses, self._uses = self._uses, ()
        for place in uses:
            vfs.use(place, -1)
        for opened in (self.__dict__.pop("rocksdb", None), self._as_is):
            if opened is not None:
                opened.close()
        if "_log" in self.__dict__:
            self._log.close()
        for queue in (*self._queues.values(), *self.__dict__.get("plain_queues", {}).values()):
            queue.close()
