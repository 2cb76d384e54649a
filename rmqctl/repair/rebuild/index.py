"""Prepare index files for a rebuild: keep the entries of expired messages, and choose file names.

An index file keeps entries of expired messages until its last entry expires. A rebuild appends to
these entries, so that a valid file is rebuilt unchanged (spec: index.md §2-§7).
"""

from __future__ import annotations

import os
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from rmqctl.engine.dispatch.index import IndexHeader, header_of, name_at, next_name, write_whole
from rmqctl.errors import RefusedError, StoreIOError
from rmqctl.files.sparse import same_content
from rmqctl.formats.local import index_file as layout
from rmqctl.formats.local import names
from rmqctl.formats.local.index_file import ENTRY, HEADER, IndexShape
from rmqctl.lazy_dataclass import dataclass
from rmqctl.repair.scratch import Scratch
from rmqctl.scan.frames import Array
from rmqctl.scan.source import FileSource
from rmqctl.store.files import StoreFile, listing

FOLDER = "index"
_PAGE = 1 << 16
_SLOTS = layout.slot_dtype()["entry"]


@dataclass(frozen=True, slots=True)
class Expired:
    """Index files with entries of messages before the log's start.

    ``whole``: full files that contain only such entries, oldest first; these files stay unchanged.
    ``part``: the next file, which contains ``entries`` such entries, or None.
    """

    whole: tuple[StoreFile, ...] = ()
    part: StoreFile | None = None
    entries: int = 0

    @property
    def stays(self) -> frozenset[str]:
        """Return the names of the files that are not changed."""
        return frozenset(file.name for file in self.whole)

    @property
    def seeds(self) -> tuple[StoreFile, ...]:
        return self.whole if self.part is None else (*self.whole, self.part)


def expired(root: str, shape: IndexShape, log_min: int) -> Expired:
    """Return the part of the store's index that covers messages before physical offset ``log_min``.

    This part ends before the first damaged file. Raises: StoreIOError.
    """
    whole_files: list[StoreFile] = []
    last = -1
    for file in listing(os.path.join(root, FOLDER), names.INDEX_DIGITS).files if log_min else ():
        if file.size != shape.file_size:
            break
        header = header_of(file.path)
        sound = 1 < header.index_count <= shape.max_entries and (
            last <= header.begin_phy_offset <= header.end_phy_offset)
        if not sound or header.begin_phy_offset >= log_min:
            break
        full = header.index_count >= shape.max_entries
        if header.end_phy_offset < log_min and full:
            whole_files.append(file)
            last = header.end_phy_offset
            continue
        entries = sum(len(page) for _, page in _pages(file, shape, header, log_min))
        return Expired(tuple(whole_files), file,
                       entries) if entries else Expired(tuple(whole_files))
    return Expired(tuple(whole_files))


def seed(expired_files: Expired, shape: IndexShape, log_min: int, scratch: Scratch) -> None:
    """Copy to the scratch folder the files that a writer will continue. Raises: StoreIOError.

    Only the header of the last full file is copied. The time of the next file's first entry is
    relative to the time in this header.
    """
    if expired_files.whole:
        file = expired_files.whole[-1]
        with FileSource(file.path) as source:
            write_whole(scratch.path(FOLDER, file.name), shape, [(0, source.read(0, HEADER.size))])
    if expired_files.part is not None:
        file = expired_files.part
        header = header_of(file.path)
        write_whole(scratch.path(FOLDER, file.name), shape, _cut(file, shape, header, log_min))


def _cut(file: StoreFile, shape: IndexShape, header: IndexHeader, log_min: int) -> Iterator[
        tuple[int, bytes]]:
    """Yield (position, bytes) of an index file with only the entries of expired messages.

    Overwritten entries are skipped, and later entries get lower numbers.
    """
    table: Any = np.zeros(shape.slots, _SLOTS)
    number, fresh, first, last = 1, 0, None, None
    gone: Array = np.zeros(0, np.int64)
    """The numbers of the overwritten entries, which are skipped."""
    for numbers, entries in _pages(file, shape, header, log_min):
        page = entries
        slots = page["key_hash"] % shape.slots
        looked = np.arange(number + len(gone), int(numbers[-1]) + 1)
        if len(looked) > len(numbers):
            gone = np.concatenate((gone, looked[~np.isin(looked, numbers)]))
        if len(gone):
            page = _moved_up(page, slots, number, gone, table)
        yield shape.entry_position(number), page.tobytes()
        # Numbers ascend: the last entry of a slot stays.
        table[slots] = np.arange(number, number + len(page))
        fresh += int(np.count_nonzero(page["previous"] == 0))
        number += len(page)
        first, last = int(page[0]["physical_offset"]) if first is None else first, page[-1]
    assert first is not None
    assert last is not None
    yield HEADER.size, table.tobytes()
    until = header.begin_timestamp + int(last["time_diff"]) * 1000
    yield 0, layout.build_header(layout.HeaderRecord(
        header.begin_timestamp, max(header.begin_timestamp, min(until, header.end_timestamp)),
        first if 1 in gone else header.begin_phy_offset, int(last["physical_offset"]), fresh,
        number))


