"""Checks of the index: its entries against the keys in the log, and the structure of each file.

A file of n entries is sound if each entry is reached exactly once:

* Every slot and every link points to an older entry of the same slot.
* No two of them point to the same entry.
* There are n pointers in total.

This is checked by column, without following a chain, so a cycle cannot cause an endless loop (spec:
index.md §2-§6).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing, suppress
from dataclasses import replace

import numpy as np

from rmqctl import vfs
from rmqctl.checks.findings import INFO, Finding
from rmqctl.checks.verify.common import plural
from rmqctl.checks.verify.context import Context
from rmqctl.checks.verify.index.keys import KeyCheck, KeyTally
from rmqctl.errors import FormatError, StoreIOError
from rmqctl.formats.local import index_file as layout
from rmqctl.formats.local import properties as props
from rmqctl.formats.local.filler import is_kept_damaged
from rmqctl.formats.local.index_file import ENTRY, HEADER, SLOT, IndexShape
from rmqctl.kernel import active
from rmqctl.parse_values import time_text
from rmqctl.scan.frames import Array
from rmqctl.scan.source import FileSource
from rmqctl.store.files import StoreFile
from rmqctl.store.index.entries import AllIndexEntries, EntryPlace, OpenedFile
from rmqctl.store.index.files import IndexFile
from rmqctl.store.index.shape import UnknownShapeError
from rmqctl.store.store import Store

MAX_SINGLE = 1000
_PAGE = 1 << 16
MAX_SINGLE_IN_FILE = 100
"""Maximum number of broken links or slots of one kind in a file that are reported one by one."""


def index_findings(context: Context) -> Iterator[Finding]:
    """Yield findings for index entries without a key, keys without an index entry, wrong times, and
    a missing index.
    """
    tally = context.result.keys
    if vfs.lacks(context.store.root, "index"):
        return
    if not tally.files and context.result.keyed:
        repairs = context.start_repairs_of_keys(context.store.log.min_offset)
        yield Finding(
            "index-missing", "index", "missing, or off (messageIndexEnable); "
            f"{context.result.keyed} messages have keys{repairs.index_words('recreates it')}",
            file=context.store.path("index"), offset=0, count=context.result.keyed,
            severity=repairs.severity)
        return
    late = {*tally.late, *_late(context, tally.settle()[:MAX_SINGLE])}
    yield from _extra(context)
    yield from _missing(context)
    for physical, when, place in sorted(late, key=lambda entry: entry[2])[:MAX_SINGLE]:
        yield _entry(tally.files, place, "index-time", "time_diff",
                     f"time {time_text(when)} differs from the message at {physical}")


def _late(context: Context, paired_entries: Sequence[tuple[int, int, EntryPlace]]) -> list[
        tuple[int, int, EntryPlace]]:
    """Return the entries with a wrong time among those that were paired last."""
    if not paired_entries:
        return []
    records = [context.store.log.record_at(physical) for physical, _, _ in paired_entries]
    pairs = [(entry, record.store_timestamp) for entry, record in zip(
        paired_entries, records, strict=True) if record is not None]
    with closing(AllIndexEntries(context.store)) as entries, suppress(StoreIOError):
        return KeyCheck(entries, 0).late_of([entry for entry, _ in pairs], np.array(
            [time for _, time in pairs], np.int64))
    return []


def _extra(context: Context) -> Iterator[Finding]:
    tally = context.result.keys
    ahead: list[tuple[int, EntryPlace]] = []
    broken_entries = 0
    for physical, key_hash, place in tally.extra:
        if physical >= context.log_end:
            ahead.append((physical, place))
        elif 0 <= physical < context.store.log.min_offset or context.in_damage(physical):
            continue  # expired with its file, or a key of a damaged message
        elif not _belongs(context, physical, key_hash):
            broken_entries += 1
            if broken_entries <= MAX_SINGLE:
                yield _entry(tally.files, place, "index-entry", "physical_offset",
                             f"points to {physical} with hash {key_hash}; no message there has "
                             "such a key")
    # The entries that were only counted are after the log too, if the first of them is.
    unlisted_ahead = tally.unlisted_extra if tally.unlisted_from >= context.log_end else 0
    more = max(broken_entries - MAX_SINGLE, 0) + tally.unlisted_extra - unlisted_ahead
    if more:
        yield Finding("index-entry", "index", f"{more} more entries match no key (only counted)",
                      count=more)
    if ahead:
        physical, place = min(ahead)
        count = len(ahead) + unlisted_ahead
        yield _entry(tally.files, place, "index-ahead", "physical_offset",
                     f"{plural(count, 'entry refers', 'entries point')} to {physical} and beyond; "
                     f"the log ends at {context.log_end}", count)


def _belongs(context: Context, physical: int, key_hash: int) -> bool:
    """Return whether an index entry that matches no key is legitimate.

    After a restart, a broker may index the last message again (index.md §5). A message kept despite
    damage may have lost the key.
    """
    record = context.store.log.record_at(physical)
    if record is None or is_kept_damaged(record):
        return record is not None
    topic = record.topic.decode("utf-8", "replace")
    properties = props.parse(record.properties.decode("utf-8", "replace"))
    return key_hash in (layout.key_hash(topic, key) for key in layout.keys_of(properties))


def _entry(files: list[OpenedFile], place: EntryPlace, category: str, field: str, detail: str,
           count: int = 1) -> Finding:
    file = files[place.file]
    spot = ENTRY.field(field)
    return Finding(category, "index", f"entry {place.entry}: {detail}", file=file.path,
                   offset=file.shape.entry_position(place.entry) + spot.offset, length=spot.size,
                   count=count)


def _missing(context: Context) -> Iterator[Finding]:
    tally = context.result.keys
    # A message kept damaged is found by its former keys.
    others = {physical for physical, _, _ in tally.extra}
    kept = {physical for physical in others.intersection(pair[0] for pair in tally.missing)
            if (record := context.store.log.record_at(physical)) and is_kept_damaged(record)}
    missing = [pair for pair in tally.missing
               if pair[0] not in kept and not context.in_damage(pair[0])]
    if not missing and not tally.unlisted_missing:
        return
    oldest = min((file.header.begin_phy_offset for file in tally.files), default=0)
    newest = max((file.header.end_phy_offset for file in tally.files), default=0)
    before = [pair for pair in missing if pair[0] < oldest]
    # Only some of the keys of the newest message may be there already.
    behind = [pair for pair in missing if pair[0] >= newest]
    between = [pair for pair in missing if oldest <= pair[0] < newest]
    if before:
        yield _keys(tally, "index-key-missing", before,
                    f"are older than the oldest index file ({oldest}) and can no longer be queried",
                    INFO)
    if between or tally.unlisted_missing:
        repairs = context.start_repairs_of_keys(min((physical for physical, _ in between),
                                                    default=None))
        yield _keys(tally, "index-key-missing", between,
                    f"have no entry, but later keys do{repairs.index_words('recreates them')}",
                    repairs.severity, tally.unlisted_missing)
    if behind:
        repairs = context.start_repairs_of_keys(min(physical for physical, _ in behind))
        yield _keys(tally, "index-behind", behind,
                    "are newer than the newest index entry "
                    f"({newest}){repairs.index_words('recreates them')}",
                    INFO if context.live else repairs.severity)


def _keys(tally: KeyTally, category: str, pairs: list[tuple[int, int]], words: str,
          severity: str = "", more: int = 0) -> Finding:
    """Return a finding for keys without an index entry. It names the file that should contain the
    first of these entries, or the file before it.
    """
    first = min((physical for physical, _ in pairs), default=0)
    last = max((physical for physical, _ in pairs), default=0)
    count = len(pairs) + more
    older = [file for file in tally.files if file.header.begin_phy_offset <= first]
    file = (older or tally.files)[-1 if older else 0]
    behind = category == "index-behind"
    return Finding(category, "index", f"{plural(count, 'key')} of messages at {first} to {last} "
                   f"{words}", file=file.path,
                   offset=file.shape.entry_position(file.header.entries + 1) if behind else None,
                   count=count, severity=severity)


def check(store: Store) -> Iterator[Finding]:
    """Yield the findings for all index files of a store."""
    counting = _SlotCounts(store)
    for file in store.index.listing.files:
        try:
            index = store.index.open(file)
        except FormatError as error:
            # An unusual shape is legal: a file that contradicts none is not damaged.
            sound = isinstance(error, UnknownShapeError) and error.sound
            yield Finding("not-judged" if sound else "index-unreadable", "index", error.reason,
                          file=file.path, offset=error.offset or 0)
            continue
        except StoreIOError as error:
            yield Finding("file-unreadable", "index", str(error), file=file.path)
            continue
        try:
            yield from _file(store, index, counting)
        except StoreIOError as error:
            yield Finding("file-unreadable", "index", str(error), file=file.path)
        finally:
            index.close()


def _file(store: Store, index: IndexFile, counting: _SlotCounts) -> Iterator[Finding]:
    shape, header, file = index.shape, index.header, index.file
    if header.index_count < 0 or header.index_count > shape.max_entries:
        yield _finding("index-header", file, "index_count",
                       f"is {header.index_count}, but there is space for {shape.max_entries} "
                       "entries")
    entries = max(0, min(header.entries, (index.source.size - shape.entry_position(1))
                         // ENTRY.size))
    if entries and (header.begin_phy_offset > header.end_phy_offset
                    or header.begin_phy_offset < 0):
        yield _finding("index-header", file, "begin_phy_offset",
                       f"{header.begin_phy_offset} is invalid (end_phy_offset "
                       f"{header.end_phy_offset})")
    yield from _ends(store, index, entries)
    yield from _chains(index, entries, counting)
    yield from _behind(index, entries)


def _ends(store: Store, index: IndexFile, entries: int) -> Iterator[Finding]:
    """Check the first and last offset and time in the header against the entries and their
    messages.
    """
    header = index.header
    if not entries:
        return
    for number, place, phy, time, when in (
            (1, "begin_phy_offset", header.begin_phy_offset, "begin_timestamp",
             header.begin_timestamp),
            (entries, "end_phy_offset", header.end_phy_offset, "end_timestamp",
             header.end_timestamp)):
        entry = index.entry(number)
        if entry is None:
            continue
        if entry.physical_offset != phy:
            yield _finding("index-header", index.file, place,
                           f"is {phy}, but entry {number} points to {entry.physical_offset}")
            continue
        record = store.log.record_at(phy)
        if record is not None and record.store_timestamp != when:
            yield _finding("index-header", index.file, time,
                           f"is {time_text(when)}, but the message at {phy} was stored at "
                           f"{time_text(record.store_timestamp)}")


def _finding(category: str, file: StoreFile, field: str, detail: str) -> Finding:
    place = HEADER.field(field)
    return Finding(category, "index", f"{field} {detail}", file=file.path, offset=place.offset,
                   length=place.size)


def read_slots(source: FileSource, shape: IndexShape) -> Array:
    """Read all slots of an index file as int32 values: 20 MB in a file of default size."""
    out: Array = np.zeros(shape.slots, np.int32)
    for start in range(0, shape.slots, _PAGE):
        data = source.read(shape.slot_position(start), min(_PAGE, shape.slots - start) * SLOT.size)
        slots = SLOT.array(data)["entry"]
        out[start:start + len(slots)] = slots
    return out


class _ReachedEntries:
    """Entries that slots or links point to.

    Each entry has a flag byte. Entries that are reached more than once are collected.
    """

    def __init__(self, entries: int) -> None:
        self.seen: Array = np.zeros(entries + 1, np.uint8)
        self.again: list[Array] = []

    def add(self, targets: Array) -> None:
        distinct, count = np.unique(targets, return_counts=True)
        self.again.append(distinct[(count > 1) | (self.seen[distinct] != 0)])
        self.seen[distinct] = 1


def _sound(index: IndexFile, entries: int) -> int | None:
    """Return the number of used slots if the structure is sound; None if it is not sound, or if no
    kernel is available.

    In a sound structure, exactly one slot, or one newer entry of the same slot, points to each
    entry.
    """
    kernel = active()
    shape, source = index.shape, index.source
    if kernel is None:
        return None
    slot_of: Array = np.full(entries + 1, -1, np.int32)
    seen: Array = np.zeros(entries + 1, np.uint8)
    pages = [(start, min(_PAGE, entries + 1 - start)) for start in range(1, entries + 1, _PAGE)]
    led_to = used = 0
    for start, count in pages:
        page = _page(source, shape, start, count).view(np.uint8)
        if not kernel.entry_slots(page, shape.slots, slot_of[start:start + count]):
            return None
        links = kernel.entry_links(page, start, slot_of, seen)
        if links < 0:
            return None
        led_to += links
    for start in range(0, shape.slots, _PAGE):
        data = source.read(shape.slot_position(start), min(_PAGE, shape.slots - start) * SLOT.size)
        heads = kernel.slot_heads(data, start, entries, slot_of, seen)
        if heads < 0:
            return None
        used += heads
    return used if led_to + used == entries else None


def _chains(index: IndexFile, entries: int, counting: _SlotCounts) -> Iterator[Finding]:
    shape, source = index.shape, index.source
    used = _sound(index, entries)
    if used is not None:
        yield from counting.judged(index, used, entries)
        return
    slots = read_slots(source, shape)
    # Slot of each entry by its number; entry 0 is never used.
    slot_of: Array = np.full(entries + 1, -1, np.int32)
    reached = _ReachedEntries(entries)
    first_hash_bad = []
    for start in range(1, entries + 1, _PAGE):
        page = _page(source, shape, start, min(_PAGE, entries + 1 - start))
        slot_of[start:start + len(page)] = page["key_hash"] % shape.slots
        negative_hash = np.flatnonzero(page["key_hash"] < 0)[:MAX_SINGLE_IN_FILE]
        first_hash_bad += (negative_hash + start).tolist()
    for negative in first_hash_bad[:MAX_SINGLE_IN_FILE]:
        yield _entry_finding(index, "index-entry", negative, "key_hash", "negative key hash")
    broken_entries = 0
    for start in range(1, entries + 1, _PAGE):
        page = _page(source, shape, start, min(_PAGE, entries + 1 - start))
        number = np.arange(start, start + len(page), dtype=np.int64)
        previous = page["previous"].astype(np.int64)
        linked = previous != 0
        bad = linked & ((previous < 0) | (previous >= number))
        sound = linked & ~bad
        bad |= sound & (slot_of[np.where(sound, previous, 0)] != slot_of[number])
        sound &= ~bad
        reached.add(previous[sound])
        for row in np.flatnonzero(bad).tolist():
            broken_entries += 1
            if broken_entries <= MAX_SINGLE_IN_FILE:
                yield _entry_finding(index, "index-chain", start + row, "previous",
                                     _link_words(int(previous[row]), start + row))
    used = broken_slots = 0
    for start in range(0, shape.slots, _PAGE):
        heads = slots[start:start + _PAGE]
        filled = np.flatnonzero(heads)
        used += len(filled)
        target = heads[filled]
        # A broker takes a slot value outside the entries for empty, but never writes one.
        bad = (target < 0) | (target > entries)
        sound = ~bad
        bad |= sound & (slot_of[np.where(sound, target, 0)] != filled + start)
        reached.add(target[~bad])
        if bad.any():
            for slot, head in zip((filled[bad] + start).tolist(), target[bad].tolist(),
                                  strict=True):
                broken_slots += 1
                if broken_slots <= MAX_SINGLE_IN_FILE:
                    yield _slot(index, slot, f"points to entry {head}, which belongs to another "
                                "slot")
    if broken_slots > MAX_SINGLE_IN_FILE:
        yield Finding("index-slot", "index",
                      f"{broken_slots - MAX_SINGLE_IN_FILE} more slots point to "
                      "entries of other slots", file=index.file.path,
                      count=broken_slots - MAX_SINGLE_IN_FILE)
    yield from counting.judged(index, used, entries)
    yield from _reached(index, reached, slots, slot_of, broken_entries + broken_slots > 0)


class _SlotCounts:
    """Check of the counts of used slots in the headers of a store's index files, oldest first.

    Brokers since 4.7.1 count used slots; older brokers count every put. A file in use during an
    upgrade contains a mixture of the two counts.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self._since = False

    def judged(self, index: IndexFile, used: int, entries: int) -> Iterator[Finding]:
        counted = index.header.hash_slot_count
        finding = _finding("index-header", index.file, "hash_slot_count",
                           f"is {counted}, but {used} slots are used by {entries} entries")
        if not used <= counted <= max(entries, used):
            yield finding
        elif used < counted < entries:
            yield finding if self._since or self._is_newer(index) else replace(
                finding, severity=INFO, detail=f"{finding.detail}; correct only if a broker up to "
                "4.7.0 created the file")
        self._since |= counted == used < entries

    def _is_newer(self, index: IndexFile) -> bool:
        """Return whether a broker of 4.9.1 or later wrote the message of the first entry. These
        brokers write no separator after the last property.
        """
        entry = index.entry(1)
        record = None if entry is None else self._store.log.record_at(entry.physical_offset)
        return record is not None and bool(record.properties) and not (
            record.properties.endswith(props.PROPERTY_SEPARATOR.encode()))


