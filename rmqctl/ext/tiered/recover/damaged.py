"""Find the queue offsets whose records in a commit log are damaged, and repair these records.

The bytes of each damaged record are determined, and its fields are repaired if possible. The record
gets a unit, so that later messages keep their queue offsets.

A broker uploads all messages of a queue (tiered.md §7). Therefore the bytes between two intact
messages are exactly the records of the queue offsets between them. A broker skips a unit whose
record has an invalid magic or another size than the unit (§9.2), and continues at the next unit.
"""

from __future__ import annotations

import os
from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import field
from itertools import chain, pairwise, takewhile
from operator import attrgetter

import numpy as np

from rmqctl.damage.records import (
    MAX_BODY,
    UNCHANGED,
    bent_heads,
    extent,
    field_of,
    whole_record,
    with_fields,
)
from rmqctl.ext.tiered.files.reader import TierReader, close_source
from rmqctl.ext.tiered.flat_file import FlatFile, QueueName
from rmqctl.ext.tiered.recover.survey import ROW, CommitLogSurvey, ReaderOverlay
from rmqctl.ext.tiered.recover.units import breaks
from rmqctl.ext.tiered.witness import QueueWitness
from rmqctl.files.durable import failed
from rmqctl.formats.local import message
from rmqctl.formats.tiered.units import CODA_MAGIC, CODA_SIZE, GUESSED, is_coda
from rmqctl.lazy_dataclass import dataclass
from rmqctl.repair.salvage.filler import MAX_FILLER
from rmqctl.scan.frames import Array
from rmqctl.scan.overlay import LogPart, OverlaidSource, OverlayPiece
from rmqctl.scan.source import BytesSource, Source

_MAX_STRAYS, _MAX_BESIDE = 8, 8
_MAX_HEAD = 1 << 16
_MAX_FLIPPED = 8
"""Maximum number of flipped bits in a record's topic for which the topic is corrected to the
queue's topic.
"""
_BLOCK = 1 << 20


@dataclass(frozen=True, slots=True)
class LostRange:
    """A range of queue offsets ``[first, end)`` whose records are damaged.

    ``start`` and ``stop``: the bytes ``[start, stop)`` of the log contain these records.
    ``rows``: the survey's rows in these bytes, which have wrong queue offsets.
    ``before``: index of the first row after the bytes.
    """

    first: int
    end: int
    start: int
    stop: int
    rows: range
    before: int


@dataclass(slots=True)
class DamageRepairs:
    """Repairs of a queue's damage.

    ``mended``: corrected pieces by the segment's path.
    ``units``: `ROW`s that point to damaged bytes. Each array is inserted before the survey's row
    with the given index.
    ``bounds``: (queue offset, start, end), ordered. The damaged bytes ``[start, end)`` contain the
    record of the queue offset.
    """

    mended: dict[str, list[OverlayPiece]] = field(default_factory=dict)
    units: list[tuple[int, Array]] = field(default_factory=list)
    bounds: list[tuple[int, int, int]] = field(default_factory=list)
    shared: list[tuple[int, int]] = field(default_factory=list)
    """Queue offsets ``[first, end)`` of neighbouring damaged records whose boundaries are unknown.
    """


def find_damaged(surveyed: CommitLogSurvey, name: QueueName) -> DamageRepairs:
    """Return the repairs for queue offsets that have no intact message. Raises: StoreIOError."""
    result = DamageRepairs()
    for lost in lost_offsets(surveyed):
        first, end, pieces = lost.first, lost.end, _pieces(surveyed, lost)
        # Repair records from the front, then from the back.
        first, pieces = _mend_front(surveyed.log, name, first, end, pieces, result)
        end, pieces = _mend_back(surveyed.log, name, first, end, pieces, result)
        if first < end and pieces and 0 < lost.before < len(surveyed.rows):
            start, stop = pieces[0][0], pieces[-1][1]
            places = _borders(surveyed, end - first, start, stop)
            if not places:
                places = _shares(end - first, start, stop)
                result.shared += [(first, end)] if end - first > 1 and places else []
            units = _units(surveyed, first, places, stop)
            if len(units):
                result.units.append((lost.before, units))
                result.bounds += [(number, start, stop) for number in range(first, end)]
    _show_first(surveyed, result)
    return result


