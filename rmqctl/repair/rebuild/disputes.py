"""Find messages whose properties contradict their consume queue entry or an index entry.

No CRC covers properties. An entry was written when the message was intact. A rebuild from a damaged
property would destroy the only proof of its value. If an entry points to a message but has another
hash, the cases are:

* One changed byte of the property explains the hash, no other change does, and the entry is proven.
  The message is corrected.
* One changed byte of the hash in the entry explains the difference, and no change of the message
  does. The entry is corrected.
* A change of the message explains the difference, but the entry is not proven, or another change of
  message or entry explains it as well. The case is undecided: neither message nor entry is changed.
* No such change exists, but the entry is right. Neither message nor entry is changed. The entry is
  right if the index has another key of the message, with the same time. The entry is also right if
  the index entry has the message's store time and the queue has the message's entry.
* All other entries belong to another message, from another history of the log, and are rebuilt.

An index entry is proven if it is in the chain of its own hash's slot, and the hash of the message's
key has another slot. A consume queue entry is proven if other entries of the queue have the same
tags code. Index entries that are not in the order of the log are ignored.

Messages with damaged properties, or marked as such by a repair, are no disputes: their entries are
right (`rmqctl.repair.rebuild.kept`).

In benchmarks/stage_yields.py, 53 of 59 messages with one changed byte in a key or a tag are
restored.
"""

from __future__ import annotations

import os
from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import field, replace
from typing import NamedTuple

import numpy as np

from rmqctl.errors import FormatError, StoreIOError
from rmqctl.formats.local import properties as props
from rmqctl.formats.local.consume_queue import tags_code
from rmqctl.formats.local.consume_queue_ext import is_address
from rmqctl.formats.local.filler import is_filler
from rmqctl.formats.local.index_file import ENTRY, entry_time
from rmqctl.formats.local.message import Record
from rmqctl.lazy_dataclass import dataclass
from rmqctl.repair.rebuild.rebuild import CONSUMEQUEUE, INDEX, Rebuilt
from rmqctl.scan.damage.references import key_hashes
from rmqctl.scan.derived import QueueKey
from rmqctl.scan.frames import Array
from rmqctl.scan.overlay import LogPart
from rmqctl.store.index.files import IndexFile
from rmqctl.store.store import Store

_MAX_DISPUTES = 1000
"""Maximum number of differing entries that are examined: if more differ, damaged messages are not
the cause.
"""
_MAX_STEPS = 10_000
_SECOND = 1000
_PAGE = 1 << 20
"""Number of entries of an index file that are read at a time."""
_WORD = (1 << 64) - 1
_SPACE = 32
"""Smallest byte that is not a control character. Control characters are separators, or not text."""


@dataclass(frozen=True, slots=True)
class ChangedByte:
    """A corrected byte of a message.

    ``message``: physical offset of the message. ``place``: physical offset of the byte. ``before``
    and ``after``: values of the byte.
    """

    message: int
    place: int
    before: int
    after: int
    reason: str


@dataclass(slots=True)
class Disputes:
    """Disputes between messages and their entries.

    ``tags`` and ``keys``: hashes of entries that the rebuild keeps, by the message's physical
    offset. ``corrected``: the corrected bytes; with them, messages match their entries. ``open``:
    physical offsets of messages that are not corrected, by structure.
    """

    tags: dict[int, int] = field(default_factory=dict)
    keys: dict[int, tuple[int, ...]] = field(default_factory=dict)
    corrected: list[ChangedByte] = field(default_factory=list)
    open: dict[str, set[int]] = field(default_factory=lambda: {CONSUMEQUEUE: set(), INDEX: set()})


def disputes(store: Store, parts: Sequence[LogPart], rebuilt: Rebuilt, queues: set[QueueKey], *,
             index: bool) -> Disputes:
    """Return the disputes between entries that differ from the log, and the messages to which they
    point.

    ``parts``: the files of the log; messages that the repair changes are skipped. ``queues``: the
    queues whose entries are compared. ``index``: whether index entries are compared, too. Raises:
    StoreIOError.
    """
    settled = Disputes()
    records = IntactRecords(store, parts)
    if CONSUMEQUEUE in rebuilt.only:
        for code, record, common in _tags(rebuilt, queues, records):
            _judge_tags(settled, code, record, common=common)
    if INDEX in rebuilt.only and index:
        for place, entries in _keys(store, rebuilt).items():
            message = records.at(place)
            if message is not None:
                _judge_keys(settled, message, entries, has_entry=_has_entry(store, message))
    return settled


