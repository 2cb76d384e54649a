"""Compare this store's log with that of a source (another store) by physical offset, like `diff`.

Only intact records are compared: records that a broker accepts and that are not fillers of an
earlier repair. "Ours" means this store's log.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack, closing
from dataclasses import field, fields
from typing import cast

import numpy as np

from rmqctl.checks.diff.differences import Differences, Name, Side, differences_of
from rmqctl.checks.diff.physical import PhysicalPass
from rmqctl.damage.index_keys import keys_of_places
from rmqctl.damage.ranges import EmptyRange, Range, Ranges
from rmqctl.damage.survey.survey import Survey
from rmqctl.errors import RefusedError, StoreIOError
from rmqctl.formats.local import properties as props
from rmqctl.formats.local.consume_queue import tags_code
from rmqctl.formats.local.message import Record, decode
from rmqctl.lazy_dataclass import dataclass
from rmqctl.repair.salvage.keep import kept_from
from rmqctl.repair.salvage.mend.topics import is_impossible
from rmqctl.repair.sources.opening import LogSource
from rmqctl.scan.damage.leads import Leads
from rmqctl.scan.damage.properties import appended_crcs
from rmqctl.scan.damage.references import key_hashes
from rmqctl.scan.damage.stale import MAX_PAGE_RECORDS, records_between
from rmqctl.scan.fillers import fillers, kept_damaged
from rmqctl.scan.frames import BLANK, Array, Batch, distinct
from rmqctl.scan.overlay import LogPart
from rmqctl.scan.source import FileSource, Witness
from rmqctl.scan.source import Source as PartSource
from rmqctl.store.files import StoreFile
from rmqctl.store.log.bounds import View
from rmqctl.store.log.commit_log import CommitLog
from rmqctl.store.objects import text
from rmqctl.store.store import Store

_MAX_NAMED = 1000
_MAX_AGAINST = 10_000
_MAX_ASKED = 100
"""Maximum number of messages whose store time is looked up in the index; each lookup reads the
complete index.
"""
_KEYS_OF_BATCH = 64
_TORN = 8
"""Weight of a torn record in a verdict: more than consume queues and index can contribute
together.
"""
_OF_ONE = frozenset(field.name for field in fields(Record)) - {
    "flag", "sys_flag", "reconsume_times", "prepared_transaction_offset", "properties"}
"""At least one of these fields differs between different messages from two brokers at the same
physical offset.
"""


@dataclass(slots=True)
class Comparison:
    """Result of comparing one source with our log.

    A *frame* is an intact record or an end-of-file record (blank).

    * ``equal``: frames that are equal in both logs.
    * ``offered``: frames of the source at offsets where our log has no intact record.
    * ``conflicts``: frames of the source where our log has different intact records.
    * ``stretches``: parts of our log without intact records.
    * ``end``: end of the source's log when the comparison began.
    * ``fillers``: arrays of ranges (start, end) that an earlier repair wrote into our log and that
      the source does not have.
    * ``bare``: whether our log has no intact message at all.

    The other fields describe the conflicts:

    * ``topics``: (physical offset, topic) of the first conflicts.
    * ``fields``: names of the fields that differ, by physical offset, if both records have the same
      size.
    * ``verdicts``: by physical offset, how much better our consume queues and index match the
      source's record than our record.
    * ``hit``: physical offsets at which both logs have the same message, damaged in one of them.
    * ``confirmed``: physical offsets at which our consume queues and index match the source's
      record better.
    * ``disproved``: physical offsets at which our record is wrong according to the verdict.
    """

    equal: Ranges
    offered: Ranges
    conflicts: Ranges
    stretches: Sequence[EmptyRange]
    end: int
    topics: list[tuple[int, str]] = field(default_factory=list)
    fields: dict[int, tuple[str, ...]] = field(default_factory=dict)
    verdicts: dict[int, int] = field(default_factory=dict)
    hit: set[int] = field(default_factory=set)
    confirmed: set[int] = field(default_factory=set)
    disproved: set[int] = field(default_factory=set)
    fillers: list[Array] = field(default_factory=list)
    bare: bool = False

    def settle(self) -> None:
        """Resolve the conflicts after both logs have been compared.

        If our consume queues and index match the source's record better, our record is damaged.

        If they match our record better, the source's record may be damaged. It is considered
        damaged if the conflict is the only one between two ranges that are equal in both logs. Such
        a conflict is not a split brain.
        """
        for ranges in (self.equal, self.offered, self.conflicts):
            ranges.settle()
        self.disproved = {place for place, verdict in self.verdicts.items() if verdict > 0}
        self.disproved.update(int(place) for some in self.fillers for place, end in some
                              if next(self.conflicts.within(place, end), None) is not None)
        left = Ranges()
        for item in self.conflicts.items:
            verdict = self.verdicts.get(item.start, 0) if item.messages == 1 else 0
            before, behind = self.equal.before(item.start), self.equal.behind(item.end)
            alone = before is not None and behind is not None and not any(
                other is not item for other in self.conflicts.within(before.end, behind.start))
            if verdict > -_TORN and not (alone and verdict < 0):
                left.put(item)
        self.conflicts = left


class _PartsLog(CommitLog):
    """Our log as a `CommitLog`: its files with the planned pieces applied, without missing
    files.
    """

    def __init__(self, parts: Sequence[LogPart]) -> None:
        there = [part for part in parts if part.path is not None or part.pieces]
        super().__init__([StoreFile(part.path or "", f"{part.base:020d}", part.base, part.size,
                                    witness=part.witness) for part in there], parts[0].size)
        self._parts = there
        self._stack = ExitStack()
        self._opened: tuple[int, PartSource] | None = None

    def source(self, number: int) -> FileSource:
        if self._opened is None or self._opened[0] != number:
            self._stack.close()
            self._opened = number, self._stack.enter_context(self._parts[number].open())
        return cast("FileSource", self._opened[1])

    def bytes_at(self, physical: int, size: int) -> bytes:
        place = self.locate(physical)
        return b"" if place is None else place[0].read(place[1], size)

    def close(self) -> None:
        self._stack.close()


class _Side(Side):
    """One of the two compared logs, with its end-of-file records. ``log`` is read instead of the
    log of ``store``.
    """

    def __init__(self, name: Name, store: Store, log: CommitLog, end: int) -> None:
        super().__init__(name, View(store, lambda: end))
        self.log, self.start, self.position = log, log.min_offset, log.min_offset
        self.blanks: dict[int, int] = {}

    def passed(self, batch: Batch) -> None:
        super().passed(batch)
        self.blanks.update((span.offset, span.length) for span in batch.spans
                           if span.kind == BLANK)


class _Pass(PhysicalPass):
    def __init__(self, a: _Side, b: _Side, comparison: Comparison, sealed: bool,
                 witness: Witness | None, progress: Callable[[int], None] | None) -> None:
        super().__init__(a, b, Differences(0), progress)
        self._comparison, self._sealed, self._witness = comparison, sealed, witness
        self._asked = 0
        last = a.store.checkpoint
        self._times = [] if last is None else [time for time in (
            last.physic_msg_timestamp, last.logics_msg_timestamp, last.index_msg_timestamp)
            if time > 0]
        self._starts = np.array([stretch.start for stretch in comparison.stretches], np.int64)
        self._ends = np.array([stretch.end for stretch in comparison.stretches], np.int64)

    def same(self, batch: Batch, rows: Array) -> None:
        super().same(batch, rows)
        offset, size = batch.offset[rows], batch.column("total_size")[rows]
        inside, _ = self._inside(offset, size)
        self._comparison.equal.add(offset[~inside], size[~inside])  # inside: damaged in both logs

    def missing(self, batch: Batch, which: Array, side: Side, detail: str = "") -> None:
        if side.name == "a":
            self._theirs(batch, np.flatnonzero(which))
        else:
            self._ours(batch, np.flatnonzero(which))

    def different(self, batch: Batch, rows: Array, their_batch: Batch, other: Array) -> None:
        sizes = batch.column("total_size")[rows], their_batch.column("total_size")[other]
        alike = (sizes[0] == sizes[1]) & ~self._inside(batch.offset[rows], sizes[0])[0]
        alike &= ~fillers(batch)[rows] & ~kept_damaged(batch)[rows] & their_batch.crc_ok()[other]
        left = max(0, _MAX_NAMED - len(self._comparison.fields))
        for index in np.flatnonzero(alike)[:left].tolist():
            ours = decode(batch.bytes_at(int(rows[index])))
            theirs = decode(their_batch.bytes_at(int(other[index])))
            place = ours.physical_offset
            differing = differences_of(ours, theirs)
            self._comparison.fields[place] = tuple(differing)
            if _OF_ONE.isdisjoint(differing):
                self._comparison.hit.add(place)
            raw = batch.bytes_at(int(rows[index]))
            their_raw = their_batch.bytes_at(int(other[index]))
            better = self._knowledge(theirs) - self._knowledge(ours)
            if better > 0:
                self._comparison.confirmed.add(place)
            self._comparison.verdicts[place] = (
                better + self._timed(ours, theirs)
                + is_impossible(ours.topic) - is_impossible(theirs.topic)
                + _TORN * (_is_torn(raw, their_raw) - _is_torn(their_raw, raw))
                + _TORN * (props.are_sound(theirs.properties) - props.are_sound(ours.properties)))
        self._kept(batch, rows, their_batch, other)
        self._ours(batch, rows)
        self._theirs(their_batch, other)

    def _ours(self, batch: Batch, rows: Array) -> None:
        """Record the fillers in our log that the source does not have."""
        rows = rows[fillers(batch)[rows]] if len(rows) else rows
        if len(rows):
            offset = batch.offset[rows]
            self._comparison.fillers.append(np.stack(
                [offset, offset + batch.column("total_size")[rows]], axis=1))

    def _kept(self, batch: Batch, rows: Array, their_batch: Batch, other: Array) -> None:
        """Record messages that an earlier repair kept damaged and of which the source has more."""
        for index in np.flatnonzero(kept_damaged(batch)[rows]).tolist():
            ours = decode(batch.bytes_at(int(rows[index])))
            theirs = decode(their_batch.bytes_at(int(other[index])))
            is_better = theirs.body != ours.body or props.are_sound(theirs.properties)
            if is_better and kept_from(ours, theirs):
                place = ours.physical_offset
                self._comparison.fillers.append(np.array([[place, place + ours.total_size]]))

    def _knowledge(self, record: Record) -> int:
        return knowledge(self.a.store, self._witness, record)

    def _timed(self, ours: Record, theirs: Record) -> int:
        """Return 1 if the index confirms only the source's store time, -1 if it confirms only ours,
        else 0.
        """
        if ours.store_timestamp == theirs.store_timestamp or self._asked >= _MAX_ASKED:
            return 0
        self._asked += 1
        keys = keys_of_places(self.a.store, [ours.physical_offset]).get(ours.physical_offset, [])
        return (all(key.agrees(theirs.store_timestamp) for key in keys)
                - all(key.agrees(ours.store_timestamp) for key in keys))

    def _inside(self, offset: Array, size: Array) -> tuple[Array, Array]:
        """Return two arrays: for each record, whether it is inside a stretch, and the index of that
        stretch.
        """
        number = np.searchsorted(self._starts, offset, "right") - 1
        inside = number >= 0
        inside &= offset + size <= self._ends[number]
        return inside, number

    def _theirs(self, batch: Batch, rows: Array) -> None:
        """Add to the offered records, or to the conflicts, the intact records of the source that
        differ from ours.
        """
        if not len(rows):
            return
        batch = batch.select(rows)
        good = batch.crc_ok() | (batch.column("body_length") == 0)
        good &= ~(fillers(batch) | kept_damaged(batch))
        if self._sealed:
            good &= ~appended_crcs(batch)[1]
        offset, size = batch.offset, batch.column("total_size")
        inside, number = self._inside(offset, size)
        self._conflict(batch, np.flatnonzero(good & ~inside))
        taken = np.flatnonzero(good & inside)
        if not len(taken):
            return
        self._comparison.offered.add(offset[taken], size[taken])
        for stretch_number in distinct(number[taken]).tolist():
            self._weigh(self._comparison.stretches[stretch_number], batch,
                        taken[number[taken] == stretch_number])

    def _conflict(self, batch: Batch, rows: Array) -> None:
        offset, size, comparison = batch.offset, batch.column("total_size"), self._comparison
        comparison.conflicts.add(offset[rows], size[rows])
        for row in rows[:max(0, _MAX_NAMED - len(comparison.topics))].tolist():
            comparison.topics.append((int(offset[row]), decode(batch.bytes_at(row)).topic.decode(
                "utf-8", "replace")))

    # -- check against our consume queues and index -----------------------------------------------

    def _weigh(self, stretch: EmptyRange, batch: Batch, rows: Array) -> None:
        if self._witness is None or stretch.filled:
            return
        # Consume queue entries that point into the stretch confirm a record or contradict one.
        offset, size = batch.offset[rows], batch.column("total_size")[rows]
        low, high = int(offset[0]), int(offset[-1] + size[-1])
        places, sizes = self._witness.rows(low, high)
        against: set[int] = set()
        agreeing = np.zeros(len(rows), bool)
        if len(places):
            which = np.searchsorted(offset, places, "right") - 1
            here = (which >= 0) & (places < offset[which] + size[which])
            right = here & (places == offset[which]) & (sizes == size[which])
            agreeing[which[right]] = True
            against.update(distinct(which[here & ~right]).tolist())
        # A damaged entry may point anywhere, so the entry at the record's queue offset decides.
        against = {index for index in against if not self._confirmed(stretch, batch, rows[index])}
        # Index keys of a sample of the records.
        key_places, hashes = self._witness.keys(low, high)
        keyed = np.flatnonzero(np.isin(offset, key_places))
        keys = 0
        step = max(1, len(keyed) // _KEYS_OF_BATCH)
        for index in sorted({*keyed[::step].tolist(), *keyed[-1:].tolist()}):
            theirs = key_hashes(decode(batch.bytes_at(int(rows[index]))))
            if theirs.issuperset(hashes[key_places == offset[index]].tolist()):
                keys += 1
                agreeing[index] = True
                stretch.agree(int(offset[index]), int(offset[index] + size[index]))
            else:
                against.add(index)
        # Contradicted records do not count as agreeing. Up to the last agreeing record whose store
        # time is in the checkpoint, the source's log is ours.
        for index in sorted(against):
            agreeing[index] = False
            stretch.against.append((int(offset[index]), int(offset[index] + size[index])))
        timed = agreeing & np.isin(batch.column("store_timestamp")[rows], self._times)
        for index in np.flatnonzero(timed)[-1:].tolist():
            stretch.timed_end = max(stretch.timed_end, int(offset[index] + size[index]))
        stretch.rows += int(agreeing.sum())
        stretch.keys += keys


    def _confirmed(self, stretch: EmptyRange, batch: Batch, row: int) -> bool:
        if len(stretch.against) > _MAX_AGAINST:
            return False
        assert self._witness is not None
        return bool(self._witness.confirms(decode(batch.bytes_at(int(row)))))


def knowledge(store: Store, witness: Witness | None, record: Record) -> int:
    """Return how many of three structures confirm a record.

    The structures are the consume queue entry, the tags code in the entry, and the index keys.
    """
    if witness is None:
        return 0
    place = record.physical_offset
    hashes = witness.keys(place, place + 1)[1].tolist()
    return (witness.confirms(record) is True) + (
        bool(hashes) and key_hashes(record).issuperset(hashes)) + _has_its_tags(store, record)


def _has_its_tags(store: Store, record: Record) -> bool:
    """Return whether the entry at a record's queue offset has the record's tags code."""
    queue = store.queues.readable.get((text(record.topic), record.queue_id))
    try:
        unit = None if queue is None else queue.unit(record.queue_offset)
        return unit is not None and unit.physical_offset == record.physical_offset and (
            unit.tags_code == tags_code(text(record.topic), props.parse(text(record.properties)),
                                        record.store_timestamp))
    except (StoreIOError, ValueError):
        return False


def _is_torn(raw: bytes, other: bytes) -> bool:
    """Return whether ``raw`` equals ``other`` except for zeros in place of the last bytes (a torn
    write).
    """
    length = len(raw.rstrip(b"\0"))
    return length < len(raw) and raw[:length] == other[:length] and any(other[length:])


def _ask_doubtful(gone: EmptyRange, log: _PartsLog, theirs: _Side, comparison: Comparison) -> None:
    """Count which doubtful records of our log the source confirms and which it contradicts.

    Records at offsets where the source has no message are not counted.
    """
    for place, size in gone.doubtful:
        if theirs.holds(place, np.frombuffer(log.bytes_at(place, size), np.uint8)):
            gone.alike += 1
            gone.agree(place, place + size)
        elif next(comparison.offered.within(place, place + size), None) is not None:
            gone.against.append((place, place + size))
    gone.against.sort()


def _unknown(log: _PartsLog, comparison: Comparison, blank: Range) -> list[int]:
    """Return the physical offsets of our records after ``blank`` if they are in a stale page, else
    [].

    ``blank``: the source's end-of-file record. The logs must be equal before and after the page,
    and no entry or index key may point to the records.
    """
    before, behind = comparison.equal.before(blank.start), comparison.equal.behind(blank.end)
    place = log.locate(blank.start)
    witness = None if place is None else place[0].witness
    if before is None or behind is None or place is None or witness is None or (
            comparison.conflicts.has_any(before.end, behind.start)):
        return []
    source = place[0]
    records = records_between(source, blank.start, source.base + source.size)
    leads = Leads(witness, records)
    if len(records) > MAX_PAGE_RECORDS or not leads.are_none() or not leads.contradict(
            records, besides=1):
        return []
    return [record.physical_offset for record in records]


def compare(ours: Store, parts: Sequence[LogPart], source: LogSource, survey: Survey,
            gone: Sequence[EmptyRange],
            progress: Callable[[int], None] | None = None) -> Comparison:
    """Compare our log with the source's.

    ``parts``: our log; ``gone``: its stretches without intact records, from ``survey``. Raises:
    StoreIOError; RefusedError if no message of the source belongs to our log.
    """
    with closing(_PartsLog(parts)) as log:
        a = _Side("a", ours, log, log.end)
        b = _Side("b", ours, source.log, source.end)
        comparison = Comparison(Ranges(), Ranges(), Ranges(), gone, b.end)
        _Pass(a, b, comparison, survey.has_crcs, parts[0].witness, progress).whole()
        for ranges in (comparison.equal, comparison.offered, comparison.conflicts):
            ranges.settle()
        for stretch in gone:
            _ask_doubtful(stretch, log, b, comparison)
        # End-of-file records of the source: equal to ours, offered, or where our log has messages.
        ended: list[Range] = []
        for start, length in b.blanks.items():
            blank = Range(start, start + length)
            if a.blanks.get(start) == length:
                comparison.equal.put(blank)
            elif any(stretch.start <= start and blank.end <= stretch.end for stretch in gone):
                comparison.offered.put(blank)
            elif not any(stretch.start <= start < stretch.end for stretch in gone):
                ended.append(blank)  # our log has more messages in this file
        comparison.equal.settle()
        comparison.verdicts.update((place, 1) for blank in ended
                              for place in _unknown(log, comparison, blank))
    for blank in ended:
        comparison.conflicts.put(blank)
    comparison.settle()
    # A log without any agreement with ours is another log. A record that is the same message in
    # both, or that our queues and index confirm in the source, is no disagreement.
    comparison.bare = not survey.messages
    others = sum(item.messages for item in comparison.conflicts.items) - sum(
        next(comparison.conflicts.within(place, place + 1), None) is not None
        for place in comparison.hit | comparison.confirmed)
    if not any(item.messages for item in comparison.equal.items) and (others or not any(
            (stretch.keys or stretch.alike) and not stretch.against for stretch in gone)):
        raise RefusedError(
            f"{source.name}: no message in it equals the message of this store at the same "
            "physical offset"
            + (", and this store has no index with its keys: unknown whether it belongs to this "
               "log" if comparison.bare else ": it belongs to another broker or another log")
            + "; nothing is copied from it")
    return comparison
