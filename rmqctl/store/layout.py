"""The layout of a store, determined only from its files: the form of the log, of the consumequeues
and of the configuration (spec: rocksdb.md §9, dledger.md §6, commitlog.md §1).

* `Layout.unread`: the structures that this version of rmqctl cannot read. Code that needs such a
  structure gets an UnsupportedError.
* `Layout.unwritten`: the structures that this version cannot write. Repairs neither plan nor write
  anything for a store with such a structure.
"""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Callable, Sequence
from dataclasses import field
from typing import Literal

from rmqctl import vfs
from rmqctl.errors import (
    CopyLimitError,
    MissingExtraError,
    RmqctlError,
    UnsupportedError,
    UsageError,
    require,
)
from rmqctl.lazy_dataclass import dataclass
from rmqctl.store import log_folders
from rmqctl.store.files import log_listing, node_of

CommitlogLayout = Literal["plain", "multi-path", "dledger", "mixed"]
QueueLayout = Literal["file", "rocksdb", "double"]
ConfigLayout = Literal["json", "rocksdb-v1", "rocksdb-v2"]

SUPERSEDED = frozenset({"topics.json", "subscriptionGroup.json", "consumerOffset.json",
                        "lmqConsumerOffset.json"})
"""The files of ``config/`` that a broker with its configuration in RocksDB does not update."""
_IN_V1 = {"topics.json": "config/topics", "subscriptionGroup.json": "config/subscriptionGroups",
          "consumerOffset.json": "config/consumerOffsets"}
CONFIG_DATABASES: dict[ConfigLayout, dict[str, str]] = {
    "json": {}, "rocksdb-v1": _IN_V1, "rocksdb-v2": dict.fromkeys(_IN_V1, "config/rdb")}
"""For each file of ``config/``: the database that replaces it."""
CONTROLLER_FILES = ("epochFileCheckpoint", "epochFileCheckpoint.bak", "brokerIdentity",
                    "brokerIdentity-temp")
"""The controller mode files in a store; the first two show that a store was in that mode."""
_CURRENT = re.compile(rb"MANIFEST-\d{6,}\n")
_DATABASE = re.compile(r"MANIFEST-\d+|\d+\.sst", re.ASCII)
DATABASE_FILE = re.compile(r"CURRENT|LOCK|IDENTITY|LOG(\.old\.\d+)?|MANIFEST-\d+|"
                           r"OPTIONS-\d+(\.dbtmp)?|\d+\.(sst|log|blob|dbtmp)", re.ASCII)
"""Pattern of the names of the files that RocksDB keeps in the folder of a database."""
_IN_ROCKSDB = "the consumequeues are in a RocksDB database (consumequeue/)"
FORM_UNKNOWN = ("it is unknown which of the two a broker reads: pass --broker-conf (storeType in "
                "it decides)")
"""End of the reason if queues exist both in files and in a database. Only storeType decides which
of the two a broker reads.
"""
_NO_QUEUES = ("a backup at a URL has no consume queues of this kind: `rmqctl restore` builds them "
              "from the log")
_MADE_ANEW = ("consumequeue", "config")
_NOT_WRITTEN = "which this version of rmqctl does not write"