def _show_first(surveyed: CommitLogSurvey, result: DamageRepairs) -> None:
    """Correct the queue offset field of a damaged first record if it is too large. A broker uses
    this field as the queue's first offset (§2), and returns no messages before this offset.
    """
    rows, log = surveyed.rows, surveyed.log
    segment = log.segment_of(log.start)
    if not len(rows) or int(rows["position"][0]) == log.start or segment is None or (
            not segment.name_ok or segment.path in result.mended):
        return
    first = int(rows["queue_offset"][0])
    head = log.read(log.start, message.START_SIZE)
    if len(head) == message.START_SIZE and field_of(head, "queue_offset") > first:
        where = message.fixed_field("queue_offset")
        result.mended[segment.path] = [OverlayPiece.of(where.offset, with_fields(
            head, queue_offset=first)[where.offset:where.offset + where.size])]


def lost_offsets(surveyed: CommitLogSurvey) -> Iterator[LostRange]:
    """Yield, in order, the ranges of the log in which queue offsets are missing."""
    rows, log = surveyed.rows, surveyed.log
    if not len(rows):
        return
    limits = [0, *breaks(rows["queue_offset"]).tolist(), len(rows)]
    runs = list(pairwise(limits))
    number = 0
    # Before the first message: a damaged one, or one with a wrong queue offset.
    position, first = int(rows["position"][0]), int(rows["queue_offset"][0])
    if position > log.start and first and len(log.segments) and position <= log.segments[0].end:
        yield LostRange(first - 1, first, log.start, position, range(0), 0)
    if runs[0][1] == 1 and position == log.start and len(runs) > 1 and (
            runs[1][1] - runs[1][0] > 1 and not _goes_on(surveyed, runs, 0, 1)):
        lost = _between(surveyed, log.start, None, runs, 0, 1)
        if lost is not None:
            yield lost
            number = 1
    while number < len(runs):
        last = runs[number][1] - 1
        start = int(rows["position"][last] + rows["size"][last])
        first = int(rows["queue_offset"][last]) + 1
        best = None
        for following in range(number + 1, min(number + 2 + _MAX_STRAYS, len(runs))):
            lost = _between(surveyed, start, first, runs, number + 1, following)
            is_long = runs[following][1] - runs[following][0] > 1
            if lost is not None and (best is None or is_long):
                if best is None or not _goes_on(surveyed, runs, best[0], following):
                    best = following, lost
                if is_long:
                    break
        if best is None:
            if number + 2 == len(runs):
                yield from _last(surveyed, first, start, runs[-1])
            number += 1
            continue
        number = best[0]
        yield best[1]
    # After the last message: as many as fit.
    last = len(rows) - 1
    first, start = int(rows["queue_offset"][last]) + 1, int(rows["position"][last]
                                                            + rows["size"][last])
    room = (log.end - start) // message.MIN_SIZE
    if room > 0 and not any(right.base > start for _, right in log.gaps()):
        yield LostRange(first, first + room, start, log.end, range(0), len(rows))


def _goes_on(surveyed: CommitLogSurvey, runs: Sequence[tuple[int, int]], run: int,
             following: int) -> bool:
    """Return whether the queue offsets of the runs ``run`` and ``following`` can all be correct."""
    rows, last = surveyed.rows, runs[run][1] - 1
    return _between(surveyed, int(rows["position"][last] + rows["size"][last]),
                    int(rows["queue_offset"][last]) + 1, runs, run + 1, following) is not None


def _between(surveyed: CommitLogSurvey, start: int, first: int | None,
             runs: Sequence[tuple[int, int]], stray: int, following: int) -> LostRange | None:
    """Return the lost range between the byte ``start`` and the run ``following``. Return None if
    the number of missing queue offsets does not fit the number of bytes.

    The runs ``[stray, following)`` are in the range. Each of them is a single message with a wrong
    queue offset.
    """
    rows = surveyed.rows
    before = runs[following][0]
    end, stop = int(rows["queue_offset"][before]), int(rows["position"][before])
    strays = range(runs[stray][0], before)
    if first is None:
        first = end - len(strays)
        if first < 0 or int(rows["queue_offset"][strays[0]]) == first:
            return None
    size = (stop - start - _codas(surveyed.log, start, stop)
            - int(rows["size"][strays.start:strays.stop].sum()))
    more = end - first - len(strays)
    if end <= first or more < 0 or (not more and size) or (more and size < (
            more * message.MIN_SIZE)):
        return None
    if more and len(strays) > following - stray:
        return None  # messages that agree with each other
    if any(start < left.end and right.base < stop for left, right in surveyed.log.gaps()):
        return None
    return LostRange(first, end, start, stop, strays, before)


