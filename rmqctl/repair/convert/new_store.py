"""Create a new store from another store: a plain copy, or a store with a plain log instead of a
DLedger log (spec: dledger.md §2, §5, §7).

* Plain log files before the DLedger log are copied byte for byte, with holes and times.
* Each message of the DLedger log is appended. Only its physical offset changes, because the new log
  has no entry headers. A file in the new store maps old to new physical offsets.
* Commits and rollbacks get the new physical offset of their half message.
* Consume queues and index are rebuilt from the log.
* Consumer offsets are queue offsets, so they remain valid.
"""

from __future__ import annotations

import csv
import json
import os
from array import array
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import field, replace
from typing import IO, Any

from rmqctl.broker.settings import Settings
from rmqctl.engine.config.create import LOCK, LOG, create_store, plan_store
from rmqctl.engine.engine import GROUP_BYTES, GROUP_MESSAGES, Engine
from rmqctl.engine.opening import refuse_held
from rmqctl.errors import FormatError, StoreIOError, UsageError
from rmqctl.files.disk_usage import bytes_below
from rmqctl.files.durable import STAGING, make_folders, new_file, publish, sync_file
from rmqctl.files.sparse import copy_sparse
from rmqctl.formats.local import names
from rmqctl.formats.local import properties as props
from rmqctl.formats.local.filler import LOST, MARK, NOWHERE
from rmqctl.formats.local.message import Record, decode
from rmqctl.formats.local.properties import NAME_VALUE_SEPARATOR, PROPERTY_SEPARATOR
from rmqctl.formats.local.sysflag import (
    BORN_HOST_V6,
    COMPRESSED,
    COMPRESSION_MASK,
    TRANSACTION_MASK,
    TRANSACTION_PREPARED,
)
from rmqctl.lazy_dataclass import dataclass
from rmqctl.repair.broker_config import configured
from rmqctl.repair.convert.queues import keep_ends
from rmqctl.repair.rebuild.rebuild import CONSUMEQUEUE
from rmqctl.scan.frames import DAMAGED
from rmqctl.store.objects import text
from rmqctl.store.store import Store
from rmqctl.store.store_settings import CURRENT_FORMAT, FORMAT, path_of

MAPPING = "physical-offsets.csv"
COLUMNS = ("old", "new", "topic", "queue_id", "queue_offset")
_NOT_CARRIED = ("timerwheel", "timerlog", "compaction/compactionLog", "tieredstore",
                "consumequeue_ext")
"""Files that are not copied. They are not derived from the log, and they contain physical offsets
or belong to another service.
"""
_HALF = props.HALF_TOPIC.encode()
_MAX_PLACES = 20


@dataclass(slots=True)
class Converted:
    """Result of a conversion.

    ``left_out``: number of damaged messages and ranges of the log that are missing from the new
    store.
    ``places``: physical offsets of the first `_MAX_PLACES` of these messages and ranges.
    ``fillers``: number of messages with a damaged body that a filler replaces; the queue offset is
    kept.
    ``unmapped``: number of commits and rollbacks that keep the old physical offset of their half
    message, because this message is no longer in the log.
    """

    store: str
    messages: int = 0
    bytes_copied: int = 0
    bytes_written: int = 0
    left_out: int = 0
    fillers: int = 0
    places: list[int] = field(default_factory=list)
    refused: Counter[str] = field(default_factory=Counter)
    unmapped: int = 0
    mapping: str | None = None

    @property
    def is_whole(self) -> bool:
        return not self.left_out and not self.refused

    def as_dict(self) -> dict[str, Any]:
        return {"store": self.store, "messages": self.messages, "bytes_copied": self.bytes_copied,
                "bytes_written": self.bytes_written, "left_out": self.left_out,
                "left_out_at": self.places, "fillers": self.fillers,
                "refused": self.refused.total(), "unmapped": self.unmapped,
                "mapping": self.mapping}


