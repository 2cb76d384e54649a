"""A broker's recovery of the log: its start, the accepted records, and the end of the log.

spec: recovery.md §3, §4 and §6. A broker follows sizes and checks magic, lengths and body CRC
(spec: commitlog.md §9). A broker does not check a record's physicalOffset, accepts a blank record
of any size, and continues after a missing file.

The frame scanner does most of the work. Where the scanner finds no provable record, single records
are checked as a broker checks them.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from rmqctl.broker.consume_queue import dispatched_to, loaded, rocksdb_of
from rmqctl.broker.release import judged
from rmqctl.broker.versions import BrokerVersion, version_of
from rmqctl.errors import FormatError, StoreIOError
from rmqctl.formats.layout import reader
from rmqctl.formats.local import append_crc
from rmqctl.formats.local import checkpoint as page
from rmqctl.formats.local.checkpoint import CHECKPOINT, CheckpointRecord
from rmqctl.formats.local.message import (
    HOST_BITS,
    MAGIC_BLANK,
    MAGIC_V1,
    MAGIC_V2,
    MIN_SIZE,
    Blank,
    Record,
    decode,
)
from rmqctl.formats.local.properties import CRC32, parse
from rmqctl.parse_values import time_or_zero, time_text
from rmqctl.phrases import Phrase
from rmqctl.scan.damage.properties import unproven
from rmqctl.scan.frames import START_SIZE, Array, Batch, examine, records_from, shape
from rmqctl.scan.headers import bad_numbers
from rmqctl.scan.resync import MAX_RECORD, is_blank, is_placed
from rmqctl.scan.source import Source
from rmqctl.scan.text import PropertySegments
from rmqctl.scan.walk import Walk
from rmqctl.store.log.commit_log import CommitLog
from rmqctl.store.log.cut_off import CutOff
from rmqctl.store.store import Store

_NORMAL_FILES = 3
_BODY_CRC = Phrase("body CRC mismatch")
_RECORD_CRC = Phrase("appended CRC mismatch (forceVerifyPropCRC)")
_NO_CRC = Phrase("no appended CRC (forceVerifyPropCRC)")
_HEAD_SIZE = 256
_HEAD = reader(Blank)
_AHEAD = 64 << 10
"""Number of bytes that are read at once after a record with a wrong physicalOffset."""
_LATEST: list[tuple[Batch, PropertySegments]] = []


def as_configured(store: Store, version: BrokerVersion) -> BrokerVersion:
    """Return the rules for a version, adapted to the store's broker.conf if that is known."""
    forced = bool(store.sizes.conf.force_property_crc) and version.property_crc
    return replace(version, forces_property_crc=forced)


class RecoveredLog(NamedTuple):
    """The log after a recovery, in physical offsets.

    ``start``: start of the file at which recovery began.
    ``end``: end of the log.
    ``misplaced``: the accepted records with a wrong physicalOffset.
    """

    start: int
    end: int
    misplaced: list[int]


def default_version(store: Store) -> BrokerVersion:
    """Return the version for which the store was created. If unknown: the default version of the
    generation that wrote the store.
    """
    return version_of(default_release(store))


def default_release(store: Store) -> str:
    """Return the release that `rmqctl.broker.release.judged` returns if no release is requested."""
    return judged(store).release


def recover_log(store: Store, version: BrokerVersion) -> RecoveredLog:
    """Return the log as it is after a broker of this version has recovered ``store``.

    Raises: StoreIOError.
    """
    version = as_configured(store, version)
    with closing(loaded_log(store, version)) as log:
        if not log.files:
            return RecoveredLog(0, 0, [])
        reach = -1
        if by_rows(store, version):
            reach = dispatched_to(store, version)
        walk = RecoveryWalk(log, start_file(store, log, version, reach)[0], version)
        for _ in walk:
            pass
        return RecoveredLog(walk.first, walk.end, walk.misplaced)


