"""The entries of a DLedger log as a chain (spec: dledger.md §2).

The index of each entry is the index of the previous entry plus one. The term of an entry is never
lower than that of the previous entry. Until their logs diverge, all members of a group have the
same entries at the same byte offsets.

After damage, the chain continues with the first entry that can follow the last intact entry. If a
member's log was truncated, stale entries remain in the file after its end. They are not part of the
chain (`left_over`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, closing
from typing import NamedTuple, Protocol

import numpy as np
from isal.isal_zlib import crc32

from rmqctl.errors import FormatError
from rmqctl.formats import dledger
from rmqctl.formats.local.message import CRC_MASK, MIN_SIZE
from rmqctl.phrases import Phrase, counted
from rmqctl.scan.damage.entries import whole_entry
from rmqctl.scan.frames import BLANK, Array, Batch, Span, gather
from rmqctl.scan.source import Source
from rmqctl.scan.walk import Walk
from rmqctl.store.files import StoreFile
from rmqctl.store.log.dledger import PAGE, Node, UnitReader
from rmqctl.store.log.end import used_size

_DTYPE = dledger.ENTRY_HEAD.dtype()
_MIN_ENTRY_SIZE = dledger.HEAD_SIZE + MIN_SIZE


class File(Protocol):
    """A file of the log, either as it is on disk or as a repair would leave it."""

    @property
    def base(self) -> int: ...
    @property
    def head(self) -> int: ...
    def open(self) -> AbstractContextManager[Source]: ...


class ChainLink(NamedTuple):
    """An entry of the chain: its index and term; ``pos``: its byte offset; ``end``: the byte offset
    after it.
    """

    number: int
    term: int
    pos: int
    end: int


class ChainEntries(NamedTuple):
    """Entries in log order. All columns except ``whole`` are int64.

    ``crc``: CRC-32 of all bytes of an entry, with the top bit cleared.
    ``whole`` (bool): whether the entry's header and its message are intact, including the message's
    CRC.
    """

    number: Array
    term: Array
    pos: Array
    size: Array
    crc: Array
    whole: Array

    @property
    def end(self) -> Array:
        behind: Array = self.pos + self.size
        return behind

    def __len__(self) -> int:
        return len(self.number)

    def link(self, row: int) -> ChainLink:
        return ChainLink(int(self.number[row]), int(self.term[row]), int(self.pos[row]),
                         int(self.pos[row] + self.size[row]))

    def select(self, rows: Array | slice) -> ChainEntries:
        return ChainEntries(*(column[rows] for column in self))

    @classmethod
    def of(cls, rows: Iterable[tuple[int, int, int, int, int, bool]]) -> ChainEntries:
        columns = list(zip(*rows, strict=True)) or [()] * 6
        kinds = (*(np.int64,) * 5, np.bool_)
        return cls(*(np.array(column, kind) for column, kind in zip(columns, kinds, strict=True)))

    def plus(self, other: ChainEntries) -> ChainEntries:
        return ChainEntries(*(np.concatenate(pair) for pair in zip(self, other, strict=True)))


NONE = ChainEntries.of(())


class Chain:
    """Iterates over the entries of a log, page by page, and continues after damage.

    ``units``: DLedger's index of the log, which distinguishes a damaged header from a stale entry.
    ``last``: the last entry, set after the iteration.
    ``marks``: the end marks of files, as a mapping from start to end.
    ``left``: the number of stale entries after the last entry.
    ``left_from``: the byte offset of the first stale entry.
    """

    def __init__(self, files: Iterable[File], units: UnitReader | None = None,
                 progress: Callable[[int], None] | None = None) -> None:
        self._files = [file for file in files if file.head]
        self._units = units or UnitReader(None)
        self._progress = progress or (lambda _: None)
        self.first: ChainLink | None = None
        self.last: ChainLink | None = None
        self.marks: dict[int, int] = {}
        self.left, self.left_from = 0, 0

    def __iter__(self) -> Iterator[ChainEntries]:
        held = NONE
        for file in self._files:
            with file.open() as source:
                walk, before = Walk(source), 0
                for batch in walk:
                    entries = held.plus(_heads(batch)) if len(batch) else held
                    entries = entries.plus(self._beyond(source, batch.spans))
                    # The last entry waits: only the next one shows whether its term is damaged.
                    held = entries.select(slice(-1, None))
                    taken = self._taken(entries.select(slice(0, -1)), held)
                    if len(taken):
                        yield taken
                    self._progress(walk.position - before)
                    before = walk.position
        taken = self._taken(held, NONE)
        if len(taken):
            yield taken

    def _beyond(self, source: Source, spans: list[Span]) -> ChainEntries:
        """Return the entries in the spans that are not messages. Such an entry has no message, or a
        damaged one.
        """
        rows = []
        for span in spans:
            at, end = span.offset - source.base, span.end - source.base
            while at < end:
                head = whole_entry(source, at)
                if head is None:
                    if span.kind == BLANK:
                        self.marks[source.base + at] = span.end
                    break
                raw = source.read(at, head.size)
                rows.append((head.entry_index, head.term, head.pos, head.size,
                             crc32(raw) & CRC_MASK, head.magic in dledger.CONTROL))
                at += head.size
        return ChainEntries.of(rows)

    # -- which entries are of the chain -----------------------------------------------------------

    def _taken(self, entries: ChainEntries, following: ChainEntries) -> ChainEntries:
        """Return the entries that belong to the chain. ``following``: the entry after ``entries``;
        empty at the end of the log.
        """
        if not len(entries):
            return entries
        # The usual page is one complete chain, and no single entry is examined.
        every = entries.plus(following)
        fine = (np.diff(every.number) == 1) & (np.diff(every.term) >= 0) & (
            every.pos[1:] == every.end[:-1])
        # At the border of two files, an end mark takes the place of adjacent bytes.
        if len(following) and not fine[-1:].all():
            across = self.marks.get(int(entries.end[-1])) == int(following.pos[0])
            fine[-1] = across and following.number[0] == entries.number[-1] + 1 and (
                following.term[0] >= entries.term[-1])
        if fine.all() and (self.last is None or self._follows(entries.link(0))):
            return self._with(entries)
        # Otherwise decide entry by entry; the index replaces a damaged header.
        rows, out = len(entries), []
        for row in range(rows):
            link = every.link(row)
            behind = every.link(row + 1) if row + 1 < len(every) else None
            last = self.last
            is_whole = bool(entries.whole[row])
            if self._is_next(link, behind) and (last is not None or self._begins(every, row)):
                kept = link
            elif last is not None and (unit := self._unit(last, link) or self._between(
                    last, link, behind)) is not None:
                kept, is_whole = unit, False
            else:
                # Remember the start of entries that fit nowhere.
                if not self.left:
                    self.left_from = link.pos
                self.left += 1
                continue
            self.last, self.first = kept, self.first or kept
            self.left = 0
            out.append((kept.number, kept.term, kept.pos, kept.end - kept.pos,
                        int(entries.crc[row]), is_whole))
        return ChainEntries.of(out)

    def _with(self, entries: ChainEntries) -> ChainEntries:
        self.first = self.first or entries.link(0)
        self.last, self.left = entries.link(len(entries) - 1), 0
        return entries

    def _follows(self, link: ChainLink, last: ChainLink | None = None) -> bool:
        last = last or self.last
        if last is None:
            return True
        gap, step = link.pos - last.end, link.number - last.number
        if link.term < last.term or gap < 0:
            return False
        if not gap or self.marks.get(last.end) == link.pos:
            return step == 1
        return 1 <= step <= 1 + gap // _MIN_ENTRY_SIZE  # as many as fit in the gap

    def _is_next(self, link: ChainLink, behind: ChainLink | None) -> bool:
        """Return whether an entry continues the chain.

        ``behind``: the next entry, which may show that the index or term of this entry is wrong.
        """
        if not self._follows(link):
            return False
        if behind is None or self._follows(behind, link):
            return True
        return self.last is None or self._agrees(link) or behind.number != link.number + 1 or (
            behind.term < self.last.term)

    def _begins(self, every: ChainEntries, row: int) -> bool:
        """Return whether the entry ``row`` may begin the chain.

        It may in three cases: the next entry continues it; the next two entries do not form a chain
        with each other; or DLedger's index confirms it.
        """
        if row + 2 >= len(every):
            return True
        first, second, third = (every.link(row + more) for more in range(3))
        return self._follows(second, first) or not self._follows(third, second) or (
            self._agrees(first))

    def _agrees(self, link: ChainLink) -> bool:
        """Return whether DLedger's index confirms an entry."""
        unit = self._units.of(np.array([link.number], np.int64))[0]
        return (int(unit["magic"]), int(unit["pos"]), int(unit["size"]), int(unit["term"])) == (
            dledger.MAGIC_ENTRY, link.pos, link.end - link.pos, link.term)

    def _unit(self, last: ChainLink, link: ChainLink) -> ChainLink | None:
        """Return the next entry of the chain as DLedger's index describes it, if the entry starts
        at ``link`` and only its header is damaged; else None.
        """
        unit = self._units.of(np.array([last.number + 1], np.int64))[0]
        term = int(unit["term"])
        if unit["magic"] == dledger.MAGIC_ENTRY and term >= last.term and (
                int(unit["pos"]), int(unit["size"]), int(unit["entry_index"])) == (
                    link.pos, link.end - link.pos, last.number + 1) and (
                        link.pos in (last.end, self.marks.get(last.end))):
            return ChainLink(last.number + 1, term, link.pos, link.end)
        return None


    def _between(self, last: ChainLink, link: ChainLink,
                 behind: ChainLink | None) -> ChainLink | None:
        """Return the entry with the index and term that its neighbors imply, if it exactly fills
        the gap between them.
        """
        if behind is None or behind.number != last.number + 2 or behind.term < last.term or not (
                link.pos in (last.end, self.marks.get(last.end))
                and behind.pos in (link.end, self.marks.get(link.end))):
            return None
        term = link.term if last.term <= link.term <= behind.term else last.term
        if term == link.term or last.term == behind.term:
            return ChainLink(last.number + 1, term, link.pos, link.end)
        return None