class IntactRecords:
    """Intact messages by physical offset.

    Messages that a repair wrote are skipped. So are messages with an appended CRC, which proves
    their properties.
    """

    def __init__(self, store: Store, parts: Sequence[LogPart]) -> None:
        self._log = store.log
        self._changed = sorted((part.base + piece.at, part.base + piece.end)
                               for part in parts for piece in part.pieces)

    def at(self, place: int, size: int | None = None) -> Record | None:
        record = self._log.record_at(place, size)
        if record is None or (record.body and not record.crc_ok) or is_filler(record):
            return None
        behind = bisect_left(self._changed, (place + record.total_size, 0))
        if behind and self._changed[behind - 1][1] > place:
            return None
        return None if props.CRC32.encode() in record.properties else record


# -- tags -----------------------------------------------------------------------------------------


def _tags(rebuilt: Rebuilt, queues: set[QueueKey], records: IntactRecords) -> Iterator[
        tuple[int, Record, bool]]:
    """Yield the entries whose tags code does not match their message.

    Each is yielded as (tags code in the entry, the message, whether other entries have the same
    tags code).
    """
    present, rebuilt_queues = rebuilt.present, rebuilt.scratch_queues.plain
    left = _MAX_DISPUTES
    for key in sorted(queues & present.keys() & rebuilt_queues.keys()):
        with closing(present[key]) as ours, closing(rebuilt_queues[key]) as theirs:
            first = max(ours.first_index, theirs.first_index)
            end = min(ours.written, theirs.written)
            for (_, rows), (_, rebuilt_rows) in zip(
                    ours.pages(first, end), theirs.pages(first, end), strict=False):
                if len(rows) != len(rebuilt_rows):
                    break
                odd = (rows["physical_offset"] == rebuilt_rows["physical_offset"]) & (
                    rows["size"] == rebuilt_rows["size"]) & (
                    rows["tags_code"] != rebuilt_rows["tags_code"])
                for row in np.flatnonzero(odd).tolist():
                    left -= 1
                    if left < 0:
                        return
                    code = int(rows[row]["tags_code"])
                    record = records.at(int(rows[row]["physical_offset"]), int(rows[row]["size"]))
                    if record is not None and not is_address(code):
                        yield code, record, int((rows["tags_code"] == code).sum()) > 1


def _judge_tags(settled: Disputes, code: int, record: Record, *, common: bool) -> None:
    topic = _text(record.topic)

    def code_of(properties: bytes) -> int:
        return tags_code(topic, props.parse(_text(properties)), record.store_timestamp)

    def fits(properties: bytes) -> bool:
        try:
            return code_of(properties) == code
        except ValueError:
            return False

    try:
        own = code_of(record.properties)
    except ValueError:  # a level of delay that is not a number
        return
    changes = list(single_changes(record, (props.TAGS,), fits))
    if not changes:
        return  # the entry's own bit, or another message's entry
    settled.tags[record.physical_offset] = code
    if code and len(changes) == 1 and common and ((own ^ code) & _WORD).bit_count() > 1:
        settled.corrected.append(replace(changes[0], reason=(
            f"the entry of queue offset {record.queue_offset} has the hash of this tag")))
    else:
        settled.open[CONSUMEQUEUE].add(record.physical_offset)


# -- keys -----------------------------------------------------------------------------------------


class _IndexEntries(NamedTuple):
    """The index entries of a message: hashes, times (ms), and the number of slots in their index
    file.
    """

    hashes: tuple[int, ...]
    times: tuple[int, ...]
    slots: int