@dataclass(frozen=True, slots=True)
class Layout:
    """The layout of a store.

    ``unread``: for each structure that cannot be read, the reason.
    ``damaged``: the structures of ``unread`` that are damaged.
    ``unwritten``: for each structure that cannot be written, readable or not, the reason.
    ``notes``: sentences about structures that exist twice; they say which of the two a broker
    reads.
    ``controller``: whether the store was written in controller mode (with a plain log).
    """

    commitlog: CommitlogLayout
    consumequeue: QueueLayout
    config: ConfigLayout
    controller: bool = False
    member: bool = False
    """True if the log is that of a single DLedger node, with its index and checkpoint."""
    unread: dict[str, str] = field(default_factory=dict)
    unwritten: dict[str, str] = field(default_factory=dict)
    damaged: frozenset[str] = frozenset()
    notes: tuple[str, ...] = ()

    def as_dict(self) -> dict[str, str]:
        """Return the layout as the JSON object that `info` shows."""
        return {"commitlog": self.commitlog, "consumequeue": self.consumequeue,
                "config": self.config}

    @property
    def is_dledger(self) -> bool:
        """Return whether the log, or its newer part, consists of DLedger entries."""
        return self.commitlog in ("dledger", "mixed")

    def reads(self, structure: str) -> bool:
        """Return whether ``commitlog``, ``consumequeue`` or ``config`` can be read and checked."""
        return structure not in self.unread

    def require(self, root: str, structure: str) -> None:
        """Raise UnsupportedError, with the reason, if the structure cannot be read."""
        if structure in self.unread:
            raise UnsupportedError(f"{root}: {self.unread[structure]}")

    @property
    def is_mended(self) -> bool:
        """Return whether `recover` can repair the store (see `require_writable`).

        To repair the damaged log of a DLedger member, `recover` needs the log of another member.
        """
        readable = self.reads("consumequeue") or "consumequeue" in self.damaged
        mended = {*self._made_anew, *self._mended}
        return self.unwritten.keys() <= mended and (self.consumequeue == "file" or readable)

    @property
    def _made_anew(self) -> tuple[str, ...]:
        """The structures in `unwritten` that a repair either creates completely or does not
        change.
        """
        return _MADE_ANEW if self.consumequeue == "rocksdb" else _MADE_ANEW[1:]

    @property
    def _mended(self) -> tuple[str, ...]:
        """The structures in `unwritten` that only `recover` repairs: the log of a DLedger member,
        and queues that exist both in files and in RocksDB.
        """
        return (*(("commitlog",) if self.member else ()),
                *((_MADE_ANEW[0],) if self.consumequeue == "double" and self.reads(
                    _MADE_ANEW[0]) else ()))

    def require_writable(self, root: str, structures: Sequence[str] | None = None, *,
                         made_anew: bool = False, mends: bool = False) -> None:
        """Raise UnsupportedError if one of the structures cannot be written (None: any structure of
        the store).

        ``made_anew`` allows two structures: consumequeues in RocksDB, which the caller creates
        completely; and configuration, which the caller does not change.
        ``mends`` allows two others: the log of a DLedger member, which the caller does not change
        or repairs from another member; and queues that exist both in files and in RocksDB, which
        the caller rebuilds from the log.
        """
        left = self._made_anew if made_anew else ()
        if mends:
            left += self._mended
        reason = next((reason for name, reason in self.unwritten.items() if name not in left
                       and (structures is None or name in structures)), None)
        if reason is not None:
            hint = "" if set(self.unwritten) != {"commitlog"} else (
                f"; but `rmqctl recover {shlex.quote(root)}"
                + ("` repairs it from another member of the group (--from), and rebuilds "
                   "what depends on it" if self.member else
                   " --only consumequeue,index` rebuilds what depends on it"))
            raise UnsupportedError(f"{root}: {reason}; rmqctl plans and writes nothing for such a "
                                   f"store{hint}")


def log_layout(root: str, folders: list[str], *, decided: bool = False) -> tuple[
        CommitlogLayout, list[str]]:
    """Return (layout of the log, its folders with DLedger data), from the files in ``folders``.

    If ``folders`` have no DLedger data, but several nodes below the root do, the data folders of
    all nodes are returned. With ``decided``, only ``folders`` count.
    """
    listings = {folder: log_listing(folder, first_only=True).files for folder in folders}
    framed = [folder for folder, files in listings.items()
              if any(file.head for file in files)]
    plain = [folder for folder, files in listings.items() if files and folder not in framed]
    if not framed and not decided:
        nodes = log_folders.nodes_below(root)
        framed = [os.path.join(root, node) for node in nodes] if len(nodes) > 1 else []
    if framed:
        return ("mixed" if plain else "dledger"), framed
    return ("multi-path" if len(folders) > 1 else "plain"), []