def _heads(batch: Batch) -> ChainEntries:
    heads = gather(batch.data, batch.start - batch.head, batch.head).view(_DTYPE)
    pos, size = batch.offset - batch.head, batch.frame_size
    is_intact = batch.crc_ok()
    for name, should in (("magic", dledger.MAGIC_ENTRY), ("pos", pos), ("size", size),
                         ("body_length", size - batch.head)):
        is_intact = is_intact & (heads[name] == should)
    crc = batch.crc(batch.start - batch.head, size)
    return ChainEntries(heads["entry_index"].astype(np.int64), heads["term"].astype(np.int64), pos,
                        size, crc, is_intact)


# -- entries after the end -------------------------------------------------------------------------


class LeftOver(NamedTuple):
    """The stale entries that remain after the end of a log, because the log of the member was
    truncated.

    ``end``: byte offset after the last entry of the log.
    ``number``, ``term``: index and term of the last entry of the log.
    ``count``: number of stale entries.
    """

    end: int
    number: int
    term: int
    entries: int

    @property
    def detail(self) -> Phrase:
        return Phrase("DLedger's log ends at {end}, after entry {number} of term {term}; stale "
                      "after it: {count}, left over when this member was truncated",
                      end=self.end, number=self.number, term=self.term,
                      count=counted(self.entries, "entry", "entries"))