def _keys(store: Store, rebuilt: Rebuilt) -> dict[int, _IndexEntries]:
    """Return, by physical offset, the index entries of each message that has an index entry for a
    foreign key.

    A foreign key is not a key of the message. Only entries that are in the chain of their slot and
    in the order of the log are returned.
    """
    if not store.index.listing.files:
        return {}
    # The rebuilt index: any other entry belongs to no key.
    pairs = _pairs(Store(rebuilt.scratch.root, [], store.sizes))
    rebuilt_keys = _RebuiltKeys(pairs["physical_offset"], pairs["key_hash"])
    # The places with such an entry; a file with many of them is of another log.
    odd: Array = np.zeros(0, np.int64)
    readable = []
    for index in _indexes(store):
        odd_here: Array = np.zeros(0, np.int64)
        for _, place, hashes, used in _pages(index):
            odd_here = np.union1d(odd_here, place[used & ~rebuilt_keys.hold(place, hashes)])
            if len(odd_here) > _MAX_DISPUTES:
                break
        else:
            odd = np.union1d(odd, odd_here)
            readable.append(index.source.name)
    # All entries of these places that are in order and in their chain; one file may end between
    # those of a message.
    entries_of: dict[int, _IndexEntries] = {}
    for index in _indexes(store) if len(odd) else ():
        if index.source.name not in readable:
            continue
        for first, place, hashes, used in _pages(index):
            ordered = np.append(True, place[1:] >= place[:-1])
            ordered[:-1] &= ordered[1:]
            for at in np.flatnonzero(ordered & used & np.isin(place, odd)).tolist():
                key, where = int(hashes[at]), int(place[at])
                entry = index.entry(first + at)
                if entry is not None and _is_in_chain(index, first + at, key):
                    before = entries_of.get(where, _IndexEntries((), (), 0))
                    entries_of[where] = _IndexEntries(
                        (*before.hashes, key),
                        (*before.times, entry_time(index.header, entry)), index.shape.slots)
    # A place counts only if one of its entries is still of no key.
    return {at: entries for at, entries in entries_of.items() if not rebuilt_keys.hold(
        np.full(len(entries.hashes), at), np.array(entries.hashes)).all()}


def _indexes(store: Store) -> Iterator[IndexFile]:
    """Yield the readable index files, each open until the next one."""
    for file in store.index.listing.files:
        try:
            index = store.index.open(file)
        except (FormatError, StoreIOError):
            continue
        with closing(index):
            yield index


def _pages(index: IndexFile) -> Iterator[tuple[int, Array, Array, Array]]:
    """Yield, for each page of an index file, (index of the first entry in the arrays, physical
    offsets, hashes, flags).

    A flag says whether the entry counts. The arrays also include the entry before the page and the
    entry after it. These two entries do not count, nor do overwritten entries.
    """
    count = index.header.entries
    for begin in range(0, count, _PAGE):
        first = max(begin - 1, 0)
        rows = ENTRY.array(index.source.read(
            index.shape.entry_position(1 + first),
            (min(begin + _PAGE + 1, count) - first) * ENTRY.size))
        place = rows["physical_offset"].astype(np.int64)
        used = (place != 0) | (rows["key_hash"] != 0)  # zeros: an overwritten entry
        used[:begin - first] = used[begin + _PAGE - first:] = False
        yield 1 + first, place, rows["key_hash"], used


class _RebuiltKeys:
    """All (physical offset, key hash) pairs in a rebuilt index."""

    def __init__(self, offsets: Array, hashes: Array) -> None:
        # An index is almost in the order of the log, so a stable sort is fast.
        places = np.sort(offsets.astype(np.int64), kind="stable")
        self._places: Array = places[np.append(True, places[1:] != places[:-1])[:len(places)]]
        self._codes: Array = np.sort(self._coded(offsets, hashes), kind="stable")

    def hold(self, places: Array, hashes: Array) -> Array:
        """Return a boolean array: whether each pair is in this set."""
        codes = self._coded(places, hashes)
        if not len(self._codes):
            return np.zeros(len(codes), bool)
        at = np.minimum(np.searchsorted(self._codes, codes), len(self._codes) - 1)
        return np.asarray(self._codes[at] == codes)

    def _coded(self, places: Array, hashes: Array) -> Array:
        """Return a number that identifies each pair of physical offset and hash; -1 if the physical
        offset is unknown.
        """
        places = places.astype(np.int64)
        if not len(self._places):
            return np.full(len(places), -1, np.int64)
        number = np.minimum(np.searchsorted(self._places, places), len(self._places) - 1)
        code = (number << 32) | (hashes.astype(np.int64) & 0xFFFFFFFF)
        return np.where(self._places[number] == places, code, -1)


