"""Find intact records that contradict their queues, their neighbours or the index.

Only fields that no CRC covers can be wrong: topic, queue, queue offset, transaction bits, and the
properties that create entries in further queues.

A consume queue entry alone does not prove that a message is wrong, because queue folders are copied
and renamed. An entry counts as correct if exactly the message that it describes is missing from the
log, between other messages of that queue. If the record then cannot be corrected, a filler replaces
it.

In benchmarks/stage_yields.py, 60 of 60 messages with a random queue offset are restored, and 60 of
60 with one changed byte in the topic. With a random queue id, 56 of 60 are restored; the others
have no entry.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Container
from contextlib import closing
from dataclasses import replace

from rmqctl.checks.verify.context import known_topics
from rmqctl.damage.evidence import ENDLESS, FoundRow, Gatherer, HoleEntries, holes_with
from rmqctl.damage.records import (
    Records,
    batch_range_of,
    dispatched,
    unless_crc_differs,
    with_fields,
)
from rmqctl.damage.survey.survey import Run
from rmqctl.formats.local import properties as props
from rmqctl.formats.local import sysflag
from rmqctl.formats.local.message import Record, build, decode
from rmqctl.scan.damage.references import key_hashes
from rmqctl.scan.derived import QueueKey
from rmqctl.store.store import Store

_MAX_QUEUES = 1 << 16
"""Exclusive upper limit of valid queue ids: no topic has that many queues."""


class Contradictions:
    """One round of checks: `of_rows`, then `of_places`.

    Corrections and rejections are added to ``records``. ``skipping``: light queues in which a
    broker assigned queue offsets without writing entries. Later entries of such a queue have lower
    queue offsets than their messages' properties specify.
    """

    def __init__(self, store: Store, gatherer: Gatherer, evidence: HoleEntries,
                 records: Records, skipping: Collection[str] = ()) -> None:
        self._store, self._skipping = store, skipping
        self._gatherer, self._evidence, self._records = gatherer, evidence, records
        self.by_place: dict[int, list[FoundRow]] = {}
        for row in evidence.astray:
            self.by_place.setdefault(row.physical, []).append(row)

    def of_rows(self) -> None:
        """Correct or reject records that consume queue entries contradict. Raises: StoreIOError."""
        for physical, rows_there in sorted(self.by_place.items()):
            _, record, raw = self._records.read(physical, rows_there[0].size)
            if record is None or not record.crc_ok or self._records.is_replaced(physical):
                continue
            rows = [row for row in rows_there
                    if not self._says(record, row) and self._is_lacking(row, record)]
            if not rows:
                continue
            corrected = self._as_rows_say(record, raw, rows)
            if corrected is not None and corrected != raw:
                if self._is_another(record, decode(corrected)):
                    self._records.rejected.add(physical)
                else:
                    self._records.replace(physical, corrected)
            elif props.are_sound(record.properties) and (
                    own := [row for row in rows if not self._is_of_a_copy(record, row)]) and (
                    self._must_go(record, own)):
                self._records.rejected.add(physical)

    def of_places(self, but: Container[int], undecided: Collection[int] = ()) -> None:
        """Correct or reject records that are out of order in their queue. Raises: StoreIOError.

        * ``but``: physical offsets of records to skip because their topic is doubtful.
        * ``undecided``: physical offsets of records that may not be messages. Their queues are
          skipped, because such records prove nothing about others.
        """
        read = [self._records.read(place, None)[1] for place in sorted(undecided)]
        doubtful = {(os.fsdecode(record.topic), record.queue_id) for record in read if record}
        for key, runs in self._gatherer.misfits.items():
            if key in doubtful:
                continue
            for run in runs:
                if run.low == run.high and run.low not in self.by_place and (
                        key[0] not in self._skipping) and run.low not in but and not (
                        self._records.is_replaced(run.low)):
                    self._misfit(key, run)

    def _is_lacking(self, row: FoundRow, record: Record) -> bool:
        """Return whether to believe an entry that contradicts a record.

        The log must show that the entry's message is missing; the name of the queue's folder is not
        enough.

        * If the record is in order in its queue, an entry with the record's size but another queue
          or queue offset is not believed. Light queues are an exception.
        * Entries of the record's own queue are not believed if that queue or the properties of a
          batch confirm the record's queue offset.
        * If the log has no message of the entry's queue, the entry must be the only one of that
          queue and differ from the record in one bit.
        """
        own = os.fsdecode(record.topic), record.queue_id
        has_row = sysflag.has_consume_queue_row(record.sys_flag) and not row.batch
        if has_row and row.size == record.total_size and not row.key[0].startswith(
                props.LMQ_PREFIX) and self._gatherer.is_in_order(
                    own, record.queue_offset, row.physical):
            return False
        if row.key == own:
            return not has_row or not (self._leads(own, record.queue_offset, row.physical)
                                       or _says_twice(record))
        if any(hole.low >= 0 or hole.high < ENDLESS
               for hole in self._gatherer.holes.get(row.key, ())):
            return True
        if own not in self._store.queues.by_key and not 0 <= record.queue_id < _MAX_QUEUES and (
                row.key[0], row.queue_offset) == (own[0], record.queue_offset):
            return True  # the queue id is invalid, and the entry confirms the rest
        if own in self._store.queues.by_key or sum(
                astray.key == row.key for astray in self._evidence.astray) != 1:
            return False
        topics = known_topics(self._store) or frozenset()
        if own[0] in topics and row.key[0] not in topics:
            return False  # the folder was renamed
        topic = os.fsencode(row.key[0])
        return len(topic) == len(record.topic) and row.queue_offset == record.queue_offset and (
            (int.from_bytes(topic) ^ int.from_bytes(record.topic)).bit_count()
            + (row.key[1] ^ record.queue_id & 0xFFFFFFFF).bit_count()) == 1

    def _is_of_a_copy(self, record: Record, row: FoundRow) -> bool:
        """Return whether an entry is probably in a file that was copied from one queue to another.

        The record's own entry then points to the record. The given entry is in an ordinary queue,
        or has the queue offset of one of the record's entries.
        """
        own = os.fsdecode(record.topic), record.queue_id
        if row.batch or row.key == own or not self._leads(own, record.queue_offset, row.physical):
            return False
        return not row.key[0].startswith(props.LMQ_PREFIX) or row.queue_offset in (
            record.queue_offset, *(at for _, at in self._led(
                record, dispatched(record.properties))))

    def _is_another(self, record: Record, corrected: Record) -> bool:
        """Return whether consume queue and index contain another message at the record's physical
        offset.

        The entry's values (``corrected``) must differ from the record's in more than one field, and
        the index must have other keys at this offset.
        """
        fields = sum((record.topic != corrected.topic, record.queue_id != corrected.queue_id,
                      record.queue_offset != corrected.queue_offset))
        place = record.physical_offset
        witness = self._records.parts[0].witness
        if fields < 2 or witness is None:
            return False
        indexed, own = {*witness.keys(place, place + 1)[1].tolist()}, key_hashes(corrected)
        return bool(indexed - own and own - indexed)

    def _must_go(self, record: Record, rows: list[FoundRow]) -> bool:
        """Return whether a record that entries contradict must be removed because the queues of
        these entries would otherwise have gaps.
        """
        own = os.fsdecode(record.topic), record.queue_id
        if self._leads(own, record.queue_offset, record.physical_offset):
            return True  # its own entry is right: its properties lost the further queues
        if own not in self._store.queues.by_key and own not in self._store.queues.batch and any(
                hole.inner for row in rows if (hole := holes_with(
                    self._gatherer.holes, row.key, row.queue_offset))):
            return True  # its queue is unknown, and another queue lacks it
        return any(run.low == run.high == record.physical_offset
                   for run in self._gatherer.misfits.get(own, ()))

    def _misfit(self, key: QueueKey, run: Run) -> None:
        """Correct or reject a single record whose queue offset does not fit into its queue.

        Nothing is changed if an entry points to the record. If exactly one flipped bit makes the
        queue offset fit into a gap at this position, the queue offset is corrected. If the queue
        offset is after the end of the queue, the record is rejected, because the queue would have a
        gap. In all other cases the record is kept: the topic may have been deleted and created
        again.
        """
        _, record, raw = self._records.read(run.low, None)
        if record is None or self._leads(key, record.queue_offset, run.low):
            return
        for hole in self._gatherer.holes.get(key, ()):
            if not (hole.inner and hole.low < run.low < hole.high):
                continue
            fits = [offset for offset in range(hole.first, min(hole.end, hole.first + 10_000))
                    if (offset ^ record.queue_offset).bit_count() == 1]
            if len(fits) == 1 and self._records.replace(run.low, unless_crc_differs(
                    with_fields(raw, queue_offset=fits[0]))):
                self._records.reasons[run.low] = (
                    f"queue offset {record.queue_offset}: corrected to {fits[0]} (one flipped "
                    "bit), which is missing from its queue")
                return
        behind = [hole.first for hole in self._gatherer.holes.get(key, ()) if hole.end >= ENDLESS]
        if behind and record.queue_offset > behind[0]:
            self._records.rejected.add(run.low)

    def _as_rows_say(self, record: Record, raw: bytes, rows: list[FoundRow]) -> bytes | None:
        own = (os.fsdecode(record.topic), record.queue_id)
        named = [row for row in rows if row.key == own
                 and row.queue_offset == record.queue_offset]
        if named and not sysflag.has_consume_queue_row(record.sys_flag):
            # NONE differs from PREPARED, and COMMIT from ROLLBACK, in just this bit.
            return unless_crc_differs(with_fields(
                raw, sys_flag=record.sys_flag ^ sysflag.TRANSACTION_PREPARED))
        if not self._leads(own, record.queue_offset, record.physical_offset) or not (
                sysflag.has_consume_queue_row(record.sys_flag)):
            alike = [row for row in rows if (row.key[1], row.queue_offset, row.size) == (
                record.queue_id, record.queue_offset, record.total_size)]
            for row in alike or rows:
                topic = os.fsencode(row.key[0])
                if len(topic) != len(record.topic) or (
                        row.key[0].startswith(props.LMQ_PREFIX)
                        and not own[0].startswith(props.LMQ_PREFIX[:1])):
                    continue
                corrected = replace(record, topic=topic, queue_id=row.key[1],
                                    queue_offset=row.queue_offset)
                turned = (int.from_bytes(topic) ^ int.from_bytes(record.topic)).bit_count()
                # A torn topic: only an entry that agrees in all other fields is proof enough.
                if turned > 16 and row not in alike:
                    continue
                return unless_crc_differs(build(corrected))
        return self._bent_properties(record, raw, rows)

    def _leads(self, key: QueueKey, offset: int, physical: int) -> bool:
        """Return whether the entry at queue offset ``offset`` points to ``physical``."""
        queue = self._store.queues.by_key.get(key)
        if queue is None:
            batch = self._store.queues.batch.get(key)
            row = batch.find(offset) if batch is not None else None
            return row is not None and row.physical_offset == physical
        with closing(queue):
            unit = queue.unit(offset)
        return unit is not None and unit.physical_offset == physical

    def _bent_properties(self, record: Record, raw: bytes, rows: list[FoundRow]) -> bytes | None:
        """Return the record with properties that name the given entries; None if that is
        impossible.

        One bit of the properties is flipped if that is enough, otherwise they are rewritten.
        """
        text = record.properties
        if len(text) > 4096:
            return None
        text_start = len(raw) - len(text)
        wanted = {(row.key[0], row.queue_offset) for row in rows}
        ranges = {(row.queue_offset, row.count) for row in rows if row.batch}
        # A damaged name or number names an entry that does not exist; the right bit removes it.
        before = dispatched(text)
        for bit in range(8 * len(text)):
            bent = bytearray(text)
            bent[bit // 8] ^= 1 << bit % 8
            now = dispatched(bytes(bent))
            if ranges:
                if batch_range_of(bytes(bent)) in ranges:
                    return unless_crc_differs(raw[:text_start] + bytes(bent))
            elif wanted <= now and ((len(now) >= len(before) and now - before == wanted)
                                    or not before) and not self._led(record, before - now):
                return unless_crc_differs(raw[:text_start] + bytes(bent))
        rewritten = self._rewritten(record, rows) if props.are_sound(text) and not any(
            self._is_of_a_copy(record, row) for row in rows) else None
        return None if rewritten is None else unless_crc_differs(raw[:text_start] + rewritten)

    def _led(self, record: Record, further: set[tuple[str, int]]) -> set[tuple[str, int]]:
        """Return the ``further`` (queue name, queue offset) pairs whose entries point to the
        record.
        """
        light, leads = self._store.queues.light, self._store.queues.leads
        place = record.physical_offset
        return {(name, offset) for name, offset in further if self._leads(
            (name, light.id_of(name, record.queue_id, offset, place, leads)), offset, place)}

    def _rewritten(self, record: Record, rows: list[FoundRow]) -> bytes | None:
        """Return properties of the same size that name the queues of the given entries again.

        Other readable properties are kept if they fit. None if the space is too small for the
        names, or if the entries add no name.
        """
        # The properties that are still readable.
        own = os.fsdecode(record.topic), record.queue_id
        properties = {name: value for name, value in props.parse(
            record.properties.decode("utf-8", "replace")).items()
            if name.isprintable() and value.isprintable() and "\ufffd" not in name + value
            and name not in (props.MULTI_DISPATCH, props.MULTI_QUEUE_OFFSET)}
        # The entries are of further queues, or have the range of a batch.
        further = {(row.key[0], row.queue_offset) for row in rows if row.key != own}
        further |= self._led(record, dispatched(record.properties))
        batch = [row for row in rows if row.batch and row.key == own]
        wanted: dict[str, str] = {}
        if batch:
            wanted = {props.INNER_BASE: str(batch[0].queue_offset),
                      props.INNER_NUM: str(batch[0].count)}
        elif not further:
            return None
        if further:
            names = sorted(further)
            wanted[props.MULTI_DISPATCH] = ",".join(name for name, _ in names)
            wanted[props.MULTI_QUEUE_OFFSET] = ",".join(str(offset) for _, offset in names)
        # Drop readable properties, the last one first, until the rest fits.
        room = len(record.properties)
        while True:
            text = props.build({**properties, **wanted}, trailing=False).encode(
                "utf-8", "surrogateescape")
            if len(text) <= room:
                return text + props.PROPERTY_SEPARATOR.encode() * (room - len(text))
            if not properties:
                return None
            properties.popitem()

    def _says(self, record: Record, row: FoundRow) -> bool:
        """Return whether the record's header or properties name an entry.

        Such an entry does not contradict the record.
        """
        return _says(record, row) or (row.key[0] in self._skipping and any(
            name == row.key[0] and offset > row.queue_offset
            for name, offset in dispatched(record.properties)))


def _says(record: Record, row: FoundRow) -> bool:
    if row.batch:
        return (os.fsdecode(record.topic), record.queue_id) == row.key and batch_range_of(
            record.properties) == (row.queue_offset, row.count)
    if sysflag.has_consume_queue_row(record.sys_flag) and (
            os.fsdecode(record.topic), record.queue_id, record.queue_offset) == (
            *row.key, row.queue_offset):
        return True
    return (row.key[0], row.queue_offset) in dispatched(record.properties)


def _says_twice(record: Record) -> bool:
    """Return whether a record is a batch whose properties repeat the queue offset in its header."""
    range_said = batch_range_of(record.properties)
    return bool(record.sys_flag & sysflag.INNER_BATCH) and range_said is not None and (
        range_said[0] == record.queue_offset)