def left_over(files: list[StoreFile], node: Node) -> LeftOver | None:
    """Return the stale entries after the end of the DLedger log in ``files``; None if there are
    none.

    Only the last file can have stale entries. If DLedger's index points from entry to entry up to
    the last byte, no entry is read.

    Raises: StoreIOError.
    """
    files = list(files)
    while files:
        with files[-1].open() as source:
            used = used_size(source)
        if used:
            break
        files.pop()
    if not files:
        return None
    with closing(UnitReader(node)) as units:
        if _is_led_to(files, files[-1].base + used, units):
            return None
        chain = Chain(files[-2:], units)
        for _ in chain:
            pass
        last = chain.last
        if not chain.left or last is None:
            return None
        end = chain.marks.get(last.end, last.end)
        unit = units.of(np.array([last.number + 1], np.int64))[0]
        if unit["magic"] == dledger.MAGIC_ENTRY and int(unit["pos"]) in (last.end, end) and (
                int(unit["entry_index"]) == last.number + 1 and int(unit["term"]) >= last.term):
            return None  # the index continues: this is damage, not left-over entries
    return LeftOver(end, last.number, last.term, chain.left)


def lost_at_the_end(files: Iterable[StoreFile], node: Node) -> tuple[int, int]:
    """Return (count, end); (0, 0) if no entry is lost.

    ``count``: number of entries that DLedger's checkpoint counts after the last intact entry.
    ``end``: byte offset after the last intact entry.

    Raises: StoreIOError.
    """
    try:
        saved = node.checkpoint
    except FormatError:
        return 0, 0
    if saved is None:
        return 0, 0
    last: ChainLink | None = None
    with closing(UnitReader(node)) as units:
        for page in Chain([file for file in files if file.head][-2:], units):
            intact = np.flatnonzero(page.whole)
            last = page.link(int(intact[-1])) if len(intact) else last
    if last is None or saved["end_index"] <= last.number:
        return 0, 0
    return saved["end_index"] - last.number, last.end


