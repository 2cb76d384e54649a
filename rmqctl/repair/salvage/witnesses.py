"""Collect the evidence for each corrected record in a plan.

A field is proved by other structures that contain the same value: consume queue entries, index
entries, the neighbouring records, and CRCs. A CRC proves what it covers, unless the CRC itself was
corrected.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from rmqctl.checks.diff.differences import differences_of
from rmqctl.damage.records import FIELDS, Records, dispatched
from rmqctl.errors import FormatError, StoreIOError
from rmqctl.formats.local import append_crc, sysflag
from rmqctl.formats.local.message import (
    MIN_SIZE,
    Record,
    decode,
    is_magic,
    magic_at,
    total_size_at,
)
from rmqctl.scan.damage.references import key_hashes
from rmqctl.scan.frames import Array
from rmqctl.scan.overlay import LogPart
from rmqctl.store.store import Store

_LENGTHS = frozenset({"total_size", "magic", "sys_flag"})
_CRC = "body_crc"
_WINDOW = 1 << 20
"""Number of bytes of the log whose index entries are looked up together."""
_HEAD = "total_size", "magic", _CRC, "queue_id", "queue_offset", "physical_offset", "sys_flag"
"""Fields to compare if the old bytes cannot be decoded as a record. If none of them changed, the
record's lengths were wrong.
"""


class RecordEvidence(NamedTuple):
    """The corrected ``fields``, and the ``witnesses`` that confirm the corrected record."""

    fields: tuple[str, ...]
    witnesses: tuple[str, ...]

    @property
    def proof(self) -> dict[str, Any]:
        return {"fields": list(self.fields), "witnesses": list(self.witnesses)}

    def in_words(self) -> str:
        names = ", ".join(name.replace("_", " ") for name in self.fields) or "its lengths"
        verb = "agrees" if len(self.witnesses) == 1 else "agree"
        return f"{names} corrected: {_listed(self.witnesses)} {verb}"


class Witnesses:
    """Finder of the structures of a store that confirm records of the log's ``parts``."""

    def __init__(self, store: Store, parts: Sequence[LogPart]) -> None:
        self._store, self._parts, self._records = store, parts, Records(parts)
        self._window = -1
        self._keys: tuple[Array, Array] = np.zeros(0, np.int64), np.zeros(0, np.int64)
        """The index entries that point into the window, as physical offsets and hashes."""

    def of_record(self, place: int, after: bytes) -> RecordEvidence | None:
        """Return the evidence for the record ``after``, which the plan writes to physical offset
        ``place``.

        None if ``after`` is not a record for that offset. Raises: StoreIOError.
        """
        record = _decoded(after)
        if record is None or record.physical_offset != place:
            return None
        raw = self._stored(place, len(after))
        before = _decoded(raw) if len(raw) >= MIN_SIZE and is_magic(magic_at(raw)) and (
            total_size_at(raw) == len(raw)) else None
        fields = tuple(differences_of(before, record)) if before is not None else tuple(
            name for name in _HEAD if len(raw) >= MIN_SIZE
            and raw[FIELDS[name]] != after[FIELDS[name]])
        witnesses = [*self._rows(record), *self._index(record),
                     *self._crcs(record, after, raw, fields)]
        if before is not None and (before.body_crc ^ record.body_crc).bit_count() == 1 and (
                before.body == record.body):
            witnesses.append("the body's CRC except for one bit")
        if before is None or _LENGTHS & {*fields} or (
                len(before.body), len(before.topic)) != (len(record.body), len(record.topic)):
            witnesses.append("the sum of its lengths")
            if self._is_followed(place + len(after)):
                witnesses.append("the message after it")
        return RecordEvidence(fields, tuple(witnesses))

    def of_bytes(self, start: int, size: int) -> RecordEvidence:
        """Return the evidence for a restored range: how many consume queue entries and how many
        index entries point into it.
        """
        witness = self._parts[0].witness
        if witness is None:
            return RecordEvidence((), ())
        counts = ((len(witness.rows(start, start + size)[0]), "consume queue entry",
                   "consume queue entries"),
                  (len(witness.keys(start, start + size)[0]), "index entry", "index entries"))
        return RecordEvidence((), tuple(f"{count} {singular if count == 1 else more}"
                              for count, singular, more in counts if count))

    def _rows(self, record: Record) -> list[str]:
        witness, entries = self._parts[0].witness, []
        key = os.fsdecode(record.topic), record.queue_id
        if sysflag.has_consume_queue_row(record.sys_flag) and witness is not None:
            batch = self._store.queues.batch.get(key)
            if batch is not None:
                row = batch.find(record.queue_offset)
                if row is not None and row.physical_offset == record.physical_offset:
                    entries.append("its batch queue entry")
            elif witness.confirms(record):
                entries.append("its consume queue entry")
        queues, place = self._store.queues, record.physical_offset
        light, leads = queues.light, queues.leads
        further = []
        for name, offset in sorted(dispatched(record.properties)):
            queue = name, light.id_of(name, record.queue_id, offset, place, leads)
            if leads(queue, np.array([offset]), np.array([place]))[0]:
                further.append(name)
        return [*entries, *([f"entries of {len(further)} more queues" if len(further) > 1 else
                           f"the entry of {further[0]}"] if further else [])]

    def _index(self, record: Record) -> list[str]:
        witness, place = self._parts[0].witness, record.physical_offset
        if witness is None:
            return []
        # Records are asked for in the order of the log, so neighbors are looked up together.
        if place // _WINDOW != self._window:
            self._window = place // _WINDOW
            self._keys = witness.keys(self._window * _WINDOW, (self._window + 1) * _WINDOW)
        places, hashes = self._keys
        first, end = np.searchsorted(places, (place, place + 1))
        return ["the index"] if key_hashes(record) & {*hashes[first:end].tolist()} else []

    def _crcs(self, record: Record, raw: bytes, before: bytes, fields: Sequence[str]) -> list[str]:
        matching = []
        if record.body and record.crc_ok and _CRC not in fields:
            matching.append("the body's CRC")
        if append_crc.verify(raw) and raw[-append_crc.SIZE:] == before[-append_crc.SIZE:]:
            matching.append("the record's CRC")
        return matching

    def _stored(self, place: int, size: int) -> bytes:
        part, source = self._records.opened(place)
        return b"" if part.path is None and not part.pieces else source.read(
            place - part.base, size)

    def _is_followed(self, place: int) -> bool:
        try:
            _, record, _ = self._records.read(place, None)
        except StoreIOError:
            return False
        return record is not None


def _decoded(raw: bytes) -> Record | None:
    if len(raw) < MIN_SIZE:
        return None
    try:
        return decode(raw)
    except FormatError:
        return None


def _listed(names: Sequence[str]) -> str:
    return " and ".join([", ".join(names[:-1]), names[-1]] if len(names) > 1 else names) or (
        "nothing else")
