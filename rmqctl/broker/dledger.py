"""DLedger's own recovery of its data, and the broker's recovery after it (spec: dledger.md §4).

DLedger reads only the headers of entries, at every start, before the broker's recovery. After an
unclean stop, a broker of 5.2.0 or later also checks the records of the last files.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator
from contextlib import closing
from typing import NamedTuple

import numpy as np

from rmqctl.broker.recovery import RecoveryWalk, checkpoint, number_by_time
from rmqctl.broker.versions import BrokerVersion
from rmqctl.formats import dledger
from rmqctl.phrases import Phrase
from rmqctl.scan.damage.entries import whole_entry
from rmqctl.scan.frames import Array, Batch, gather
from rmqctl.scan.resync import is_blank
from rmqctl.scan.source import Source
from rmqctl.scan.walk import Walk
from rmqctl.store.live import log_files
from rmqctl.store.log.commit_log import CommitLog
from rmqctl.store.log.dledger import UnitReader
from rmqctl.store.store import Store

_LAST_FILES = 3
_DTYPE = dledger.ENTRY_HEAD.dtype()


class LastEntry(NamedTuple):
    """The last accepted entry. ``number``: its index; ``end``: the physical offset after it."""

    number: int
    term: int
    end: int


class Ledger(NamedTuple):
    """A log after DLedger's recovery.

    ``number``: index of the log file at which recovery began.
    ``why``: the reason for beginning at this file.
    ``end``: the physical offset after the last accepted entry.
    ``stop``: the reason why recovery ended.
    ``committed``: the physical offset after the last entry known to be committed.
    ``units``: number of entries whose index unit is rewritten.
    """

    number: int
    why: str
    end: int
    stop: str
    committed: int
    units: int
    last: LastEntry | None

    def log(self, log: CommitLog) -> CommitLog:
        """Return the part of the log that remains after recovery. The caller closes it."""
        return CommitLog(log_files([file for file in log.files if file.base <= self.end],
                                   self.end), log.file_size)


def recovered(store: Store, log: CommitLog) -> Ledger:
    """Return the log after DLedger's recovery. At least one of the log's files must contain DLedger
    data.

    Raises: StoreIOError.
    """
    first = next(number for number, file in enumerate(log.files) if file.head)
    nodes = [node for node in store.nodes if node.index_listing.files]
    with closing(UnitReader(nodes[0] if nodes else None)) as units:
        number, why = _start(log, first, units)
        walk = _HeadWalk(log, number, units)
        committed = log.files[first].base
        saved = _committed(store)
        for entries in walk:
            committed_rows = np.flatnonzero(entries.number <= saved)
            if len(committed_rows):
                committed = int(entries.end[committed_rows[-1]])
    if walk.last is not None and number > first and committed == log.files[first].base and (
            saved >= 0):
        committed = log.files[number].base  # in an earlier file: all of it was dispatched
    return Ledger(number, why, walk.end, walk.stop, committed, walk.units, walk.last)


def _committed(store: Store) -> int:
    for node in store.nodes:
        if isinstance(node.own_checkpoint, dict):
            return node.own_checkpoint["committed_index"]
    return -1


def _start(log: CommitLog, first: int, units: UnitReader) -> tuple[int, str]:
    """Return the number of the file at which recovery begins, and the reason.

    Recovery begins at the third-last file if its first entry matches DLedger's index; otherwise, at
    the nearest earlier file whose first entry matches. If no file matches, recovery begins at the
    first file.
    """
    for number in range(len(log.files) - _LAST_FILES, first, -1):
        head = whole_entry(log.source(number), 0)
        if head is not None and head.magic == dledger.MAGIC_ENTRY:
            unit = units.of(np.array([head.entry_index]))[0]
            if (unit["magic"], unit["pos"], unit["size"], unit["term"]) == (
                    head.magic, head.pos, head.size, head.term):
                return number, Phrase("the third-last file, or the nearest before it whose first "
                                      "entry matches the DLedger index")
    return first, Phrase("the first DLedger data file")


class _EntryColumns(NamedTuple):
    """Columns (int64) of consecutive entries."""

    number: Array
    term: Array
    pos: Array
    size: Array

    @property
    def end(self) -> Array:
        behind: Array = self.pos + self.size
        return behind


class _HeadWalk:
    """The entries that DLedger accepts, beginning with file ``number``. DLedger checks only
    headers.
    """

    def __init__(self, log: CommitLog, number: int, units: UnitReader) -> None:
        self._log, self._number, self._reader = log, number, units
        self.end = log.files[number].base
        self.stop = ""
        self.last: LastEntry | None = None
        self.units = 0

    def __iter__(self) -> Iterator[_EntryColumns]:
        for number in range(self._number, len(self._log.files)):
            self.end = self._log.files[number].base
            for entries in self._file(self._log.source(number)):
                self._look_up(entries)
                yield entries
            if self.stop:
                return
        self.stop = Phrase("the last file is complete")

    def _file(self, source: Source) -> Iterator[_EntryColumns]:
        position = 0
        # Take entries in one pass up to the first bytes that are not an entry with a message.
        while position < source.size:
            spot: int | None = None
            for batch in Walk(source, position):
                good = yield from self._taken(batch)
                if not good:
                    return
                if batch.spans:
                    spot = batch.spans[0].offset - source.base
                    break
            # Only an end mark finishes a file. Anything else must be an entry without a message.
            if spot is None:
                break
            raw = source.read(spot, dledger.END.size)
            if dledger.detect(raw) == dledger.END_OF_FILE:
                return
            head = whole_entry(source, spot)
            if head is None or head.magic != dledger.MAGIC_ENTRY or not head.body_length:
                self.stop = Phrase("no DLedger entry at {where}", where=self.end) if any(
                    source.read(spot, source.head)) else Phrase(
                        "nothing was written after {where}", where=self.end)
                return
            # An entry without a message must follow the previous entry like any other.
            entry = _EntryColumns(*(np.array([value], np.int64) for value in (
                head.entry_index, head.term, head.pos, head.size)))
            if not self._follows(entry)[0]:
                self.stop = self._broken()
                return
            yield self._take(entry)
            position = spot + head.size
        self.stop = Phrase("the file ends at {where}", where=self.end)

    def _taken(self, batch: Batch) -> Generator[_EntryColumns, None, bool]:
        """Yield the entries of a batch up to the first entry that does not follow the previous one;
        return whether all entries follow each other.
        """
        if not len(batch):
            return True
        heads = gather(batch.data, batch.start - batch.head, batch.head).view(_DTYPE)
        pos, size = batch.offset - batch.head, batch.frame_size
        every = _EntryColumns(heads["entry_index"].astype(np.int64), heads["term"].astype(np.int64),
                              pos, size)
        good = (heads["magic"] == dledger.MAGIC_ENTRY) & (heads["pos"] == pos) & (
            heads["size"] == size) & (heads["body_length"] == size - batch.head)
        good &= self._follows(every)
        count = len(good) if good.all() else int(good.argmin())
        if count:
            yield self._take(_EntryColumns(*(column[:count] for column in every)))
        if count < len(good):
            self.stop = self._broken()
            return False
        return True

    def _follows(self, entries: _EntryColumns) -> Array:
        """Return, for each entry, whether its index and term may follow those of the previous
        entry.
        """
        good: Array = np.ones(len(entries.number), bool)
        good[1:] = (np.diff(entries.number) == 1) & (np.diff(entries.term) >= 0)
        if self.last is not None:
            good[0] = (entries.number[0] == self.last.number + 1
                       and entries.term[0] >= self.last.term)
        return good

    def _take(self, entries: _EntryColumns) -> _EntryColumns:
        self.last = LastEntry(int(entries.number[-1]), int(entries.term[-1]), int(entries.end[-1]))
        self.end = self.last.end
        return entries

    def _broken(self) -> str:
        return Phrase("the entry header at {where} is not that of the next entry",
                      where=self.end)

    def _look_up(self, entries: _EntryColumns) -> None:
        """Count the index units that DLedger rewrites: all from the first wrong unit on."""
        if self.units:
            self.units += len(entries.number)
            return
        rows = self._reader.of(entries.number)
        same = ((rows["magic"] == dledger.MAGIC_ENTRY) & (rows["pos"] == entries.pos)
                & (rows["size"] == entries.size) & (rows["entry_index"] == entries.number)
                & (rows["term"] == entries.term))
        if not same.all():
            self.units = len(same) - int(same.argmin())


class RecordWalk(RecoveryWalk):
    """The records that a broker of 5.2.0 or later accepts after an unclean stop.

    ``end``: the end of the log as the broker computes it, without the headers of the entries in the
    last file.
    """

    @property
    def path(self) -> str:
        """Return the path of the file at which the recovery begins."""
        return self._log.files[self._number].path

    def _file(self, source: Source) -> Iterator[Batch]:
        for batch in Walk(source):
            good, why = self._accepted(batch)
            if good:
                part = batch if good == len(batch) else batch.select(slice(0, good))
                self.last_valid = int(part.offset[-1])
                self.end += int(part.column("total_size").sum())
                yield part
            if good < len(batch):
                self.stop = why
                return
            if batch.spans:
                spot = batch.spans[0].offset - source.base
                if not is_blank(source, spot):
                    self.stop = Phrase("no record that a broker accepts at {where}",
                                       where=batch.spans[0].offset)
                return
        self.stop = Phrase("the file has no end-of-file record at {end}", end=self.end)


def record_walk(store: Store, log: CommitLog, version: BrokerVersion) -> tuple[RecordWalk, str]:
    """Return the broker's recovery of the DLedger data in ``log``, and the reason why the recovery
    begins at the file that it scans first.
    """
    first = next(number for number, file in enumerate(log.files) if file.head)
    number, why = number_by_time(store, log, version, checkpoint(store), first)
    return RecordWalk(log, number, version), why
