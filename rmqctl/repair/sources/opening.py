"""Open the sources of `recover --from`: stores, log files, or messages that were read from a log.

Messages are in JSON lines or Parquet files. A message is encoded to its stored bytes, which are
written to a log at its physical offset (`rmqctl.repair.sources.records`). Files of another kind are
refused with an error that names the kind.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from dataclasses import field

from rmqctl import vfs
from rmqctl.checks.diff.members import are_members
from rmqctl.checks.verify.common import plural
from rmqctl.errors import (
    FormatError,
    NotAStoreError,
    RefusedError,
    RmqctlError,
    UnsupportedError,
    UsageError,
)
from rmqctl.formats.local import names
from rmqctl.formats.local.message import MAGIC_BLANK, START_SIZE, VERSIONS, decode, magic_at
from rmqctl.formats.tiered import names as tiered_names
from rmqctl.lazy_dataclass import dataclass
from rmqctl.repair.plan import Watch
from rmqctl.repair.salvage.log_files import FAR, file_size
from rmqctl.repair.scratch import Scratch
from rmqctl.repair.sources.records import LaidOut, Read, Unused
from rmqctl.repair.sources.relocate import Relocator
from rmqctl.scan.overlay import LogPart
from rmqctl.scan.source import FileSource
from rmqctl.store.files import StoreFile, listing
from rmqctl.store.log.commit_log import CommitLog
from rmqctl.store.log.end import find_end
from rmqctl.store.queue.consume_queue import ConsumeQueue
from rmqctl.store.store import Store

OURS = "ours"
_START = 4096
_LAST = (1 << 62) - 1
_MAX_REASONS = 3
_LINES, _PARQUET, _LOG, _TIER = "JSON lines", "Parquet", "commitlog", "a tier"
_PARQUET_MAGIC = b"PAR1"
_MANIFEST = "_rmqctl_export.json"
_ENDINGS = {".jsonl": _LINES, ".parquet": _PARQUET}
_PACKED = {b"\x1f\x8b": "gzip", b"\x28\xb5\x2f\xfd": "zstd"}
_AVRO = b"Obj\x01"
_CSV = re.compile(rb"[a-z_]+([,\t][a-z_.]+)+\s")
_TAKEN = ("--from accepts the folder of a store, files of a commitlog, and messages as JSON lines "
          "(`rmqctl read -o jsonl`) or Parquet (`rmqctl pipeline export`)")

_NO_MEMBER = ("this store has a DLedger log, and only the store of another member of its group "
              "has the same entries")


@dataclass(frozen=True, slots=True)
class Readers:
    """Readers of messages in forms that need other packages. A reader is None if sources of its
    form are refused.
    """

    parquet: Read | None = None
    tier: Read | None = None


@dataclass(slots=True)
class LogSource:
    """A log from which bytes may be copied.

    ``name``: as the user gave it.
    ``end``: physical offset after the last record of the log.
    ``store``: the store that contains the log, or None.
    ``preferred``: whether this log wins where two logs have different intact records.
    ``notes``: warnings.
    """

    name: str
    log: CommitLog
    end: int
    store: Store | None = None
    preferred: bool = False
    notes: tuple[str, ...] = ()

    def parts(self) -> list[LogPart]:
        """Return a part without content for each file from the first to the last file of
        the log.
        """
        size, files = self.log.file_size, self.log.files
        return [LogPart(base, size, None)
                for base in range(files[0].base, files[-1].base + 1, size)] if files else []

    def close(self) -> None:
        if self.store is not None:
            self.store.close()
        self.log.close()


@dataclass(slots=True)
class Opener:
    """Opens the sources that `--from` names, for the store ``ours``. Messages are written to a log
    in ``scratch``.
    """

    ours: Store
    scratch: Scratch
    watch: Watch
    readers: Readers
    opened: int = 0

    def open(self, name: str, *, preferred: bool = False) -> LogSource:
        """Open a source.

        Raises: NotAStoreError if ``name`` is not a possible source; UnsupportedError for a log in
        another layout; UsageError for the store itself, or a source that shares files with the
        store; RefusedError if no message can be used; StoreIOError.
        """
        source = self._open(name)
        source.preferred = preferred
        return source

    def _open(self, name: str) -> LogSource:
        if self.ours.layout.is_dledger:
            return self._store(name, Store.open(name))
        if os.path.isfile(name) and vfs.archive_of(name) is None:
            kind = _kind(name)
            if kind == _LOG:
                return self._log_files(name, [_log_file(name)])
            return self._messages(name, [(name, kind)])
        if self.readers.tier is not None and _is_tier(name):
            return self._messages(name, [(name, _TIER)])
        try:
            return self._store(name, Store.open(name))
        except NotAStoreError:
            files, message_files = listing(name).files, _below(name)
            if files:
                return self._log_files(name, files)
            if not message_files:
                raise
            return self._messages(name, message_files)

    def _store(self, name: str, store: Store) -> LogSource:
        ours = self.ours
        # Refuse the store's own files, and a log of another kind.
        try:
            if not vfs.is_remote(store.root) and os.path.samefile(ours.root, store.root):
                raise UsageError(f"--from {name}: is the store itself")
            folders = {os.path.realpath(folder) for folder in ours.log_folders}
            if not folders.isdisjoint(vfs.realpath(folder) for folder in store.log_folders):
                raise UsageError(f"--from {name}: it has the same commitlog as the store itself")
            store.layout.require(name, "commitlog")
            if store.layout.is_dledger and not ours.layout.is_dledger:
                raise UnsupportedError(f"{name}: a DLedger log has its messages at different "
                                       "offsets than a plain log, so it cannot be the source of "
                                       "one")
            if ours.layout.is_dledger and not are_members([store]):
                raise UnsupportedError(f"{name}: {_NO_MEMBER}")
            _refuse_same_files(ours, store.log, name)
            if not any(file.size for file in store.log.files):
                raise NotAStoreError(f"{name}: contains no commitlog")
            end = find_end(store).offset
        except RmqctlError:
            store.close()
            raise
        # A running broker's log is read up to its end at the start of this run.
        holder, notes = store.lock, []
        if holder.held:
            holder_name = f"process {holder.pid}" if holder.pid else "another process"
            notes.append(f"{name}: locked by {holder_name}; it is read up to where its log ended "
                         "when this run began, and later messages are ignored")
        return LogSource(name, store.log, end, store, notes=tuple(notes))

    def _log_files(self, name: str, files: Sequence[StoreFile]) -> LogSource:
        log = CommitLog([file for file in files if file.size])
        _refuse_same_files(self.ours, log, name)
        if not log.files:
            raise NotAStoreError(f"{name}: is empty")
        return LogSource(name, log, find_end(_Bare(log)).offset)

    # -- messages ---------------------------------------------------------------------------------

    def _messages(self, name: str, files: Sequence[tuple[str, str]]) -> LogSource:
        unused, laid = Unused(), self._laid_out(name)
        try:
            with self.watch(f"reading {name}", sum(os.path.getsize(path) for path, _ in files)) as (
                    done), Relocator(self.ours) as relocator:
                for path, kind in files:
                    for where, stored in self._reader(path, kind)(path, unused):
                        raw = relocator.moved(stored) if kind == _TIER else stored
                        wrong = raw if isinstance(raw, str) else laid.put(raw)
                        if wrong:
                            unused.add(wrong, where)
                        done(len(stored))
            log, end = laid.log(unused)
        finally:
            laid.close()
        if not log.files:
            if not unused.total:
                raise NotAStoreError(f"{name}: no messages found in it")
            raise RefusedError(f"{name}: none of its {plural(unused.total, 'message')} can be "
                               f"used: {_reasons(unused)}")
        notes = (f"{name}: {plural(unused.total, 'message')} cannot be used: {_reasons(unused)}",)
        return LogSource(name, log, end, notes=notes if unused.total else ())

    def _reader(self, path: str, kind: str) -> Read:
        if kind == _LINES:
            from rmqctl.repair.sources import lines

            return lines.records
        read = self.readers.tier if kind == _TIER else self.readers.parquet
        if read is None:
            raise UnsupportedError(f"{path}: {kind} is not supported here")
        return read

    def _laid_out(self, name: str) -> LaidOut:
        """Return an empty log to which messages can be added. Raises: RefusedError if the size of
        log files is unknown.
        """
        ours, log = self.ours, self.ours.log
        if not log.files and ours.sizes.commitlog_file is None:
            raise RefusedError(f"{name}: this store has no log file left, and messages alone do "
                               "not show the size of its files: pass --commitlog-file-size")
        size = ours.sizes.commitlog_file or file_size(ours)
        low, high = 0, _LAST
        if log.files:
            low, high = log.min_offset - FAR * size, log.end + FAR * size
        self.opened += 1
        return LaidOut(self.scratch, f"from-{self.opened}", size, low, high)


# -- files of a log -------------------------------------------------------------------------------


@dataclass(slots=True)
class _NoQueues:
    readable: dict[tuple[str, int], ConsumeQueue] = field(default_factory=dict)


@dataclass(slots=True)
class _Bare:
    """A log whose consume queues are unknown."""

    log: CommitLog
    queues: _NoQueues = field(default_factory=_NoQueues)


def _log_file(path: str) -> StoreFile:
    """Return a log file, with its physical offset from its name or from its first record. Raises:
    NotAStoreError if neither contains the offset.
    """
    size, name = os.path.getsize(path), os.path.basename(path)
    base = names.parse_offset(name)
    if base is None:
        with FileSource(path) as source:
            try:
                base = decode(source.read(0, size if size < _START else 4 << 20)).physical_offset
            except FormatError:
                base = -1
    if base < 0:
        raise NotAStoreError(f"{path}: contains commitlog records, but neither its name nor a "
                             "complete first record shows its physical offset: rename it to its "
                             "original name (20 digits)")
    return StoreFile(path, f"{base:020d}", base, size)


def _refuse_same_files(ours: Store, log: CommitLog, name: str) -> None:
    """Raise UsageError if the log contains files of this store: a repair in place would change the
    source.
    """
    own_paths = {_inode(file.path): file.path for file in ours.log.files}
    for file in log.files:
        same = own_paths.get(_inode(file.path))
        if same is not None and os.path.realpath(same) == os.path.realpath(file.path):
            raise UsageError(f"--from {name}: belongs to the store itself")
        if same is not None:
            raise UsageError(f"--from {name}: {file.path} and {same} are the same file (hard "
                             "links), so a change to one changes the other: copy it "
                             "(cp --reflink=auto) and pass the copy")


def file_size_of(ours: Store, sources: Sequence[LogSource]) -> int | None:
    """Return the size of log files in a source; None if it is not needed, or if this store's files
    cannot have this size.

    The size is needed if all files of the store are truncated.
    """
    if ours.sizes.commitlog_file is not None:
        return None
    files = ours.log.files
    for source in sources:
        size = source.log.file_size
        if len(source.log.files) > 1 and all(
                file.base % size == 0 and file.size <= size for file in files):
            return size
    return None


def _inode(path: str) -> tuple[int, int]:
    about = vfs.stat(path)
    return about.st_dev, about.st_ino


# -- kinds of files ------------------------------------------------------------------------------


def _kind(path: str) -> str:
    """Return the kind of a file. Raises: NotAStoreError if the file cannot be a source;
    StoreIOError.
    """
    with FileSource(path) as source:
        start, size = source.read(0, _START), source.size
    if not size:
        raise NotAStoreError(f"{path}: is empty")
    if start.startswith(_PARQUET_MAGIC):
        return _PARQUET
    if names.parse_offset(os.path.basename(path)) is not None or (
            len(start) >= START_SIZE and magic_at(start) in (*VERSIONS, MAGIC_BLANK)):
        return _LOG
    text = start.removeprefix(b"\xef\xbb\xbf").lstrip()
    if text.startswith(b"{"):
        return _LINES
    raise NotAStoreError(f"{path}: {_what(start, text)}; {_TAKEN}")


def _what(start: bytes, text: bytes) -> str:
    for mark, name in _PACKED.items():
        if start.startswith(mark):
            return f"is compressed with {name}: decompress it first"
    if start.startswith(_AVRO):
        return "is Avro"
    if text.startswith(b"["):
        return "is a single JSON list; expected one line for each message"
    if _CSV.match(text):
        return "is CSV, which is not supported"
    return "has an unknown format"


def _is_tier(folder: str) -> bool:
    """Return whether a folder is a tier, that is, contains a folder with the name of a cluster's
    folder.
    """
    try:
        with os.scandir(folder) as entries:
            return any(tiered_names.parse_cluster(entry.name) and entry.is_dir()
                       for entry in entries)
    except OSError:
        return False


def _below(folder: str) -> list[tuple[str, str]]:
    """Return (path, kind) of each file in a folder whose name shows that it contains messages."""
    message_files: list[tuple[str, str]] = []
    endings = _ENDINGS
    if os.path.lexists(os.path.join(folder, _MANIFEST)):
        endings = {**_ENDINGS, ".json": _LINES}
    for below, folders, files in os.walk(folder):
        folders.sort()
        for name in sorted(files):
            kind = endings.get(os.path.splitext(name)[1])
            if kind is not None and not name.startswith(("_", ".")):
                message_files.append((os.path.join(below, name), kind))
    return message_files


def _reasons(unused: Unused) -> str:
    most = unused.counts.most_common()
    texts = [f"{reason} ({f'{count}, ' if len(most) > 1 else ''}first: {unused.first[reason]})"
            if unused.first[reason] else f"{reason} ({count})" for reason, count
            in most[:_MAX_REASONS]]
    return "; ".join(texts) + ("; and more" if len(most) > _MAX_REASONS else "")
