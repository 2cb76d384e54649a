"""Checks of the entries of a DLedger log (spec: dledger.md §2, §3, §7).

The checks cover the headers of the entries, the chain of their indexes and terms, and the units of
DLedger's index. `EntryTally` collects the entries of each range of the log during the pass.
`entry_findings` reports faults in the entries, and contradictions with DLedger's checkpoint and
index.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import field
from typing import Any, NamedTuple

import numpy as np

from rmqctl.checks.findings import INFO, Finding
from rmqctl.checks.verify.common import plural
from rmqctl.errors import FormatError
from rmqctl.formats import dledger
from rmqctl.lazy_dataclass import dataclass
from rmqctl.scan.damage.entries import whole_entry
from rmqctl.scan.frames import BLANK, ZERO, Array, Batch, gather
from rmqctl.store.log.chain import ChainLink
from rmqctl.store.log.commit_log import CommitLog
from rmqctl.store.log.dledger import Node, UnitReader
from rmqctl.store.store import Store

MAX_LISTED = 1000
_DTYPE = dledger.ENTRY_HEAD.dtype()
_FIELDS = ("magic", "size", "pos", "body_length")


class EntryFault(NamedTuple):
    """A fault of an entry: ``category``, position ``pos``, ``size`` in bytes, and the reason."""

    category: str
    pos: int
    size: int
    detail: str


@dataclass(slots=True)
class EntryTally:
    """Entries of a range of the log, in order.

    * ``loose``: whether the last entry is followed by bytes that are not an entry. Entry indexes
      may then be skipped.
    * ``first_loose``: whether such bytes precede the first entry.
    """

    first: ChainLink | None = None
    last: ChainLink | None = None
    first_loose: bool = False
    loose: bool = False
    count: int = 0
    faults: list[EntryFault] = field(default_factory=list)
    unlisted: int = 0

    def add(self, batch: Batch, log: CommitLog, units: UnitReader | None) -> None:
        """Add the entries of a batch, and the spans of bytes between its records."""
        if len(batch):
            self._heads(batch, units)
        for span in batch.spans:
            place = log.locate(span.offset) if span.kind != ZERO else None
            head = None if place is None else whole_entry(*place)
            if head is not None:  # without a message, or with a damaged one
                link = ChainLink(head.entry_index, head.term, span.offset, span.end)
                self._follow(link)
                self.first, self.last, self.loose = self.first or link, link, False
                self.count += 1
            elif span.kind != BLANK:
                self.passed()

    def passed(self) -> None:
        """Record that the last entry is followed by bytes that are not an entry."""
        self.first_loose |= self.first is None
        self.loose = True

    def _heads(self, batch: Batch, units: UnitReader | None) -> None:
        heads = gather(batch.data, batch.start - batch.head, batch.head).view(_DTYPE)
        pos, size = batch.offset - batch.head, batch.frame_size
        should = dict(zip(_FIELDS, (np.full(len(heads), dledger.MAGIC_ENTRY), size, pos,
                                    size - batch.head), strict=True))
        intact: Array = np.ones(len(heads), bool)
        for name, values in should.items():
            intact &= heads[name] == values
        for row in np.flatnonzero(~intact).tolist():
            wrong = [f"{name} {int(heads[name][row])} instead of {int(values[row])}"
                     for name, values in should.items() if heads[name][row] != values[row]]
            self._note("dledger-entry", int(pos[row]), int(size[row]), ", ".join(wrong))
        index, term = heads["entry_index"].astype(np.int64), heads["term"].astype(np.int64)
        links = [ChainLink(*map(int, (index[row], term[row], pos[row], pos[row] + size[row])))
                 for row in (0, len(heads) - 1)]
        self._follow(links[0])
        broken = (index[1:] != index[:-1] + 1) | (term[1:] < term[:-1])
        for row in np.flatnonzero(broken).tolist():
            self._break(ChainLink(int(index[row]), int(term[row]), 0, 0), int(index[row + 1]),
                        int(term[row + 1]), int(pos[row + 1]), int(size[row + 1]))
        self.first = self.first or links[0]
        self.last, self.loose = links[1], False
        self.count += len(heads)
        if units is not None:
            self._units(units, index, term, pos, size)

    def _follow(self, link: ChainLink) -> None:
        """Record a fault if an entry does not continue the chain after the last entry."""
        last = self.last
        if last is not None and (link.term < last.term or (
                link.number <= last.number if self.loose else link.number != last.number + 1)):
            self._break(last, link.number, link.term, link.pos, link.end - link.pos)

    def _break(self, before: ChainLink, index: int, term: int, pos: int, size: int) -> None:
        self._note("dledger-chain", pos, size, f"index {index} in term {term} follows index "
                   f"{before.number} in term {before.term}")

    def _units(self, units: UnitReader, index: Array, term: Array, pos: Array,
               size: Array) -> None:
        rows = units.of(index)
        present = rows["magic"] == dledger.MAGIC_ENTRY
        agree = present & (rows["pos"] == pos) & (rows["size"] == size) & (
            rows["entry_index"] == index) & (rows["term"] == term)
        for row in np.flatnonzero(~agree).tolist():
            unit = rows[row]
            why = "its unit is missing" if not present[row] else (
                f"its unit has index {int(unit['entry_index'])}, term {int(unit['term'])}, "
                f"{int(unit['size'])} bytes at {int(unit['pos'])}")
            self._note("dledger-index", int(pos[row]), int(size[row]),
                       f"entry {int(index[row])}: {why}")

    def _note(self, category: str, pos: int, size: int, detail: str) -> None:
        if len(self.faults) < MAX_LISTED:
            self.faults.append(EntryFault(category, pos, size, detail))
        else:
            self.unlisted += 1

    def merge(self, other: EntryTally, adjacent: bool) -> None:
        """Add the tally of the next range. ``adjacent``: whether the next range starts at the end
        of this range.
        """
        if other.first is not None:
            self.loose |= other.first_loose or not adjacent
            self._follow(other.first)
            self.first = self.first or other.first
            self.last, self.loose = other.last, other.loose
        else:
            self.loose |= other.loose or not adjacent
        self.count += other.count
        self.faults += other.faults
        self.unlisted += other.unlisted


def entry_findings(store: Store, tally: EntryTally, log_end: int, *, live: bool,
                   whole: bool) -> Iterator[Finding]:
    """Yield the findings for the entries of a DLedger log.

    ``log_end``: the physical offset after the last message.
    ``whole``: whether the end of the log was read.
    """
    named: dict[str, int] = {}
    # Entries that do not fit, and those that the index does not point to.
    for fault in sorted(tally.faults, key=lambda fault: fault.pos):
        if fault.category == "dledger-index":  # one line for all of them
            named[fault.detail] = fault.pos
            continue
        yield _finding(store, fault.category, fault.detail, fault.pos, fault.size)
    if named:
        detail, pos = min(named.items(), key=lambda item: item[1])
        yield _finding(store, "dledger-index", detail if len(named) == 1 else
                       f"{plural(len(named), 'unit')} not matching their entries, the first: "
                       f"{detail}", pos, None,
                       len(named))
    if tally.unlisted:
        yield Finding("dledger-entry", "commitlog", f"{tally.unlisted} more damaged entries (only "
                      "counted)", count=tally.unlisted)
    left = store.left_over
    # The end of the log, its index, and the checkpoint.
    if left is not None:
        yield Finding("dledger-left-over", "commitlog", left.detail, count=left.entries,
                      **_place(store, left.end))
    for node in store.nodes:
        yield from _index_files(node)
        if not node.index_listing.files and tally.last is not None:
            yield Finding("dledger-index-missing", "commitlog",
                          f"the index of the {plural(tally.last.number + 1, 'entry', 'entries')} "
                          "is missing",
                          file=os.path.join(node.folder, "index"))
        if whole and not live:
            yield from _against_checkpoint(store, node, tally, log_end)


def _index_files(node: Node) -> Iterator[Finding]:
    for file in node.index_listing.files:
        if file.size != dledger.INDEX_FILE_SIZE:
            yield Finding("file-size", "commitlog", f"a DLedger index file has {file.size} bytes, "
                          f"not {dledger.INDEX_FILE_SIZE}: a broker does not start",
                          file=file.path, position=file.size)


def _against_checkpoint(store: Store, node: Node, tally: EntryTally, log_end: int) -> Iterator[
        Finding]:
    # An unreadable or missing checkpoint.
    path = os.path.join(node.folder, "checkpoint")
    last = -1 if tally.last is None else tally.last.number
    try:
        saved = node.checkpoint
    except FormatError as error:
        yield Finding("dledger-checkpoint", "commitlog", f"{error.path}: {error.reason}", file=path)
        return
    if isinstance(node.own_checkpoint, FormatError):
        yield Finding("dledger-checkpoint", "commitlog",
                      f"{node.own_checkpoint.path}: {node.own_checkpoint.reason}; DLedger does not "
                      "read the intact backup",
                      file=path)
    if saved is None:
        if tally.last is not None:
            yield Finding("dledger-checkpoint", "commitlog",
                          "missing: DLedger learns from the next leader which entries "
                          "are committed",
                          file=path,
                          severity=INFO)
        return
    # Written entries that are missing, and entries that may not be committed.
    end, committed = saved["end_index"], saved["committed_index"]
    if end > last:
        lost = end - last
        committed_lost = max(0, min(committed, end) - last)
        yield Finding(
            "dledger-cut", "commitlog", f"the log ends with entry {last}: "
            f"{plural(lost, 'entry is', 'entries are')} lost, {committed_lost} of them committed",
            count=lost,
            **_place(store, log_end))
    elif tally.last is not None and committed < last and tally.last.term > 0:
        count = last - committed
        yield Finding(
            "dledger-uncommitted", "commitlog", f"{plural(count, 'entry', 'entries')} after index "
            f"{committed} may be uncommitted: another leader may overwrite them",
            file=path, count=count)


def _finding(store: Store, category: str, detail: str, pos: int, size: int | None,
             count: int = 1) -> Finding:
    return Finding(category, "commitlog", detail, length=size, count=count, **_place(store, pos))


def _place(store: Store, pos: int) -> dict[str, Any]:
    file = store.log.file_of(pos)
    if file is None:
        return {"offset": pos}
    return {"file": file.path, "offset": pos, "position": pos - file.base}
