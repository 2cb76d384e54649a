"""Restore damaged records from what other structures and the record itself prove.

These records are restored:

* Records in a damaged region whose header is damaged but whose body still matches its CRC. Their
  size, magic and physical offset are known from elsewhere. One bit of their other lengths may be
  wrong.
* Records whose stored body CRC differs from the computed CRC in one bit. A damaged body is unlikely
  to cause that (32 chances in 2^31).
* Intact records whose topic, queue, queue offset or transaction bits contradict the consume queue
  entry that points to them, if no entry confirms the record's own values.
* Complete records, and 512-byte sectors or 4 KiB pages, that are at another record's position
  (`moved`).

Nothing is changed without proof, and the next survey must accept each restored record.

In benchmarks/stage_yields.py, one of these fields gets a random value: size, magic, physical
offset, or the length of the body, topic or properties. For each field, 60 of 60 messages are
restored.
"""

from __future__ import annotations

import os
from bisect import bisect_left
from collections.abc import Collection, Container, Iterator, Mapping, Sequence
from dataclasses import field, replace
from itertools import groupby
from typing import Any

from rmqctl.damage.evidence import FoundRow, Gatherer, HoleEntries, holes_with
from rmqctl.damage.records import (
    MAX_BODY,
    UNCHANGED,
    Records,
    bent_heads,
    body_crc,
    extent,
    field_of,
    is_displaced,
    is_foreign_place,
    likely_first,
    shift_of,
    whole_record,
    with_fields,
    with_other_lengths,
)
from rmqctl.damage.survey.survey import Region, Survey
from rmqctl.errors import FormatError
from rmqctl.formats.local import append_crc, sysflag
from rmqctl.formats.local.message import (
    BLANK_SIZE,
    MIN_SIZE,
    START_SIZE,
    VERSIONS,
    Record,
    build,
    decode,
    is_magic,
    magic_at,
    total_size_at,
)
from rmqctl.lazy_dataclass import dataclass
from rmqctl.repair.plan import Action
from rmqctl.repair.salvage.contradict import Contradictions
from rmqctl.repair.salvage.correct import (
    Chances,
    Correct,
    Correction,
    corrected,
    damaged_crc,
    explained_by_body,
)
from rmqctl.repair.salvage.keep import kept_damaged
from rmqctl.repair.salvage.mend.flags import Flags, are_odd, mend_flags
from rmqctl.repair.salvage.mend.headers import mend_headers
from rmqctl.repair.salvage.mend.moved import is_indexed, swapped_pages
from rmqctl.repair.salvage.mend.properties import NO_ROOM, mend_properties
from rmqctl.repair.salvage.mend.sealed import field_of_seal
from rmqctl.repair.salvage.mend.topics import (
    CorrectedTopic,
    TopicEvidence,
    is_impossible,
    mend_topics,
)
from rmqctl.repair.salvage.twins import Twins
from rmqctl.repair.salvage.witnesses import Witnesses
from rmqctl.repair.targets import part_target
from rmqctl.scan.overlay import LogPart, Nearby, OverlayPiece
from rmqctl.scan.resync import is_placed
from rmqctl.scan.source import Source
from rmqctl.store.store import Store

_PLACING = "total_size", "magic", "physical_offset"
_BUDGET = 2 << 30
"""Maximum total size in bytes of the candidates that one round checks. Crafted damage could
otherwise make a repair take forever.
"""