def ended_by_repair(store: Store) -> CutOff | None:
    """Return the offset at which a repair has truncated the log, if a broker ends the log at the
    same offset; else None.

    The repair's own note is not sufficient: a newer broker may accept records that an older broker
    rejects.
    """
    cut = store.cut_off
    if cut is None:
        return None
    try:
        return cut if recover_log(store, default_version(store)).end == cut.end else None
    except StoreIOError:
        return None


def loaded_log(store: Store, version: BrokerVersion) -> CommitLog:
    """Return the log with the files that a broker uses. The caller closes it."""
    return CommitLog(loaded(store.log.files, version), store.log.file_size)


def checkpoint(store: Store) -> CheckpointRecord:
    """Return the checkpoint as a broker maps it: missing bytes read as zeros."""
    try:
        return page.parse(store.read_small("checkpoint", most=CHECKPOINT.size).ljust(
            CHECKPOINT.size, b"\0"))
    except (StoreIOError, FormatError):
        return page.parse(bytes(CHECKPOINT.size))


def by_rows(store: Store, version: BrokerVersion) -> bool:
    """Return whether recovery begins at the offset at which the consume queues end.

    This is the case after a clean stop (5.3.2+). Queues in RocksDB are not flushed at once: with
    RocksDB, this is also the case after an unclean stop.
    """
    return version.normal_by_queues if not store.has_abort else (
        store.layout.reads("consumequeue") and rocksdb_of(store, version) is not None)


def start_file(store: Store, log: CommitLog, version: BrokerVersion, max_physic: int, *,
               clean: bool | None = None) -> tuple[int, str]:
    """Return the index of the file in which recovery starts, and the reason.

    ``max_physic``: the physical offset up to which the log was dispatched, used if `by_rows`.
    ``clean``: whether the last stop was clean; None: determined from the store.
    """
    count, clean = len(log.files), not store.has_abort if clean is None else clean
    if clean and not version.normal_by_queues:
        number = max(0, count - _NORMAL_FILES)
        return number, (Phrase("the third-last file") if number else
                        Phrase("the first file"))
    if clean or by_rows(store, version):
        for number in range(count - 1, 0, -1):
            if log.files[number].base <= max_physic and (
                    clean or _first_time(log, number, version) is not None):
                return number, Phrase(
                    "the consume queues end at {max_physic}", max_physic=max_physic)
        return 0, Phrase("the consume queues end in this file")
    return number_by_time(store, log, version, checkpoint(store))


def number_by_time(store: Store, log: CommitLog, version: BrokerVersion, saved: CheckpointRecord,
                   first: int = 0) -> tuple[int, str]:
    """Return the index of the file in which recovery starts after an unclean stop, and the reason.
    ``first``: index of the first file that may be used.
    """
    conf = store.sizes.conf
    index_counts = conf.message_index_safe and conf.message_index is not False
    limit = saved.min_timestamp_index if index_counts else saved.min_timestamp
    for number in range(len(log.files) - 1, first - 1, -1):
        stored = _first_time(log, number, version)
        if stored is not None and stored <= limit:
            return number, Phrase(
                "its first message was stored at {stored}, not after the checkpoint's {limit}",
                stored=time_or_zero(stored), limit=time_or_zero(limit))
    if not limit:
        return first, Phrase("the checkpoint has no time")
    return first, Phrase(
        "no file begins with a message stored by {limit}, the checkpoint's time",
        limit=time_text(limit))


def _first_time(log: CommitLog, number: int, version: BrokerVersion) -> int | None:
    """Return the store time of a file's first record as a broker reads it, without further checks.
    Return None if no record exists or its store time is 0.
    """
    source = log.source(number)
    head = source.read(source.head, _HEAD_SIZE)
    if len(head) < START_SIZE:
        return None
    plain = np.frombuffer(head, shape(0, MAGIC_V1).dtype, 1)[0]
    magic = int(plain["magic"])
    if magic != MAGIC_V1 and not (magic == MAGIC_V2 and version.message_v2 and not source.head):
        return None
    shaped = shape(int(plain["sys_flag"]) & HOST_BITS, magic)
    stored = int(np.frombuffer(head, shaped.dtype, 1)[0]["store_timestamp"])
    return stored or None