def _codas(log: FlatFile, start: int, stop: int) -> int:
    """Return the size in bytes of the codas of segments in ``[start, stop)``."""
    segments, size = log.segments, 0
    first = bisect_right(segments, start, key=attrgetter("end"))
    for segment in takewhile(lambda segment: segment.end <= stop, segments[first:]):
        coda = segment.end - CODA_SIZE
        size += CODA_SIZE * (coda >= start and is_coda(log.read(coda, CODA_SIZE)))
    return size


def _last(surveyed: CommitLogSurvey, first: int, start: int,
          run: tuple[int, int]) -> Iterator[LostRange]:
    """Yield a range for the last message of the log if its queue offset does not follow the
    previous message's queue offset.
    """
    rows = surveyed.rows
    row = run[0]
    if run[1] - row != 1 or int(rows["position"][row]) != start:
        return
    own_offset, size = int(rows["queue_offset"][row]), int(rows["size"][row])
    again = np.flatnonzero(rows["queue_offset"][:row] == own_offset)
    if len(again) and int(rows["size"][again[-1]]) == size:
        return  # uploaded twice
    yield LostRange(first, first + 1, start, start + size, range(row, row + 1), row + 1)


def _pieces(surveyed: CommitLogSurvey, lost: LostRange) -> list[tuple[int, int, bool]]:
    """Return the bytes of lost records, in order, as (start, end, whether they are a single
    record).
    """
    log, rows = surveyed.log, surveyed.rows
    extents = [(int(rows["position"][row]), int(rows["size"][row])) for row in lost.rows]
    extents += [(start, size) for start, size in surveyed.odd if lost.start <= start < lost.stop]
    extents.sort()
    pieces: list[tuple[int, int, bool]] = []
    for segment in log.segments:
        position, stop = max(lost.start, segment.base), min(lost.stop, segment.end)
        if position < stop == segment.end and is_coda(log.read(stop - CODA_SIZE, CODA_SIZE)):
            stop -= CODA_SIZE
        for start, size in chain(extents, ((stop, 0),)):
            if start < position or start + bool(size) > stop:
                continue
            if position < start and not (start - position == CODA_SIZE and is_coda(
                    log.read(position, CODA_SIZE))):
                pieces.append((position, start, False))
            if size:
                pieces.append((start, start + size, True))
            position = start + size
    return pieces


# -- records that can be repaired ------------------------------------------------------------------

def _mend_front(log: FlatFile, name: QueueName, first: int, end: int,
                pieces: list[tuple[int, int, bool]], result: DamageRepairs) -> tuple[
                    int, list[tuple[int, int, bool]]]:
    """Repair the damaged records in ``pieces`` one by one, from the first piece on. Stop at a
    record that cannot be repaired. Return the first queue offset that is not repaired, and the
    remaining pieces.
    """
    pieces = list(pieces)
    while pieces and first < end:
        start, stop, is_record = pieces[0]
        size = _mend(log, name, first, start, stop, result, to_end=is_record or (
            end - first == 1 and len(pieces) == 1))
        if not size:
            break
        first += 1
        pieces[:1] = [(start + size, stop, False)] if start + size < stop else []
    return first, pieces


def _mend_back(log: FlatFile, name: QueueName, first: int, end: int,
               pieces: list[tuple[int, int, bool]], result: DamageRepairs) -> tuple[
                   int, list[tuple[int, int, bool]]]:
    """Repair the damaged records in ``pieces`` one by one, from the last piece backwards. Stop at a
    record that cannot be repaired. Return the end of the queue offsets that are not repaired, and
    the remaining pieces.
    """
    pieces = list(pieces)
    while len(pieces) > 1 and first < end - 1:
        start, stop, _ = pieces[-1]
        if not _mend(log, name, end - 1, start, stop, result, to_end=True):
            break
        end -= 1
        pieces.pop()
    return end, pieces