def whose_log(root: str, folders: list[str]) -> str:
    """Return the reason why the files do not show which log belongs to the broker; "" if they do.

    rmqctl does not choose between several DLedger nodes below one root (spec: dledger.md §6).
    """
    layout, framed = log_layout(root, folders)
    if not framed or not set(framed).isdisjoint(folders):
        return ""
    nodes = [os.path.relpath(folder, root) for folder in framed]
    first = f"--commitlog-dir {nodes[0]}"
    if layout == "mixed":
        first = f"--commitlog-dir commitlog {first}"
    return (f"the store contains the logs of several DLedger nodes ({', '.join(nodes)}); it is "
            f"unknown which one belongs to the broker: pass {first}, for example")


def recognise(root: str, folders: list[str], queues_reach_end: Callable[[], bool],
              open_database: Callable[[], object], store_type: str | None = None, *,
              decided: bool = False) -> Layout:
    """Return the layout of the store at ``root``. Never raises.

    ``queues_reach_end`` returns whether the consumequeue files cover all messages of the log. It is
    called only if the store has both consumequeue files and a RocksDB database.
    ``open_database`` opens the database of consumequeues, if it exists, and raises an exception if
    it cannot be read.
    ``store_type``: the value in the broker's own configuration.
    ``decided``: whether the log consists of exactly ``folders``.
    """
    unread: dict[str, str] = {}
    unwritten: dict[str, str] = {}
    notes: list[str] = []
    # Find the form of the log.
    commitlog, framed = log_layout(root, folders, decided=decided)
    if framed:
        beside = " after the plain files of commitlog/" if commitlog == "mixed" else ""
        data = ", ".join(os.path.relpath(folder, root) for folder in framed)
        unwritten["commitlog"] = f"the log is a DLedger log in {data}{beside}, {_NOT_WRITTEN}"
    # With several DLedger nodes below one root the log is ambiguous, so the queues are unknown.
    undecided = "" if decided else whose_log(root, folders)
    if undecided:
        unread["commitlog"] = unread["consumequeue"] = unwritten["consumequeue"] = undecided
    # Find the form of the consume queues, and note if this version cannot write it.
    config = _config(root)
    queues = _queues(root, config, queues_reach_end if not undecided else lambda: True, store_type,
                     unread, notes)
    if queues == "rocksdb":
        unwritten["consumequeue"] = f"{_IN_ROCKSDB}, {_NOT_WRITTEN}"
    elif queues == "double":
        unwritten["consumequeue"] = ("the consumequeues exist twice, in files and in RocksDB, "
                                     f"{_NOT_WRITTEN}")
    if vfs.lacks(root, "consumequeue"):
        unread.setdefault("consumequeue", _NO_QUEUES)
    # Configuration in RocksDB needs an optional package to be read at all.
    if config != "json":
        place = "config/rdb" if config == "rocksdb-v2" else "config/topics and beside it"
        lies = f"topics, groups and offsets are in RocksDB ({place})"
        try:
            require("rocksdict")
        except MissingExtraError as error:
            unread["config"] = f"{lies}: {error}; the JSON files with these names are out of date"
        unwritten["config"] = f"{lies}, {_NOT_WRITTEN}"
    controller = any(vfs.lexists(os.path.join(root, name))
                     for name in CONTROLLER_FILES[:2])
    # Open the database last, because this is slow; a missing package is not damage.
    damaged = set()
    if queues == "rocksdb" and "consumequeue" not in unread:
        try:
            open_database()
        except RmqctlError as error:
            unread["consumequeue"] = f"{_IN_ROCKSDB}, and cannot be read: {error}"
            if not isinstance(error, MissingExtraError | CopyLimitError | UsageError):
                damaged.add("consumequeue")
    member = not undecided and len(framed) == 1 and node_of(framed[0]) is not None
    return Layout(commitlog, queues, config, controller, member, unread, unwritten,
                  frozenset(damaged), tuple(notes))