class RecoveryWalk:
    """Iterator over the records that a broker accepts, beginning at the start of file ``number``.

    These attributes are valid after the iteration:

    ``end``: the offset at which the iteration stopped: the end of the log for the broker.
    ``stop``: the reason.
    ``last_valid``: the start of the last accepted record, or None.
    ``misplaced``: the offsets of accepted records with a wrong physicalOffset.

    Misplaced records are yielded in batches of their own, with their wrong physicalOffsets. ``odd``
    is True while such a batch is processed.
    """

    def __init__(self, log: CommitLog, number: int, version: BrokerVersion,
                 known_to: int | None = None) -> None:
        """``known_to``: physical offset of a record. All earlier records are known to be accepted,
        and are not read again.
        """
        self._log, self._number, self._version = log, number, version
        self._known_to = known_to
        self.first = self.end = log.files[number].base
        self.last_valid: int | None = None
        self.stop = ""
        self.misplaced: list[int] = []
        self.odd = False

    def __iter__(self) -> Iterator[Batch]:
        files = self._log.files
        for number in range(self._number, len(files)):
            if self._known_to is not None and files[number].end <= self._known_to:
                continue
            self.end = files[number].base
            yield from self._file(self._log.source(number))
            if self.stop:
                return
        self.stop = Phrase("the last file ends with an end-of-file record")

    def _file(self, source: Source) -> Iterator[Batch]:
        """Yield the accepted records of one file, and advance ``end``. ``stop`` remains "" if the
        file ends with a blank record.
        """
        # Start after the bytes that an earlier pass already accepted.
        position = max(0, (self._known_to or 0) - source.base)
        while True:
            # Yield records up to the first one that the broker refuses. After misplaced records,
            # mostly another one follows.
            is_next = position == 0 or position >= source.size or is_placed(source, position)
            spot = None if is_next else position
            for batch in Walk(source, position) if is_next else ():
                good, why = self._accepted(batch)
                if good:
                    part = batch if good == len(batch) else batch.select(slice(0, good))
                    last = good - 1
                    self.last_valid = int(batch.offset[last])
                    self.end = self.last_valid + int(batch.column("total_size")[last])
                    yield part
                if good < len(batch):
                    self.stop = why
                    return
                if batch.spans:
                    spot = batch.spans[0].offset - source.base
                    break
            # Apply the broker's own test where the walk found no valid record.
            if spot is None:
                self.stop = Phrase("the file has no end-of-file record at {end}", end=self.end)
                return
            size, self.stop = judge(source, spot, self._version)
            if size is None or self.stop:
                return
            # Brokers accept a record whose physical offset is wrong, and continue after it.
            odd = misplaced(source, spot, size)
            if odd is None:
                self.stop = Phrase("the lengths in the record at {end} do not add up", end=self.end)
                return
            good, why = self._accepted(odd)
            if not good:
                self.stop = Phrase(
                    "{why} (its physicalOffset does not match its position, {end})", why=why,
                    end=self.end)
                return
            odd = odd if good == len(odd) else odd.select(slice(0, good))
            ends = spot + np.cumsum(odd.column("total_size"))
            places = (source.base + np.concatenate(([spot], ends[:-1]))).tolist()
            self.misplaced += places
            self.last_valid = places[-1]
            position = int(ends[-1])
            self.end = source.base + position
            self.odd = True
            yield odd
            self.odd = False

    def _accepted(self, batch: Batch) -> tuple[int, str]:
        """Return the number of records of a batch before the first record that a broker rejects,
        and the reason for the rejection ("" if all are accepted).
        """
        if not len(batch):
            return 0, ""
        reasons = self._crc_reasons(batch)
        if not self._version.message_v2:
            newer = np.flatnonzero(batch.column("magic") == MAGIC_V2)
            if len(newer):
                reasons.setdefault(int(newer[0]), Phrase(
                    "v2 record, which this version does not know"))
        for row in bad_numbers(batch, self._version.generation)[:1].tolist():
            reasons.setdefault(row, Phrase("non-numeric value in a numeric property"))
        if not reasons:
            return len(batch), ""
        first = min(reasons)
        return first, Phrase(
            "the broker rejects the record at {where}: {why}", where=int(batch.offset[first]),
            why=reasons[first])


    def _crc_reasons(self, batch: Batch) -> dict[int, str]:
        """Return the index of the first record with a wrong checksum, and the reason; {} if all
        checksums are right.
        """
        if not self._version.forces_property_crc:
            bad: Array = ~batch.crc_ok() & (batch.column("body_length") > 0)
            return {int(row): _BODY_CRC for row in np.flatnonzero(bad)[:1]}
        for row in np.flatnonzero(unproven(batch)).tolist():
            why = refused_by_crc(batch.bytes_at(row), self._version)
            if why:
                return {row: why}
        return {}