def _is_in_chain(index: IndexFile, number: int, key: int) -> bool:
    """Return whether an entry is in the chain of its hash's slot."""
    at = index.slot(index.shape.slot_of(key)) if key >= 0 else 0
    for _ in range(_MAX_STEPS):
        if at <= number:
            break
        entry = index.entry(at)
        at = 0 if entry is None else entry.previous
    return at == number


def _pairs(store: Store) -> Array:
    """Return all entries of a store's index."""
    parts = [np.zeros(0, ENTRY.array(b"").dtype)]
    for file in store.index.listing.files:
        with closing(store.index.open(file)) as index:
            count = index.header.entries
            parts.append(ENTRY.array(index.source.read(
                index.shape.entry_position(1), count * ENTRY.size)))
    return np.concatenate(parts)


def _has_entry(store: Store, record: Record) -> bool:
    """Return whether the queue has an entry for a message. If so, a broker also wrote the message's
    index entries.
    """
    queue = store.queues.find_evidence(os.fsdecode(record.topic), record.queue_id)
    unit = None if queue is None else queue.unit(record.queue_offset)
    return unit is not None and (unit.physical_offset, unit.size) == (
        record.physical_offset, record.total_size)


def _judge_keys(settled: Disputes, record: Record, entries: _IndexEntries, *,
                has_entry: bool) -> None:
    place = record.physical_offset
    hashes, slots, own = entries.hashes, entries.slots, key_hashes(record)
    pairs = [(key, mine) for key in set(hashes) - own for mine in own - set(hashes)]
    is_proven = all(key % slots != mine % slots for key, mine in pairs)

    def fits(properties: bytes) -> bool:
        return key_hashes(replace(record, properties=properties)) == set(hashes)

    changes = list(single_changes(record, (props.KEYS, props.UNIQUE_KEY), fits))
    is_timed = has_entry and all(
        abs(time - record.store_timestamp) <= _SECOND for time in entries.times)
    # Of one message: the entries of its keys have the same time, those of other logs do not.
    own_times = [time for key, time in zip(hashes, entries.times, strict=True) if key in own]
    is_together = bool(own_times) and all(
        min(abs(time - other) for other in own_times) <= _SECOND for time in entries.times)
    if not changes and not (is_proven and (is_together or is_timed)):
        return
    settled.keys[place] = hashes
    if len(changes) == 1 and is_proven:
        settled.corrected.append(replace(changes[0], reason="the index has the hash of this key"))
    else:
        settled.open[INDEX].add(place)


# -- one byte -------------------------------------------------------------------------------------


def single_changes(record: Record, names: Sequence[str],
                   fits: Callable[[bytes], bool]) -> Iterator[ChangedByte]:
    """Yield the changes of a single byte after which ``fits`` returns true.

    Only the values of the properties ``names`` are changed. If changes of a single bit exist, only
    these are yielded.
    """
    raw = record.properties
    start = record.physical_offset + record.total_size - len(raw)
    places = [at for name in names for at in value_range(raw, name)]
    for values in (lambda byte: (byte ^ 1 << bit for bit in range(8)), lambda _: range(33, 127)):
        changes = [ChangedByte(record.physical_offset, start + at, raw[at], value, "")
                   for at in places for value in values(raw[at])
                   if value >= _SPACE and value != raw[at] and fits(
                       raw[:at] + bytes([value]) + raw[at + 1:])]
        if changes:
            yield from changes
            return


def value_range(raw: bytes, name: str) -> range:
    """Return the range of a property's value in the properties string ``raw``; empty if the
    property is missing.
    """
    head = (name + props.NAME_VALUE_SEPARATOR).encode()
    mark = props.PROPERTY_SEPARATOR.encode()
    at = 0 if raw.startswith(head) else raw.find(mark + head) + 1
    if not raw.startswith(head, at):
        return range(0)
    first = at + len(head)
    end = raw.find(mark, first)
    return range(first, len(raw) if end < 0 else end)


def _text(raw: bytes) -> str:
    return raw.decode("utf-8", "replace")