def _queues(root: str, config: ConfigLayout, reach_end: Callable[[], bool],
            store_type: str | None, unread: dict[str, str], notes: list[str]) -> QueueLayout:
    """Return the form of the consumequeues; add reasons to ``unread`` and sentences to
    ``notes``.
    """
    folder = os.path.join(root, "consumequeue")
    database, topics = is_database(folder), _has_folders(folder)
    # Only one of the two exists: the broker reads it.
    if not database:
        left = any(DATABASE_FILE.fullmatch(name) for name in _names(folder))
        if topics or not (left or config == "rocksdb-v1" or store_type == "defaultRocksDB"):
            return "file"
        says = ("config/topics" if config == "rocksdb-v1" else "its folder" if left else
                "the broker's configuration")
        notes.append(f"according to {says}, the consumequeues were in a RocksDB database, which is "
                     "missing (a broker rebuilds it when it starts after an unclean shutdown)")
        return "rocksdb"
    if not topics:
        return "rocksdb"
    # Both exist: files that reach the end of the log are good; else the configuration decides.
    both = "consumequeue/ contains files and a RocksDB database"
    if reach_end():
        notes.append(f"{both}: the files cover all messages of the log and are checked; the "
                     "database is only compared with them")
        return "double"
    if store_type == "defaultRocksDB":
        notes.append(f"{both}: the files are older than the log and the broker's configuration has "
                     "storeType=defaultRocksDB, so a broker reads the database")
        return "rocksdb"
    if store_type == "default":
        notes.append(f"{both}: the broker's configuration has storeType=default, so a broker reads "
                     "the files; they are checked, the database is not")
        return "double"
    if config == "json" and _has_topics_file(root):
        notes.append(f"{both}: the configuration is in files (config/topics.json), so a broker "
                     "reads the files; they are checked, the database is not")
        return "double"
    if config == "rocksdb-v1":
        notes.append(f"{both}: the files are older than the log and the configuration is in "
                     "RocksDB, so a broker reads the database; the files are left over")
        return "rocksdb"
    notes.append(f"{both}: the files are older than the log, and {FORM_UNKNOWN}")
    unread.setdefault("consumequeue",
                      f"{both}, the files are older than the log, and {FORM_UNKNOWN}")
    return "double"


def _config(root: str) -> ConfigLayout:
    if is_database(os.path.join(root, "config", "rdb")):
        return "rocksdb-v2"
    return "rocksdb-v1" if any(is_database(os.path.join(root, *folder.split("/")))
                               for folder in _IN_V1.values()) else "json"


def is_database(folder: str) -> bool:
    """Return whether a folder is a RocksDB database, intact or damaged (spec: rocksdb.md §9)."""
    if _CURRENT.fullmatch(_start(os.path.join(folder, "CURRENT"), 64)):
        return True
    return any(_DATABASE.fullmatch(name) for name in _names(folder))


def _has_topics_file(root: str) -> bool:
    return any(vfs.lexists(os.path.join(root, "config", name))
               for name in ("topics.json", "topics.json.bak"))


def _has_folders(folder: str) -> bool:
    try:
        with vfs.scandir(folder) as entries:
            return any(entry.is_dir() for entry in entries)
    except OSError:
        return False


def _names(folder: str) -> list[str]:
    try:
        return vfs.listdir(folder)
    except (OSError, ValueError):
        return []


def _start(path: str, length: int) -> bytes:
    """Return the first bytes of a regular file; b"" if it cannot be read."""
    try:
        if not vfs.isfile(path):
            return b""
        with vfs.open_bytes(path) as file:
            return file.read(length)
    except (OSError, ValueError):
        return b""