@dataclass(slots=True)
class Mending:
    """Result of a round of restoring records. All offsets are physical.

    * ``pieces``: pieces to write, at positions in a file, by part number.
    * ``messages``: number of restored messages.
    * ``actions``: descriptions of the changes.
    * ``rejected``: offsets of records that contradict their queues and cannot be corrected.
    * ``confirmed``: sizes of records in damaged regions that are complete, or will be when the
      pieces are written, by offset.
    * ``moved``: whether the pieces are bytes from elsewhere in the log.
    * ``corrected``: offsets of records that a changed byte makes intact.
    * ``refused``: reasons why other records are not corrected, by offset.
    * ``by_byte``: offsets of records that one changed byte would correct, although only single bits
      may be changed.
    * ``topics``: reasons why invalid topics are kept, by offset.
    """

    pieces: dict[int, tuple[OverlayPiece, ...]] = field(default_factory=dict)
    messages: int = 0
    actions: list[Action] = field(default_factory=list)
    rejected: set[int] = field(default_factory=set)
    confirmed: dict[int, int] = field(default_factory=dict)
    moved: bool = False
    corrected: set[int] = field(default_factory=set)
    refused: dict[int, str] = field(default_factory=dict)
    by_byte: set[int] = field(default_factory=set)
    topics: dict[int, str] = field(default_factory=dict)
    marked: set[int] = field(default_factory=set)
    """Physical offsets of messages that have lost some of their properties and are kept."""
    unmarked: dict[int, str] = field(default_factory=dict)
    """Reasons why messages with damaged properties are not marked, by physical offset."""


def mend(store: Store, parts: Sequence[LogPart], survey: Survey, gatherer: Gatherer,
         evidence: HoleEntries, rejected: Collection[int] = (),
         correct: Correct = "bit", chances: Chances | None = None,
         undecided: Collection[int] = ()) -> Mending:
    """Run one round that restores records at their present positions. Raises: StoreIOError.

    * ``rejected``: physical offsets of records that count as damaged, even if they look intact.
    * ``correct``: the kind of changes allowed where a CRC proves the original.
    * ``chances``: shared by all rounds of this repair.
    * ``undecided``: physical offsets of ambiguous records that the user chose to keep as messages.
    """
    return _Round(store, parts, survey, gatherer, evidence, rejected, correct,
                  chances or Chances(), undecided).run()


def put_back(store: Store, parts: Sequence[LogPart], survey: Survey) -> Mending:
    """Put back swapped pages in damaged regions. Raises: StoreIOError."""
    mending = _mending(store, parts, swapped_pages(parts, survey.regions), 0, "put back",
                    "was at another place")
    mending.moved = True
    return mending


def mark(store: Store, parts: Sequence[LogPart], survey: Survey, evidence: HoleEntries) -> Mending:
    """Correct or mark intact messages with damaged properties. Raises: StoreIOError."""
    mended = mend_properties(store, parts, survey, evidence)
    mending = _mending(store, parts, mended.records.pieces, len(mended.corrections), "keep damaged",
                    "", mended.records.reasons, mended.corrections)
    mending.marked, mending.unmarked = mended.marked, mended.left
    return mending


def keep(store: Store, parts: Sequence[LogPart], survey: Survey, gatherer: Gatherer,
         evidence: HoleEntries, generation: int, earlier: Container[int], *,
         bodies: bool) -> Mending:
    """Keep damaged messages that can be delivered (see `kept_damaged`). Raises: StoreIOError.

    ``earlier``: physical offsets of records from an earlier use of the file, which are not kept.
    ``bodies``: whether to keep messages with damaged bodies, too.
    """
    records = Records(parts)
    damaged, full = kept_damaged(parts, survey, gatherer, evidence, generation, bodies=bodies)
    kept = [record for record in damaged if record.physical not in earlier]
    for record in kept:
        if records.read(record.physical, len(record.content))[2] == record.content:
            continue  # kept by an earlier repair
        records.replace(record.physical, record.content)
        records.reasons[record.physical] = (
            "body kept as it is, CRC recomputed, marked RMQCTL=damaged; space for the mark from "
            f"{record.how}")
    mending = _mending(store, parts, records.pieces, 0, "keep damaged", "", records.reasons)
    mending.corrected = {record.physical for record in kept}
    mending.unmarked = {place: NO_ROOM for place in full if place not in earlier}
    return mending