def _link_words(previous: int, number: int) -> str:
    if previous < 0:
        return f"links to entry {previous}"
    if previous >= number:
        return f"links to entry {previous}, which is not older: a cycle"
    return f"links to entry {previous}, which belongs to another slot"


def _slot(index: IndexFile, slot: int, detail: str) -> Finding:
    return Finding("index-slot", "index", f"slot {slot} {detail}", file=index.file.path,
                   offset=index.shape.slot_position(slot), length=SLOT.size)


def _reached(index: IndexFile, reached: _ReachedEntries, slots: Array, slot_of: Array,
             broken: bool) -> Iterator[Finding]:
    # With counts, since numpy would load its masked arrays otherwise.
    twice, _ = np.unique(np.concatenate([np.zeros(0, np.int64), *reached.again]),
                         return_counts=True)
    for number in twice[:MAX_SINGLE_IN_FILE].tolist():
        yield _entry_finding(index, "index-chain", number, "previous",
                             "several links or slots point to this entry")
    never = np.flatnonzero(reached.seen[1:] == 0) + 1
    if not len(never) or (broken and len(twice) == 0 and len(never) <= MAX_SINGLE_IN_FILE):
        return  # the broken links already reported explain why these are not reached
    for number in never[:MAX_SINGLE_IN_FILE].tolist():
        slot = int(slot_of[number])
        head = int(slots[slot])
        yield _slot(index, slot, f"points to entry {head} and does not reach entry {number}")


def _entry_finding(index: IndexFile, category: str, number: int, field: str,
                   detail: str) -> Finding:
    place = ENTRY.field(field)
    return Finding(category, "index", f"entry {number}: {detail}", file=index.file.path,
                   offset=index.shape.entry_position(number) + place.offset, length=place.size)


def _page(source: FileSource, shape: IndexShape, start: int, count: int) -> Array:
    data = source.read(shape.entry_position(start), count * ENTRY.size)
    return ENTRY.array(data.ljust(count * ENTRY.size, b"\0"))


def _behind(index: IndexFile, entries: int) -> Iterator[Finding]:
    """Yield a finding if the file has a used entry after the entries that its header counts.

    Either the count is too small, or the entry consists of stale bytes.
    """
    position = index.shape.entry_position(entries + 1)
    if index.source.next_data(position) >= index.source.size:
        return
    data = index.source.read(position, ENTRY.size)
    if len(data) == ENTRY.size and any(data):
        yield Finding("index-header", "index", f"index_count is {entries}, but entry "
                      f"{entries + 1} is in use", file=index.file.path, offset=position,
                      length=ENTRY.size)