class WithPlainLog:
    """Conversion into a new store with a plain log.

    Raises: UsageError if the log is already a plain log, UnsupportedError for a store that cannot
    be read, RefusedError if the target is in use, StoreHeldError while a broker writes to the
    store.
    """

    def __init__(self, store: Store, root: str, given: dict[str, Any]) -> None:
        layout = store.layout
        for structure in ("commitlog", "consumequeue", "config"):
            layout.require(store.root, structure)
        if layout.commitlog not in ("dledger", "mixed"):
            raise UsageError(f"{store.root}: the log is already a plain log")
        refuse_held(store, store.root)
        refuse_overlap(store.root, root)
        configuration = configured(store, given)
        self.notes = list(configuration.notes)
        self._store, self._root = store, root
        settings = replace(configuration.settings, batch_topics=configuration.batch_topics,
                           disk_watermark=1.0, broker_checks=False)
        self._settings: Settings = plan_store(root, settings).settings
        self.notes += [f"{name} is not carried over" for name in _NOT_CARRIED
                       if os.path.isfile(store.path(name)) or bytes_below(store.path(name))]
        self.done = Converted(root)
        self._filled: set[int] = set()
        """Old physical offsets of the messages for which fillers will be appended next."""

    @property
    def size(self) -> int:
        """Return the number of bytes of the log that will be read."""
        return self._store.log.size

    def run(self, advance: Callable[[int], None] = lambda _bytes: None,
            check: Callable[[], None] = lambda: None) -> Converted:
        """Create the new store. ``check`` is called at points where the conversion can be stopped
        safely. Raises: StoreIOError.
        """
        create_store(self._root, self._settings)
        self._copy_config()
        begin = self._copy_plain_files(advance, check)
        with Engine.open(self._root, self._settings, keep_queue_offsets=True) as engine:
            self.done.messages += engine.recovered
            self._put(engine, begin, advance, check)
            engine.reput()
        with Store.open(self._root) as converted:
            ends = {key: queue.written for key, queue in converted.queues.by_key.items()}
        keep_ends(self._store, ends, os.path.join(self._root, CONSUMEQUEUE), self._settings)
        return self.done

    # -- what is copied -----------------------------------------------------------------------

    def _copy_config(self) -> None:
        """Copy all files of ``config/``, including databases. Raises: StoreIOError."""
        for path in files_below(self._store.path("config")):
            copy_file(os.path.join(self._store.path("config"), path),
                  os.path.join(self._root, "config", path))

    def _copy_plain_files(self, advance: Callable[[int], None], check: Callable[[], None]) -> int:
        """Copy the plain log files before the DLedger log; return the physical offset at which the
        DLedger log begins. Raises: StoreIOError.
        """
        for file in self._store.log.files:
            if file.head:
                if file.base and not self.done.bytes_copied:
                    self._begin_at(file.base)
                return file.base
            check()
            copy_file(file.path, os.path.join(self._root, LOG, file.name))
            self.done.bytes_copied += file.size
            advance(file.size)
        return self._store.log.end

    def _begin_at(self, base: int) -> None:
        """Create the first file of the log, with the same start as the old log.

        Consume queue entries of expired messages point before this offset.
        """
        path = os.path.join(self._root, LOG, names.build_offset(base))
        os.close(new_file(path, self._settings.commitlog_file_size))

    # -- what is put --------------------------------------------------------------------------

    def _put(self, engine: Engine, begin: int, advance: Callable[[int], None],
             check: Callable[[], None]) -> None:
        done = self.done
        folder = os.path.join(self._root, STAGING)
        make_folders(folder)
        done.mapping = os.path.join(folder, MAPPING)
        with open(done.mapping, "x", encoding="utf-8", errors="surrogateescape",
                  newline="") as file:
            offsets = OffsetMapping(file)
            for group in self._groups(begin, offsets):
                check()
                before = [record.physical_offset for record in group]
                done.unmapped += sum(not offsets.rename(record) for record in group)
                for old, record, result in zip(before, group, engine.put_many(group), strict=True):
                    if result.physical_offset is None:
                        done.refused[result.reason or result.status] += 1
                        continue
                    if old in self._filled:
                        self._filled.discard(old)
                        done.fillers += 1
                    else:
                        done.messages += 1
                    done.bytes_written += result.wrote_bytes or 0
                    offsets.add(old, result.physical_offset, record)
                    advance(record.total_size)
        sync_file(done.mapping)

    def _groups(self, begin: int, offsets: OffsetMapping) -> Iterator[list[Record]]:
        """Yield groups of messages of the DLedger log; each group is appended at once.

        A commit or rollback starts a new group if its half message is in the current group.
        """
        group: list[Record] = []
        size = 0
        for record in self._records(begin):
            full = len(group) >= GROUP_MESSAGES or size >= GROUP_BYTES
            if group and (full or record.prepared_transaction_offset >= group[0].physical_offset):
                yield group
                group, size = [], 0
            group.append(record)
            size += record.total_size
        if group:
            yield group

    def _records(self, begin: int) -> Iterator[Record]:
        done = self.done
        for batch in self._store.log.walk(begin):
            intact = batch.crc_ok()
            for span in batch.spans:
                if span.kind == DAMAGED:
                    self._leave_out(span.offset)
            starts = batch.start.tolist()
            ends = (batch.start + batch.column("total_size")).tolist()
            for number in range(len(batch)):
                if not intact[number]:
                    self._leave_out(int(batch.offset[number]))
                try:
                    record = decode(batch.data[starts[number]:ends[number]].tobytes())
                except FormatError:
                    if intact[number]:
                        self._leave_out(int(batch.offset[number]))
                    continue
                if not intact[number]:
                    self._filled.add(record.physical_offset)
                    record = _filler(record)
                yield record
        done.places.sort()

    def _leave_out(self, place: int) -> None:
        self.done.left_out += 1
        if len(self.done.places) < _MAX_PLACES:
            self.done.places.append(place)