def _mend(log: FlatFile, name: QueueName, queue_offset: int, start: int, stop: int,
          result: DamageRepairs, *, to_end: bool) -> int:
    """Repair the record at ``start`` and add the corrected pieces to ``result``. Return the size of
    the record, or 0 if no repair is proven.

    ``stop``: maximum end of the record; with ``to_end``, its exact end.
    """
    segment = log.segment_of(start)
    if segment is None or not segment.name_ok or stop - start < message.MIN_SIZE or (
            stop - start > MAX_BODY and to_end):
        return 0
    raw = log.read(start, min(stop - start, MAX_BODY))
    if stop == log.end and _is_torn(raw, start):
        return 0
    candidates = _candidates(raw, start, stop - start, name, queue_offset, to_end=to_end)
    # Prefer a candidate that uses all bytes.
    for candidate in sorted(candidates, key=lambda data: len(data) != stop - start):
        position = start - segment.base
        differs = [byte for byte in range(len(candidate)) if candidate[byte] != raw[byte]]
        if differs:
            low, high = differs[0], differs[-1] + 1
            result.mended.setdefault(segment.path, []).append(
                OverlayPiece.of(position + low, candidate[low:high]))
        return len(candidate)
    return 0


def _is_torn(raw: bytes, start: int) -> bool:
    """Return whether the last record of a log was cut off: its lengths lead beyond the end, and its
    size field agrees with them except for at most one bit.
    """
    magic, stored = message.magic_at(raw), message.total_size_at(raw)
    size = extent(BytesSource(raw, start), 0, raw[:_MAX_HEAD], magic, MAX_BODY) if (
        message.is_magic(magic)) else None
    return size is not None and len(raw) < size and stored != len(raw) and (
        size ^ stored).bit_count() <= 1


def _candidates(raw: bytes, start: int, room: int, name: QueueName, queue_offset: int, *,
                to_end: bool) -> Iterator[bytes]:
    """Yield candidates for the original record of a known queue, queue offset and position, by the
    rules of the local salvage.
    """
    source = BytesSource(raw, start)
    topic = os.fsencode(name.topic)
    stored, magic = message.total_size_at(raw), message.magic_at(raw)
    # Try every version if the magic is damaged, and every repair of the header.
    for version in (magic,) if message.is_magic(magic) else message.VERSIONS:
        fixed = with_fields(raw[:_MAX_HEAD], physical_offset=start, magic=version,
                            queue_id=name.queue_id, queue_offset=queue_offset)
        for change, size in bent_heads(source, 0, fixed, version, len(raw), (stored, room)):
            if to_end and size != room:
                continue
            # The size must be confirmed, or wrong by a single bit.
            if size not in (stored, room) and (size ^ stored).bit_count() != 1:
                continue
            # The record must be intact with this size, and its topic must have the right length.
            content = with_fields(change.of(fixed[:size] + raw[len(fixed):size]), total_size=size)
            record = whole_record(content, start, False)
            if record is None or len(record.topic) != len(topic) or (
                    not record.body and change != UNCHANGED):
                continue
            # A few flipped bits in the topic are corrected as well.
            if record.topic != topic:
                turned = int.from_bytes(record.topic, "big") ^ int.from_bytes(topic, "big")
                if turned.bit_count() > _MAX_FLIPPED:
                    continue
                topic_start = (size - len(record.properties) - message.PROPERTIES_LENGTH_SIZE
                               - len(topic))
                content = content[:topic_start] + topic + content[topic_start + len(topic):]
            yield content


# -- what stays damaged ---------------------------------------------------------------------------

