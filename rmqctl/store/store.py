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
from collections.abc import Iterable
from contextlib import closing, suppress
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from rmqctl import vfs
from rmqctl.errors import FormatError, NotAStoreError, StoreIOError
from rmqctl.files.lock_probe import LockState, probe
from rmqctl.formats.local import checkpoint as checkpoint_format
from rmqctl.formats.local.checkpoint import CheckpointRecord
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
    Trouble,
    log_listings,
    node_of,
)
from rmqctl.store.index.store_index import Index
from rmqctl.store.layout import Layout, recognise, whose_log
from rmqctl.store.live import Snapshot
from rmqctl.store.log.commit_log import CommitLog
from rmqctl.store.log.cut_off import CutOff, cut_off
from rmqctl.store.log.once import cached_property
from rmqctl.store.log.witness import StoreWitness
from rmqctl.store.queue.store_queues import StoreQueues
from rmqctl.store.store_settings import LOG_FOLDERS, StoreConfig, recall

if TYPE_CHECKING:

    from rmqctl.store.log.chain import LeftOver
    from rmqctl.store.log.dledger import Node
    from rmqctl.store.repair_losses import RepairLosses
    from rmqctl.store.version_hints import VersionEvidence

_MARKS = ("commitlog", "consumequeue", "index", "config", "checkpoint", "batchconsumequeue",
          "timerlog")
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
        self.queues = StoreQueues(self, sizes.consumequeue_file)
        self.index = Index(self, sizes.index_slots, sizes.index_max)
        self.config = StoreConfig(self, sizes.conf.values)
        self._evidence: StoreWitness | None = None
        self._seen_end = 0
        self._uses: tuple[str, ...] = ()
        self.log_is_found = False
        """True if only their files show that folders other than ``commitlog`` belong to the log."""
        self.is_by_name = False
        """True if the names of log files count, as for a broker, even if their records show other
        ones.
        """

    def by_name(self) -> Store:
        """Return a view of this store in which each log file is the one in its name."""
        store = Store(self.root, self.log_folders, self.sizes, self._moment, current=self._current)
        store.log_is_found, store.is_by_name = self.log_is_found, True
        return store

    @property
    def is_misplaced(self) -> bool:
        """Return whether log files have the names of other ones, or are not in the log's folder."""
        return any(trouble.exchanged or trouble.nested for trouble in self.log_troubles)

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
        store.log_is_found = not (named or folders == [store.path("commitlog")]
                                  or _remembered_folders(root) or store.nodes)
        if any(map(vfs.is_mounted, (root, *folders))):  # here a file that changes is an error
            store.index.keep_shapes()
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
        return cut_off(self.root, self.log_as_it_is)

    @cached_property
    def repair_losses(self) -> RepairLosses:
        """The losses from earlier repairs of this store that no filler shows."""
        from rmqctl.store.repair_losses import repair_losses  # look-ups rarely need it

        cut = self.cut_off
        return repair_losses(self.root, self.log_as_it_is, None if cut is None else cut.end)

    def up_to(self, end: int) -> Store:
        """Return a view of this store whose log ends at the physical offset ``end``. The caller
        closes it.
        """
        return Store(self.root, self.log_folders, self.sizes, Snapshot(
            end, frozenset(file.name for file in self.index.listing.files)))

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

    def log_end_now(self, beyond: int) -> int:
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
                         lambda: self.queues.rocksdb, self.sizes.conf.store_type,
                         decided=self.sizes.decided)

    def _queues_reach_end(self) -> bool:
        """Return whether the plain consume queues have an entry for the last message of the log."""
        reach = -1
        for queue in self.queues.plain.values():
            try:
                with closing(queue):
                    reach = max(reach, queue.max_physical(queue.written))
            except StoreIOError:
                continue
        if reach < 0:
            return False
        try:
            for batch in self.log_as_it_is.walk(reach):
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
        return log_listings(self.log_folders, root=self.root, by_name=self.is_by_name)

    @property
    def log(self) -> CommitLog:
        """The log.

        Raises: UnsupportedError if several logs are possible.
        """
        if not self._log_is_known:
            self.layout.require(self.root, "commitlog")
        return self.log_as_it_is

    @cached_property
    def _log_is_known(self) -> bool:
        return self.sizes.decided or not whose_log(self.root, self.log_folders)

    @cached_property
    def log_as_it_is(self) -> CommitLog:
        """The log of `log_folders`, even if several logs are possible."""
        witness = self._evidence = self._evidence or self.new_witness()
        files = [replace(file, witness=witness)
                 for listed in self._log_listings for file in listed.files]
        size = self.sizes.commitlog_file
        if size is None and not files:
            size = self.config.remembered.get("commitlog_file_size")
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
            self.by_name if self.is_by_name else partial(
                Store, self.root, self.log_folders, self.sizes, current=current),
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

    # -- views --------------------------------------------------------------------------------

    def lend(self, to: Store, *, evidence: bool = False) -> None:
        """Lend the known queues and shapes of index files to another view of the store.

        ``evidence``: whether to also lend the evidence of record positions.
        """
        if self.snapshot is None:
            to.queues.borrow(self.queues)
            to.index.borrow(self.index)
            to._evidence = self._evidence if evidence else None

    def leave_damaged_out(self) -> None:
        """From now on, ignore a database of consume queues that cannot be opened: the calling
        repair rebuilds it.
        """
        damaged = self.layout.damaged
        self.layout = replace(self.layout, damaged=frozenset(), unread={
            name: why for name, why in self.layout.unread.items() if name not in damaged})
        if damaged:
            self.queues.without_database()

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
        if "log_as_it_is" in self.__dict__:
            self.log_as_it_is.close()
        self.queues.close()