def _moved_up(page: Array, slots: Array, number: int, gone: Array, table: Array) -> Array:
    """Return entries renumbered from ``number`` on, without the entries ``gone``.

    ``gone``: the old numbers of these entries, ascending. A link to a skipped entry becomes a link
    to the previous entry in its slot, if one exists.
    """
    # For each entry the one before it in its slot: on this page, else as the table has it.
    order = np.argsort(slots, kind="stable")
    follows = np.flatnonzero(slots[order][1:] == slots[order][:-1])
    earlier = table[slots].astype(np.int64)
    earlier[order[follows + 1]] = number + order[follows]
    # Links to an entry that is left out, and links to one with another number now.
    link = page["previous"].astype(np.int64)
    above = np.searchsorted(gone, link)
    is_gone = gone[np.minimum(above, len(gone) - 1)] == link
    moved: Array = page.copy()
    moved["previous"] = np.where(is_gone, earlier, link - above)
    return moved


def _pages(file: StoreFile, shape: IndexShape, header: IndexHeader,
           log_min: int) -> Iterator[tuple[Array, Any]]:
    """Yield (numbers, entries) of the leading entries with physical offsets before ``log_min``.

    Stop at the first invalid entry. Overwritten entries are skipped:

    * entries with the hash 0, which a key has with a chance of 1 in 4 billion
    * entries with a lower physical offset than the previous entry
    """
    number, before = 1, -1
    with FileSource(file.path) as source:
        while number < header.index_count:
            count = min(_PAGE, header.index_count - number)
            raw = source.read(shape.entry_position(number), count * ENTRY.size)
            page = ENTRY.array(raw)
            physical = page["physical_offset"].astype(np.int64)
            numbers = np.arange(number, number + len(page))
            good = (physical < log_min) & (page["key_hash"] >= 0) & (page["previous"] >= 0)
            good &= page["previous"] < numbers
            good_rows = len(page) if good.all() else int(good.argmin())
            kept = np.flatnonzero((page["key_hash"] != 0) & (
                physical >= np.maximum.accumulate(np.append(before, physical)[:-1])))
            kept = kept[kept < good_rows]
            if len(kept):
                yield numbers[kept], page[kept]
                before = int(physical[kept[-1]])
            if good_rows < count:
                return
            number += count


# -- names ----------------------------------------------------------------------------------------


def matched(built: Sequence[StoreFile], existing: Sequence[StoreFile], after: str) -> list[str]:
    """Return the name that each rebuilt file gets in the store. All names are greater than
    ``after``.

    ``built``, ``existing``: the rebuilt files and the store's files, oldest first. Names ascend,
    and are chosen as follows:

    * A rebuilt file that begins with the same message as an existing file gets that file's name.
    * Other files get the next existing name. If that name is not between the names of their
      neighbours, they get a name from their own store time, or else the lowest name after the
      previous file.
    * A file that needs no change keeps its name even if names do not ascend then. A broker names
      files by its clock, which may be set back.
    """
    begins: dict[int, StoreFile] = {}
    for file in existing:
        try:
            header = header_of(file.path)
        except StoreIOError:
            continue
        if header.index_count > 1:
            begins.setdefault(header.begin_phy_offset, file)
    same = [begins.get(header_of(file.path).begin_phy_offset) for file in built]
    ordered = _ascending(built, same, after, right_ones=False)
    tried: list[list[str | None]] = [ordered, [None] * len(built)]
    # Last resort, without space between two names: name all files in order.
    in_any_order = _ascending(built, same, after, right_ones=True)
    if in_any_order != ordered:
        tried.insert(0, in_any_order)
    for sure in tried:
        free = sorted({file.name for file in existing} - {name for name in sure if name})
        chosen = _fill(built, sure, free, after)
        if chosen is not None:
            return chosen
    raise RefusedError("index: no names are free for new files between the existing ones")


def _ascending(built: Sequence[StoreFile], same: Sequence[StoreFile | None], after: str, *,
               right_ones: bool) -> list[str | None]:
    """Return, for each rebuilt file, the name of the existing file that begins with the same
    message.

    ``same``: these existing files. Return None for a file if the names would no longer ascend.
    ``right_ones``: whether existing files with the same content keep their names in any order.
    """
    sure: list[str | None] = []
    low = after
    for file, old in zip(built, same, strict=True):
        name = None if old is None else old.name
        if name is not None and name <= low and (name in sure or not (
                right_ones and old is not None and same_content(file.path, old.path))):
            name = None
        sure.append(name)
        low = name or low
    return sure


def _fill(built: Sequence[StoreFile], sure: Sequence[str | None], free: list[str],
          after: str) -> list[str] | None:
    """Return a name for each file: the name in ``sure``, or else a name between the names of the
    neighbouring files.

    Return None if no unused name exists between them.
    """
    out: list[str] = []
    taken = {name for name in sure if name}
    low = after
    for number, file in enumerate(built):
        name = sure[number]
        if name is None:
            high = next((later for later in sure[number:] if later), None)
            place = bisect_right(free, low)
            choices = [*free[place:place + 1], _own(file), next_name(low)]
            name = next((choice for choice in choices if choice > low and choice not in taken
                         and (high is None or choice < high)), None)
            if name is None:
                return None
            taken.add(name)
        out.append(name)
        low = name
    return out


def _own(file: StoreFile) -> str:
    """Return the name that is derived from the store time of a file's first entry. It depends only
    on the log.
    """
    header = header_of(file.path)
    return name_at(header.begin_timestamp) if header.index_count > 1 else file.name