def _units(surveyed: CommitLogSurvey, first: int, places: Sequence[tuple[int, int]],
           stop: int) -> Array:
    """Return rows for damaged records, with queue offsets from ``first`` on.

    ``places``: (position, size) of the records, all before ``stop``. The size of a row differs from
    the size field of its record. Therefore a broker skips the record.
    """
    units: Array = np.zeros(len(places), ROW)
    rows = surveyed.rows
    behind = min(int(np.searchsorted(rows["position"], stop)), len(rows) - 1)
    for number, (place, length) in enumerate(places):
        size = min(length, MAX_FILLER)
        head = surveyed.log.read(place, CODA_SIZE + message.START_SIZE)
        if message.magic_at(head) == CODA_MAGIC:  # a broker reads the record after it
            head = head[CODA_SIZE:]
        if message.is_magic(message.magic_at(head)) and message.total_size_at(head) == size:
            size -= 1
        units[number] = (first + number, place, size, GUESSED, rows["store_time"][behind])
    return units


def _shares(count: int, start: int, stop: int) -> list[tuple[int, int]]:
    """Return (position, size) of ``count`` equal parts of a range. Return an empty list if the
    parts would be too small for records.
    """
    share = (stop - start) // count
    return [(start + number * share, share) for number in range(
        count if share >= message.MIN_SIZE else 0)]


def _borders(surveyed: CommitLogSurvey, count: int, start: int, stop: int) -> list[tuple[int, int]]:
    """Return the (position, size) of ``count`` records, determined from their index items.

    Return an empty list if there are several gaps between the items, and a gap contains more than
    one record.
    """
    log, rows = surveyed.log, surveyed.rows
    witness = log.witness() if log.witness is not None and count > 1 else None
    if not isinstance(witness, QueueWitness):
        return []
    behind = int(np.searchsorted(rows["position"], stop))
    beside = (log.record_at(int(place)) for place in rows["position"][
        max(0, behind - _MAX_BESIDE):behind + _MAX_BESIDE] if not start <= place < stop)
    extents = witness.extents(start, stop, [record for record in beside if record is not None])
    gaps: list[tuple[int, int]] = []
    position = start
    for place, size in [*extents, (stop, 0)]:
        if place < position or place + size > stop:
            return []
        if place > position:
            gaps.append((position, place - position))
        position = place + size
    left = count - len(extents)
    if not extents or left < len(gaps) or (left and len(gaps) not in (1, left)):
        return []
    if len(gaps) == 1:
        gaps = _shares(left, gaps[0][0], gaps[0][0] + gaps[0][1])
    places = sorted([*extents, *gaps])
    return places if len(places) == count and all(
        size >= message.MIN_SIZE for _, size in places) else []


def with_units(surveyed: CommitLogSurvey, units: Sequence[tuple[int, Array]], path: str) -> Array:
    """Insert ``units`` into the rows of a survey. Return all rows, from a new file at ``path``.
    Raises: StoreIOError.
    """
    rows = surveyed.rows
    try:
        with open(path, "wb", buffering=1 << 20) as file:
            position = 0
            for before, more in chain(units, ((len(rows), rows[:0]),)):
                file.writelines(rows[start:min(start + _BLOCK, before)].tobytes()
                                for start in range(position, before, _BLOCK))
                file.write(more.tobytes())
                position = before
        return np.memmap(path, ROW, "r")
    except OSError as error:
        raise failed(error, path, "write to") from None


class Patched(ReaderOverlay):
    """A reader that returns ``pieces`` (by path, in ascending order) instead of the bytes that the
    files contain at these positions.
    """

    def __init__(self, below: TierReader, pieces: Mapping[str, Sequence[OverlayPiece]]) -> None:
        super().__init__(below)
        self._pieces = pieces

    def read(self, path: str, position: int, length: int) -> bytes:
        data = self._below.read(path, position, length)
        over = [piece for piece in self._pieces.get(path, ())
                if piece.at < position + len(data) and piece.end > position]
        if not over:
            return data
        patched = bytearray(data)
        for piece in over:
            low, high = max(piece.at, position), min(piece.end, position + len(data))
            piece.read_into(memoryview(patched)[low - position:high - position], low - piece.at)
        return bytes(patched)

    def source(self, path: str, base: int = 0) -> Source:
        below = self._below.source(path, base)
        if path not in self._pieces:
            return below
        return _PatchedSource(LogPart(base, below.size, path, tuple(self._pieces[path])), below)


class _PatchedSource(OverlaidSource):
    def __init__(self, part: LogPart, below: Source) -> None:
        super().__init__(part, below)
        self._file = below

    def close(self) -> None:
        close_source(self._file)