def _filler(record: Record) -> Record:
    """Return a filler for a message with a damaged body.

    Without a filler, the consume queue entries of later messages would be at positions before their
    queue offsets.
    """
    flags = record.sys_flag & ~(COMPRESSED | COMPRESSION_MASK | BORN_HOST_V6)
    return replace(record, body=bytes(max(1, len(record.body))), born_host=NOWHERE, sys_flag=flags,
                   properties=f"{MARK}{NAME_VALUE_SEPARATOR}{LOST}{PROPERTY_SEPARATOR}".encode())


class OffsetMapping:
    """File with the old and the new physical offset of each message. The offsets of half messages
    are also kept in memory (16 bytes each).
    """

    def __init__(self, file: IO[str]) -> None:
        self._rows = csv.writer(file, lineterminator="\n")
        self._rows.writerow(COLUMNS)
        self._old, self._new = array("q"), array("q")

    def add(self, old: int, new: int, record: Record) -> None:
        self._rows.writerow((old, new, text(record.topic), record.queue_id, record.queue_offset))
        if (record.sys_flag & TRANSACTION_MASK == TRANSACTION_PREPARED
                or record.topic == _HALF):
            self._old.append(old)
            self._new.append(new)

    def rename(self, record: Record) -> bool:
        """Update the physical offset of the half message in a commit or rollback; return False if
        its new offset is unknown.
        """
        named = record.prepared_transaction_offset
        if not named:
            return True
        number = bisect_left(self._old, named)
        if number == len(self._old) or self._old[number] != named:
            return False
        record.prepared_transaction_offset = self._new[number]
        return True


def refuse_overlap(source: str, target: str) -> None:
    """Raise UsageError if one of the two folders contains the other."""
    old, new = os.path.realpath(source), os.path.realpath(target)
    if os.path.commonpath((old, new)) in (old, new):
        raise UsageError(f"--out {target}: the new store must not be inside the store, nor contain "
                         "it")


# -- a copy ---------------------------------------------------------------------------------------


def copy_store(store: Store, root: str, advance: Callable[[int], None] = lambda _bytes: None,
               check: Callable[[], None] = lambda: None) -> None:
    """Copy a store, except its lock and the files that repairs have kept.

    The kept files contain the old path.

    Raises: UsageError if the log is outside the store, RefusedError if the target is in use,
    StoreHeldError while a broker writes to the store, StoreIOError.
    """
    if any(_outside(folder, store.root) for folder in store.log_folders):
        raise UsageError(f"{store.root}: its log is in another folder, so a copy would be "
                         "incomplete")
    refuse_held(store, store.root)
    refuse_overlap(store.root, root)
    plan_store(root, Settings())
    for path in files_below(store.root):
        if path == LOCK or (path.startswith(STAGING + os.sep) and os.path.join(
                store.root, path) != path_of(store.root)):
            continue
        check()
        source = os.path.join(store.root, path)
        copy_file(source, os.path.join(root, path))
        advance(os.path.getsize(source))


def remember(root: str, values: Mapping[str, Any]) -> None:
    """Record the settings of a new store (`rmqctl.store.store_settings`). Raises: StoreIOError."""
    text = json.dumps({FORMAT: CURRENT_FORMAT, **values}, indent=2) + "\n"
    publish(path_of(root), text.encode(), store=root)


def _outside(folder: str, root: str) -> bool:
    top = os.path.realpath(root)
    return os.path.commonpath((top, os.path.realpath(folder))) != top


def files_below(folder: str) -> Iterator[str]:
    """Yield the path, relative to the folder, of each regular file below it; nothing if the folder
    is missing. Raises: StoreIOError.
    """
    def failed(error: OSError) -> None:
        if not isinstance(error, FileNotFoundError):
            raise StoreIOError.from_oserror(error, error.filename, "list")

    for parent, folders, inside in os.walk(folder, onerror=failed):
        folders.sort()
        for name in sorted(inside):
            path = os.path.join(parent, name)
            if os.path.isfile(path):
                yield os.path.relpath(path, folder)


def copy_file(source: str, target: str) -> None:
    """Copy a file with its times and holes; create its folder if necessary. Raises:
    StoreIOError.
    """
    make_folders(os.path.dirname(target), durable=False)
    try:
        copy_sparse(source, target)
    except OSError as error:
        raise StoreIOError.from_oserror(error, source, "copy") from None
    sync_file(target)