def _mending(store: Store, parts: Sequence[LogPart], pieces: dict[int, list[OverlayPiece]],
             count: int, verb: str, why: str, reasons: Mapping[int, str] | None = None,
             corrections: Mapping[int, Correction] | None = None) -> Mending:
    mending, witnesses = Mending(messages=count), Witnesses(store, parts)
    for number, some in pieces.items():
        ordered: list[OverlayPiece] = []
        for piece in some:  # the first piece is the most certain
            index = bisect_left(ordered, piece.at, key=lambda piece: piece.at)
            if (not index or ordered[index - 1].end <= piece.at) and (
                    index == len(ordered) or piece.end <= ordered[index].at):
                ordered.insert(index, piece)
        mending.pieces[number] = tuple(ordered)
        target = part_target(store, parts[number]) if ordered else ""
        for piece in ordered:
            place = parts[number].base + piece.at
            correction = (corrections or {}).get(place)
            if correction is not None:
                mending.actions.append(Action(
                    "correct", target, f"0x{correction.before.hex()}",
                    f"0x{correction.after.hex()}", correction.in_words(), offset=place,
                    length=piece.size, proof=correction.proof))
                continue
            reason, proof = _reasoned(witnesses, place, piece, why, (reasons or {}).get(place))
            mending.actions.append(Action(verb, target, None, None, reason, offset=place,
                                          length=piece.size, proof=proof))
    return mending


def _reasoned(witnesses: Witnesses, place: int, piece: OverlayPiece, why: str,
              reason: str | None) -> tuple[str, Mapping[str, Any]]:
    """Return (the reason why a piece is written, the evidence as data).

    ``why``: reason for all pieces, or empty; ``reason``: reason for this piece, if known.
    """
    content = bytearray(piece.size)
    piece.read_into(memoryview(content), 0)
    evidence = None if why else witnesses.of_record(place, bytes(content))
    if evidence is None:
        evidence = witnesses.of_bytes(place, piece.size)
    if reason is not None:
        return reason, {**evidence.proof, "by": reason.split("; ")}
    return why or evidence.in_words(), evidence.proof