def _is_led_to(files: list[StoreFile], used: int, units: UnitReader) -> bool:
    """Return whether DLedger's index points, without a gap, to all entries of the last file up to
    byte ``used``.

    It must also point to the last entry of the previous file.
    """
    # Without an intact first entry there is nothing to compare with the index.
    with files[-1].open() as source:
        first = whole_entry(source, 0)
    if first is None:
        return False
    number, end, term = first.entry_index, first.pos, 0
    # The previous entry must be in the previous file, and its end mark must reach the file's end.
    if len(files) > 1:
        unit = units.of(np.array([number - 1], np.int64))[0]
        before, closed = files[-2], int(unit["pos"]) + int(unit["size"])
        if unit["magic"] != dledger.MAGIC_ENTRY or not (
                before.base <= int(unit["pos"]) < closed < before.end):
            return False
        with before.open() as source:
            mark = source.read(closed - before.base, dledger.END.size)
            entry = whole_entry(source, int(unit["pos"]) - before.base)
        if mark != dledger.build_end(before.end - closed) or entry is None or (
                entry.entry_index, entry.term) != (number - 1, int(unit["term"])):
            return False
        term = entry.term
    # Follow the index page by page: every entry must start where the previous one ends.
    while end < used:
        rows = units.of(np.arange(number, number + PAGE, dtype=np.int64))
        behind = np.concatenate([[end], (rows["pos"] + rows["size"]).astype(np.int64)])
        good = (rows["magic"] == dledger.MAGIC_ENTRY) & (rows["pos"] == behind[:-1]) & (
            rows["size"] > dledger.HEAD_SIZE) & (
            rows["entry_index"] == np.arange(number, number + PAGE))
        good &= np.diff(np.concatenate([[term], rows["term"].astype(np.int64)])) >= 0
        count = len(good) if good.all() else int(good.argmin())
        if not count or (count < PAGE and behind[count] < used):
            return False
        number, end, term = number + count, int(behind[count]), int(rows["term"][count - 1])
    return True