def refused_by_crc(raw: bytes, version: BrokerVersion) -> str:
    """Return the reason why a broker with forceVerifyPropCRC refuses a record (commitlog.md §5.4);
    "" if it accepts the record.

    The broker uses the CRC property at any position. All characters of its value count as digits,
    from the last to the first.
    """
    values = parse(decode(raw).properties.decode("utf-8", "replace"))
    text = values.get(CRC32)
    if text is None:
        return _NO_CRC
    number = 0
    for character in reversed(text):
        number = (number * 10 + ord(character) - ord("0")) & 0xFFFFFFFF
    if number >= 1 << 31 or (number == 0 and not version.property_crc_of_zero):
        return _NO_CRC
    return "" if number == append_crc.compute(raw) else _RECORD_CRC


def properties(batch: Batch) -> PropertySegments:
    """Return the properties of a batch. The last result is cached, because recovery, queues and
    index request the same properties in turn.
    """
    for latest, of_known in _LATEST:  # in one step: other threads may have batches too
        if latest is batch:
            return of_known
    of_batch = PropertySegments(batch)
    _LATEST[:] = [(batch, of_batch)]
    return of_batch


def judge(source: Source, position: int, version: BrokerVersion, *,
          check_crc: bool = True) -> tuple[
        int | None, str]:
    """Test the bytes at ``position`` as a broker does.

    Return (size, "") for an accepted record, (None, "") for a blank record, and (None, reason) if
    recovery stops at ``position``.
    """
    # Handle the ends of a file before the record itself: nothing left, a blank record, or zeros.
    if source.head and is_blank(source, position):
        return None, ""
    position += source.head
    where, rest = source.base + position, source.size - position
    head = source.read(position, _HEAD.size)
    if len(head) < _HEAD.size:
        return None, Phrase(
            "only {rest} bytes of the file are left at {where}", where=where, rest=rest)
    total, magic = _HEAD.unpack(head)
    if magic == MAGIC_BLANK:
        if version.blank_must_fit and total > rest:
            return None, Phrase(
                "the end-of-file record at {where} is longer than the rest of its file",
                where=where)
        return None, ""
    if not any(head):
        return None, Phrase("nothing was written after {where}", where=where)
    # Check magic and lengths first, because the CRCs are read from places that depend on them.
    if magic not in (MAGIC_V1, MAGIC_V2):
        return None, Phrase("no record at {where}", where=where)
    if magic == MAGIC_V2 and not version.message_v2:
        return None, Phrase(
            "the record at {where} is a v2 record, which this version does not know", where=where)
    record = _decoded(source, position, total) if MIN_SIZE <= total <= min(rest,
                                                                           MAX_RECORD) else None
    if record is None:
        return None, Phrase("the lengths in the record at {where} do not add up", where=where)
    # With forceVerifyPropCRC the CRC property covers the whole record and replaces the body CRC.
    why = ""
    if check_crc and version.forces_property_crc:
        why = refused_by_crc(source.read(position, total), version)
    elif check_crc and record.body and not record.crc_ok:
        why = _BODY_CRC
    if why:
        return None, Phrase("the broker rejects the record at {where}: {why}", where=where, why=why)
    return total, ""