class _Round:
    def __init__(self, store: Store, parts: Sequence[LogPart], survey: Survey,
                 gatherer: Gatherer, evidence: HoleEntries, rejected: Collection[int],
                 correct: Correct, chances: Chances, undecided: Collection[int]) -> None:
        self._store, self._parts, self._survey = store, parts, survey
        self._gatherer, self._evidence = gatherer, evidence
        self._records, self._refused, self._undecided = Records(parts), rejected, undecided
        self._twins = Twins(store, self._records)
        self._budget = _BUDGET
        self._last: tuple[bytes, Record] | None = None
        self._confirmed: dict[int, int] = {}
        self._correct, self._chances = correct, chances
        self._corrections: dict[int, Correction] = {}
        self._corrected: set[int] = set()
        self._not_corrected: dict[int, str] = {}
        self._by_byte: set[int] = set()
        self._topics = TopicEvidence(store, parts, survey, gatherer, evidence)
        self._flags = Flags(parts, survey, gatherer, self._records, self._chances)

    def run(self) -> Mending:
        # In damaged regions, restore records wherever an entry or the log shows that a record
        # starts. A frame's own fields are no evidence: the frame may be in a body.
        rows: dict[int, list[FoundRow]] = {}
        for row in self._evidence.rows:
            rows.setdefault(row.physical, []).append(row)
        places = sorted(rows)
        for number, regions in groupby(self._survey.regions, lambda region: region.file):
            part = self._parts[number]
            if part.path is None and not part.pieces:
                continue
            with part.open() as opened:
                source = Nearby(opened)
                for region in regions:
                    if region.dirty:
                        self._region(source, region, rows, places)
        # In intact records, correct the CRC of an empty body, and contradictions to other
        # structures.
        for physical in self._survey.lacking_crc if self._survey.has_crcs else ():
            self._name(physical)
        for physical in self._survey.unchecked:
            self._records.set_field(physical, "body_crc", 0)
            self._records.reasons[physical] = "an empty body has the CRC 0"
        contradictions = Contradictions(self._store, self._gatherer, self._evidence, self._records,
                                        self._survey.skipping)
        mend_flags(self._flags, self._survey, self._records, contradictions.by_place)
        contradictions.of_rows()
        topics_left = mend_topics(self._topics, self._records, contradictions.by_place)
        contradictions.of_places(topics_left, self._undecided)
        mend_headers(self._store, self._survey, self._records)
        mending = _mending(self._store, self._parts, self._records.pieces, self._records.count,
                        "mend record", "", self._records.reasons, self._corrections)
        mending.rejected, mending.confirmed = self._records.rejected, self._confirmed
        mending.corrected, mending.refused = self._corrected, self._not_corrected
        mending.by_byte, mending.topics = self._by_byte, topics_left
        return mending

    # -- in damaged regions -----------------------------------------------------------------------

    def _region(self, source: Source, region: Region, rows: Mapping[int, list[FoundRow]],
                places: Sequence[int]) -> None:
        """Restore the records of a region. ``rows``: entries that point to ``places``
        (ascending).
        """
        starts = {*region.starts, *(start for start, _ in region.extents),
                  *places[bisect_left(places, region.start):bisect_left(places, region.end)]}
        end = region.start
        for start in sorted(starts):
            if start >= end:
                end = start + self._damaged(source, region, start, rows.get(start, []))

    def _damaged(self, source: Source, region: Region, start: int, rows: list[FoundRow]) -> int:
        """Return the size of the record at ``start`` if it is intact or could be restored;
        else 0.
        """
        position = start - source.base
        part = self._parts[region.file]
        # A broker keeps space for an end-of-file record, so no message can be longer.
        room = min(region.end, part.end - BLANK_SIZE) - start
        sizes = {row.size for row in rows if MIN_SIZE <= row.size <= room}
        head = source.read(position, max(0, min(room, 1 << 16)))
        if min(room, len(head)) < max(MIN_SIZE, START_SIZE):
            return 0
        if len(rows) == 1 and start not in self._refused and (
                led := self._as_led(start, head, rows, room)) is not None:
            return self._restored(source, start, *led)
        stored = self._stored(source, start, room, head)
        by_flags = self._by_flags(region, start, stored, rows)
        if by_flags or start in self._refused:
            return by_flags or self._by_crc(region, start, stored, rows) or self._by_twin(
                start, stored, rows)
        for candidate in self._candidates(source, position, head, room, sizes):
            record = whole_record(candidate, start, self._survey.has_crcs, self._decoded)
            if record is None or _ends_in_zeros(record, head, sizes):
                continue
            topic = self._topics.of_impossible(record, rows) if is_impossible(
                record.topic) else None
            if isinstance(topic, str):
                continue
            record = record if topic is None else replace(record, topic=topic.topic)
            stored_at = field_of(head, "physical_offset")
            # A displaced record belongs to the offset in its physicalOffset field.
            displaced = stored_at != start and is_displaced(
                self._parts, start, stored_at, len(candidate))
            # So does a record whose entry points to that offset, or whose neighbours are shifted by
            # the same distance.
            if stored_at != start and not rows and (self._is_led_elsewhere(record, stored_at) or (
                    self._is_shifted(source, region, position, len(candidate)))):
                continue
            shifted = displaced or (stored_at != start and self._is_shifted(
                source, region, position, len(candidate), part.size))
            near = (stored_at ^ start).bit_count() == 1 or not 0 <= stored_at < self._parts[-1].end
            # If its neighbours are shifted by as much, all were moved and the field is not damaged.
            foreign = displaced or (is_foreign_place(stored_at, start, part.size) and (
                shifted or not near or not _is_timely(region, record)))
            wrong = sum(field_of(head, name) != field_of(candidate, name) for name in _PLACING)
            if not self._supported(record, rows, foreign, shifted=shifted, wrong=wrong,
                                   moved=foreign and self._may_be_of(stored_at)):
                continue
            raw = candidate if topic is None else build(record)
            return self._restored(source, start, raw, record, topic)
        return self._by_crc(region, start, stored, rows) or self._by_twin(start, stored, rows)

    def _as_led(self, start: int, head: bytes, rows: list[FoundRow], room: int) -> (
            tuple[bytes, Record] | None):
        """Return the record at ``start`` if its only entry proves size and place, and nothing
        else in it is damaged.

        This is the first candidate of `_candidates`, for the most frequent damage. The system flags
        of a record with the right place and magic may be damaged, too, so it needs a closer look.
        """
        size, magic = rows[0].size, magic_at(head)
        if not MIN_SIZE <= size <= min(room, len(head), MAX_BODY) or (
                is_magic(magic) and field_of(head, "physical_offset") == start
                and total_size_at(head) == size):
            return None
        raw = with_fields(head[:size], total_size=size, physical_offset=start,
                          magic=magic if is_magic(magic) else next(iter(VERSIONS)))
        record = whole_record(raw, start, self._survey.has_crcs)
        if record is None or not self._is_led(record, rows) or is_impossible(record.topic):
            return None
        return raw, record

    def _restored(self, source: Source, start: int, raw: bytes, record: Record,
                  topic: CorrectedTopic | None = None) -> int:
        """Write ``raw`` if the log has other bytes at ``start``, and return its size."""
        self._confirmed[start] = len(raw)
        if source.read(start - source.base, len(raw)) != raw:
            self._records.replace(start, raw)
            if topic is not None:
                self._records.reasons[start] = topic.reason
            elif are_odd(record.sys_flag):
                self._records.reasons[start] = (
                    "lengths restored; its other system flags are unknown and stay marked as "
                    "damaged")
        return len(raw)

    def _by_flags(self, region: Region, start: int, raw: bytes, rows: list[FoundRow]) -> int:
        """Restore a record if only its system flags are damaged. Return its size, or else 0."""
        if not raw or not is_magic(magic_at(raw)) or field_of(raw, "physical_offset") != start:
            return 0
        corrected_flags = self._flags.of(raw, start, rows, (region.before, region.after))
        if corrected_flags is None or not self._supported(corrected_flags.record, rows, False):
            return 0
        self._confirmed[start] = len(raw)
        return self._whole(start, corrected_flags.raw, corrected_flags.reason)

    def _may_be_of(self, place: int) -> bool:
        """Return whether a physical offset is in the log, but no intact message starts at it."""
        if not self._parts[0].base <= place < self._parts[-1].end:
            return False
        _, record, _ = self._records.read(place, None)
        return record is None or not record.crc_ok

    def _by_twin(self, start: int, raw: bytes, rows: list[FoundRow]) -> int:
        """Restore a record from another message that has the same body. Return its size; else 0."""
        record = self._in_place(raw, start)
        twin = None if record is None else self._twins.of(
            raw, record, sealed=self._survey.has_crcs)
        if twin is None or not self._supported(twin.record, rows, False):
            return 0
        return self._whole(start, twin.content, twin.reason)

    def _whole(self, start: int, content: bytes, reason: str) -> int:
        self._not_corrected.pop(start, None)
        self._by_byte.discard(start)
        self._corrected.add(start)
        self._records.replace(start, content)
        self._records.reasons[start] = reason
        return len(content)

    def _stored(self, source: Source, start: int, room: int, head: bytes) -> bytes:
        """Return the bytes of a damaged record, with the length in its own size field.

        Empty if that size is impossible. ``head``: the first bytes at ``start``.
        """
        size = total_size_at(head)
        if not MIN_SIZE <= size <= min(room, MAX_BODY):
            return b""
        return head[:size] if size <= len(head) else source.read(start - source.base, size)

    def _in_place(self, raw: bytes, start: int) -> Record | None:
        """Return the record decoded from damaged bytes if its physical offset field is ``start``;
        else None.
        """
        if not raw:
            return None
        try:
            record = self._decoded(raw)
        except FormatError:
            return None
        return record if record.physical_offset == start else None

    def _decoded(self, raw: bytes) -> Record:
        """Decode a record; the last result is cached. Raises: FormatError."""
        if self._last is None or self._last[0] != raw:
            self._last = raw, decode(raw)
        return self._last[1]

    def _by_crc(self, region: Region, start: int, raw: bytes, rows: list[FoundRow]) -> int:
        """Correct a record whose CRC shows which byte is wrong. Return its size, or 0 if the record
        is not corrected.
        """
        record = None if self._correct == "off" else self._in_place(raw, start)
        if record is None:
            return 0
        correction = corrected(raw, record, self._correct, self._survey.has_crcs,
                               self._chances)
        if not isinstance(correction, Correction) and self._survey.has_crcs:
            before = None if region.previous is None else self._records.read(
                region.previous, None)[1]
            correction = field_of_seal(
                raw, record, rows, (region.before, region.after), self._survey, self._gatherer,
                self._chances, before) or correction
        if isinstance(correction, str):
            self._not_corrected[start] = correction
        elif correction is not None and self._supported(correction.record, rows, False):
            place = start + correction.position
            self._corrections[place] = correction
            self._corrected.add(start)
            self._records.replace(place, correction.after)
            return len(raw)
        elif correction is None and self._correct == "bit":
            other = corrected(raw, record, "byte", self._survey.has_crcs)
            if isinstance(other, Correction) and self._supported(other.record, rows, False):
                self._by_byte.add(start)
        return self._by_crc_field(raw, record, rows) or self._by_topic(raw, record, rows)

    def _by_crc_field(self, raw: bytes, record: Record, rows: list[FoundRow]) -> int:
        """Restore a record with an intact body and a damaged body CRC. Return its size; 0 if it
        cannot be restored.
        """
        reason = damaged_crc(record)
        after = with_fields(raw, body_crc=body_crc(record.body))
        if reason is None or append_crc.verify(after) is False or not self._supported(
                record, rows, False):
            return 0
        return self._whole(record.physical_offset, after, reason)

    def _by_topic(self, raw: bytes, record: Record, rows: list[FoundRow]) -> int:
        """Restore a record whose appended CRC matches if its topic is replaced. Return its size, or
        0 if it cannot be restored.
        """
        corrected_topic = self._topics.by_crc(raw, record)
        named = None if corrected_topic is None else replace(record, topic=corrected_topic.topic)
        if corrected_topic is None or named is None or not self._supported(named, rows, False):
            return 0
        return self._whole(record.physical_offset, build(named), corrected_topic.reason)

    def _name(self, physical: int) -> None:
        """Correct the name of the appended CRC property of an intact record if that name is
        damaged.
        """
        _, record, raw = self._records.read(physical, None)
        correction = None if record is None else corrected(
            raw, record, self._correct, sealed=True, chances=self._chances)
        if isinstance(correction, Correction):
            place = physical + correction.position
            self._corrections[place] = correction
            self._records.replace(place, correction.after)

    def _is_led_elsewhere(self, record: Record, stored_at: int) -> bool:
        """Return whether the entry at a record's queue offset points to ``stored_at``."""
        witness = self._parts[0].witness
        return witness is not None and sysflag.has_consume_queue_row(record.sys_flag) and (
            witness.entry_of(record) == (stored_at, record.total_size))

    def _is_shifted(self, source: Source, region: Region, position: int, size: int,
                    file_size: int = 0) -> bool:
        """Return whether another record of the region is shifted by as much as this record.

        The next record also counts, even outside of the region. So does a record that is shifted by
        a multiple of ``file_size``.
        """
        own = shift_of(source, position)
        others = {position + size, *(start - source.base
                                     for start in (region.start, *region.starts))} - {position}
        return any(shift and (shift == own or (file_size and shift % file_size == 0))
                   for shift in (shift_of(source, other) for other in others))

    def _is_led(self, record: Record, rows: list[FoundRow]) -> bool:
        """Return whether an entry confirms a record."""
        key = os.fsdecode(record.topic), record.queue_id
        return any(row.key == key and row.count >= 1 and row.size == record.total_size and (
            row.queue_offset <= record.queue_offset < row.queue_offset + row.count)
            for row in rows)

    def _supported(self, record: Record, rows: list[FoundRow], foreign: bool, *,
                   moved: bool = False, shifted: bool = False, wrong: int = 0) -> bool:
        """Return whether a record can be trusted.

        Either entries confirm it, or only its header was damaged and no evidence contradicts it.

        * ``foreign``: whether the physical offset field names another position. Without entries,
          the index must then confirm the record, or exactly this message must be missing between
          two others of its queue.
        * ``moved``: whether the offset in the field is in this log. The message may have been
          stored there, so without entries only the index can confirm it here.
        * ``shifted``: whether a foreign record is shifted together with its neighbours. Without
          entries, it is then not trusted.
        * ``wrong``: number of `_PLACING` fields that are wrong.
        """
        if self._is_led(record, rows):
            return True
        if rows and sysflag.has_consume_queue_row(record.sys_flag):
            return False
        # Without a body, only the sum of its lengths proves the record: if more than one field is
        # damaged, other fields may be damaged, too.
        if not record.body and wrong > 1:
            return False
        if foreign:
            return not shifted and (is_indexed(self._store, record) or (
                not moved and sysflag.has_consume_queue_row(record.sys_flag)
                and self._fits(record, inner=True)))
        if record.body:
            return len(record.topic) > 0 and b"\0" not in record.topic
        return self._fits(record)

    def _fits(self, record: Record, *, inner: bool = False) -> bool:
        """Return whether this record is missing from the log: its queue has a gap that covers this
        position.
        """
        if not sysflag.has_consume_queue_row(record.sys_flag):
            return True
        key = os.fsdecode(record.topic), record.queue_id
        hole = holes_with(self._gatherer.holes, key, record.queue_offset)
        return (hole is not None and hole.low < record.physical_offset < hole.high
                and (hole.inner or not inner))

    def _candidates(self, source: Source, position: int, head: bytes, room: int,
                    sizes: set[int]) -> Iterator[bytes]:
        """Yield candidates for the original record. Physical offset and magic are corrected, and at
        most one bit of a length is flipped.
        """
        # Its own size may be right.
        stored, confirmed = field_of(head, "total_size"), sizes
        if MIN_SIZE <= stored <= room:
            sizes = {stored, *sizes}
        # Try each magic, and each flipped bit of a length that gives a confirmed size.
        for magic in (magic_at(head),) if is_magic(magic_at(head)) else VERSIONS:
            fixed = with_fields(head, physical_offset=source.base + position, magic=magic)
            # If all lengths agree with the only known size, no others are tried.
            is_whole = sizes == {stored} and fixed == head and stored == extent(
                source, position, head, magic, min(room, MAX_BODY))
            changes = iter([(UNCHANGED, stored)]) if is_whole else bent_heads(
                source, position, fixed, magic, min(room, MAX_BODY), sizes)
            for change, size in likely_first(
                    source, position, fixed, {stored, *confirmed}, changes):
                # The size must be confirmed, be one bit off, or end at another record.
                if size not in sizes and not (
                        (size ^ stored).bit_count() == 1 or is_placed(source, position + size)):
                    continue
                self._budget -= size
                if self._budget < 0:
                    return
                candidate = fixed[:size] + source.read(position + len(fixed),
                                                       max(0, size - len(fixed)))
                candidate = with_fields(change.of(candidate), total_size=size)
                yield candidate
                # The flipped bit may be in the body CRC.
                try:
                    record = self._decoded(candidate)
                except FormatError:
                    continue
                crc = body_crc(record.body)
                if (crc ^ record.body_crc).bit_count() == 1 and not explained_by_body(record):
                    yield with_fields(candidate, body_crc=crc)
            # Try the known sizes, with the other lengths adjusted.
            for size in () if is_whole else sizes:
                self._budget -= size
                if size > MAX_BODY or self._budget < 0:
                    continue
                raw = with_fields(source.read(position, size), total_size=size, magic=magic,
                                  physical_offset=source.base + position)
                yield from with_other_lengths(raw, magic, self._topics.is_known)


def _ends_in_zeros(record: Record, head: bytes, sizes: set[int]) -> bool:
    """Return whether a torn write probably ended in the record's topic.

    The topic then ends with zeros, and the length of the properties is zero. Neither the record's
    own size field nor an entry confirms its size.
    """
    return (record.topic.endswith(b"\0") and not record.properties and record.total_size not in {
        field_of(head, "total_size"), *sizes})


def _is_timely(region: Region, record: Record) -> bool:
    """Return whether a record begins at the start of a damaged region, and its store time fits
    there.

    That time must be between the store times of the messages before and after the region. Records
    from an earlier use of the file are older.
    """
    return region.start == record.physical_offset and (
        region.before is not None and region.after is not None
        and region.before <= record.store_timestamp <= region.after)