def misplaced(source: Source, position: int, size: int) -> Batch | None:
    """Return the record at ``position`` with its wrong physicalOffset, and records after it that
    are as far from their places; None if the record is not valid.

    A broker dispatches the records with these offsets.
    """
    start = position + source.head
    record = _decoded(source, start, size)
    if record is None:
        return None
    if source.head:
        data = np.frombuffer(source.read(start, size), np.uint8)
        batch, ok = examine(data, record.physical_offset, np.zeros(1, np.int64))
        return batch if ok.all() else None
    data = np.frombuffer(source.read(start, max(size, _AHEAD)), np.uint8)
    batch = records_from(data, record.physical_offset, 0, len(data))
    return batch if len(batch) else None


def _decoded(source: Source, position: int, total: int) -> Record | None:
    try:
        return decode(source.read(position, total))
    except FormatError:
        return None


class ReputWalk:
    """Iterator over the records of ``[start, end)`` that the run-time dispatcher accepts.

    The dispatcher reads no bodies, and continues with the next file after an unreadable record.

    ``stuck``: the physical offset at which the dispatcher waits forever because no file contains
    that offset, or None.
    ``odd``: as in `RecoveryWalk`.
    """

    def __init__(self, log: CommitLog, start: int, end: int, version: BrokerVersion) -> None:
        self._log, self._version = log, version
        self.start, self.end = start, end
        self.skipped: list[int] = []
        self.stuck: int | None = None
        self.odd = False

    def __iter__(self) -> Iterator[Batch]:
        position = self.start
        for number, file in enumerate(self._log.files):
            if file.end <= position or file.base >= self.end:
                continue
            if file.base > position:
                self.stuck = position
                return
            yield from self._file(self._log.source(number), position - file.base)
            position = file.end
        if position < self.end:
            self.stuck = position

    def _file(self, source: Source, position: int) -> Iterator[Batch]:
        limit = self.end - source.base
        while position < limit:
            is_next = is_placed(source, position)
            spot = None if is_next else position
            for batch in Walk(source, position, limit) if is_next else ():
                if len(batch):
                    yield batch
                if batch.spans:
                    spot = batch.spans[0].offset - source.base
                    break
            if spot is None:
                return
            size, why = judge(source, spot, self._version, check_crc=False)
            odd = None if size is None else misplaced(source, spot, size)
            if size is None or odd is None:
                if why or size is not None:
                    self.skipped.append(source.base + spot)
                return
            # A broker stops at the end, or at a record that it does not know.
            left_out = odd.start >= limit - spot
            if not self._version.message_v2:
                left_out |= odd.column("magic") == MAGIC_V2
            if left_out.any():
                odd = odd.select(slice(0, int(left_out.argmax())))
            position = spot + source.head + int(odd.column("total_size").sum())
            self.odd = True
            yield odd
            self.odd = False


class DispatchRange(NamedTuple):
    """Physical offsets ``[start, end)`` that are dispatched again.

    ``behind``: if not None, only records that start after this physical offset are dispatched.
    ``reput``: whether the run-time dispatcher dispatches the records after recovery. This
    dispatcher reads no bodies and skips unreadable records.
    ``positions``: for each plain queue, before the dispatch: the queue offset after its last entry,
    and the physical offset up to which the log was dispatched.
    """

    start: int
    end: int
    behind: int | None
    reput: bool
    positions: dict[tuple[str, int], tuple[int, int]]


def dispatched(log: CommitLog, again: DispatchRange, version: BrokerVersion) -> Iterator[Batch]:
    """Yield the records of a range as a broker dispatches them again, in batches of adjacent
    records.
    """
    if again.reput:
        yield from ReputWalk(log, again.start, again.end, version)
        return
    number = next(number for number, file in enumerate(log.files) if file.base == again.start)
    for batch in RecoveryWalk(log, number, version):
        if again.behind is None:
            yield batch
            continue
        first = int(np.searchsorted(batch.offset, again.behind, "right"))
        if first < len(batch):
            yield batch.select(slice(first, len(batch)))
