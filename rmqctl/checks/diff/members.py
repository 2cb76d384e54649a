"""Two or three members of a DLedger group compared entry by entry (spec: dledger.md §2, §3).

Two entries are the same if index, term, byte offset and all bytes are equal. If only index and term
are equal, one of the two entries is damaged, and the logs are the same up to this entry.

Where the terms differ, the logs diverge: two leaders wrote entries, and the group keeps the entries
of the majority. Only entries that are recorded as committed are certain to be kept.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import field
from typing import Any, NamedTuple

import numpy as np

from rmqctl.checks.diff.differences import Difference
from rmqctl.checks.verify.common import plural
from rmqctl.errors import FormatError
from rmqctl.formats import dledger
from rmqctl.lazy_dataclass import dataclass
from rmqctl.scan.frames import Array, distinct
from rmqctl.store.log.chain import NONE, Chain, ChainEntries, File
from rmqctl.store.log.dledger import Node, UnitReader
from rmqctl.store.store import Store

NAMES = "abc"
_MAX_TERMS = 10_000
BEFORE, BEYOND, HOLE, WHOLE, DAMAGED = range(5)
"""State of an index in a member's log.

In this order: the entry has expired, is not yet written, is in damaged bytes, is intact, or is
damaged.
"""


class Term(NamedTuple):
    """Adjacent entries of one term. ``start_offset``: byte offset of the first entry."""

    term: int
    first_index: int
    last_index: int
    start_offset: int


@dataclass(slots=True)
class DLedgerMember:
    """A member of the group.

    * ``damaged``: number of its damaged entries that another member has
    * ``behind``: number of entries of other members after its last entry
    """

    name: str
    store: Store
    node: Node
    chain: Chain
    terms: list[Term] = field(default_factory=list)
    damaged: int = 0
    behind: int = 0

    @property
    def last(self) -> int:
        return -1 if self.chain.last is None else self.chain.last.number

    @property
    def last_term(self) -> int:
        return -1 if self.chain.last is None else self.chain.last.term

    @property
    def begin(self) -> int:
        """Return the byte offset of the member's first file."""
        return next((file.base for file in self.store.log.files if file.head), 0)

    @property
    def committed(self) -> int | None:
        """Return the index of the last entry that the checkpoint records as committed; None if the
        checkpoint is missing.
        """
        index = committed_index(self.store)
        return None if index < 0 else index

    def as_dict(self) -> dict[str, Any]:
        first, last = self.chain.first, self.chain.last
        left = self.store.left_over
        return {
            "store": self.store.root, "node": self.node.name,
            "first_index": None if first is None else first.number,
            "last_index": None if last is None else last.number,
            "end_offset": None if last is None else last.end,
            "terms": [term._asdict() for term in self.terms],
            "committed_index": self.committed, "behind": self.behind, "damaged": self.damaged,
            "left_over": 0 if left is None else left.entries}

    def note_terms(self, entries: ChainEntries) -> None:
        starts = np.flatnonzero(np.diff(entries.term, prepend=entries.term[0] - 1)).tolist()
        for low, high in zip(starts, [*starts[1:], len(entries)], strict=True):
            term, last = int(entries.term[low]), int(entries.number[high - 1])
            if self.terms and self.terms[-1].term == term:
                self.terms[-1] = self.terms[-1]._replace(last_index=last)
            elif len(self.terms) < _MAX_TERMS:
                self.terms.append(Term(term, int(entries.number[low]), last, int(entries.pos[low])))


class DifferingEntries(NamedTuple):
    """A run of entries that differ between members: indexes ``first`` to ``last``.

    * ``pos``, ``end``: byte offsets ``[pos, end)``
    * ``kinds``: for each member, the state of its entries
    * ``terms``: for each member, the term of its entries
    * ``groups``: for each member, a number that is the same for members with equal entries
    """

    first: int
    last: int
    kinds: tuple[int, ...]
    groups: tuple[int, ...]
    terms: tuple[int, ...]
    pos: int
    end: int

    @property
    def parted(self) -> bool:
        """Return whether two members have entries from different terms."""
        return len({term for kind, term in zip(self.kinds, self.terms, strict=True)
                    if kind == WHOLE}) > 1

    def words(self) -> str:
        states = []
        for number, (kind, term) in enumerate(zip(self.kinds, self.terms, strict=True)):
            alike = [NAMES[other] for other in range(len(self.kinds))
                     if other < number and kind == self.kinds[other] == WHOLE
                     and self.groups[other] == self.groups[number]]
            states.append(f"{NAMES[number]}: " + (
                "expired" if kind == BEFORE else "missing" if kind == BEYOND else
                "damaged" if kind in (HOLE, DAMAGED) else
                f"as {alike[0]}" if alike else f"term {term}"))
        count = self.last - self.first + 1
        which = f"entry {self.first}" if count == 1 else f"entries {self.first} to {self.last}"
        intact_groups = [group for kind, group in zip(self.kinds, self.groups, strict=True)
                         if kind == WHOLE]
        more = "" if self.parted or len(set(intact_groups)) < 2 else (
            "; their bytes differ, and no CRC shows which is damaged")
        return f"{which}: {', '.join(states)}{more}"


@dataclass(slots=True)
class Members:
    """The comparison: call `run`, then read the results.

    * ``common``: index, term and byte offset of the last entry that all members have before their
      logs diverge
    * ``parted``: the entries where they diverge
    * ``runs``: the first ``most`` runs of differing entries
    * ``count``: number of entries in all runs
    * ``files``: the first member's log files after a planned repair, instead of the files on disk
    * ``border``: the index after which a new run starts
    """

    stores: Sequence[Store]
    most: int = 1000
    progress: Callable[[int], None] | None = None
    files: Sequence[File] | None = None
    border: int = -1
    members: list[DLedgerMember] = field(default_factory=list)
    equal: int = 0
    count: int = 0
    expired: list[DifferingEntries] = field(default_factory=list)
    """The first ``most`` runs of entries that have expired in some members."""
    runs: list[DifferingEntries] = field(default_factory=list)
    runs_total: int = 0
    common: tuple[int, int, int] | None = None
    common_end: int = 0
    """Byte offset after the last common entry."""
    parted: DifferingEntries | None = None

    def run(self) -> None:
        """Read the logs of all members, and compare their entries.
        Raises: StoreIOError.
        """
        readers = [UnitReader(store.nodes[0]) for store in self.stores]
        self.members = [
            DLedgerMember(
                NAMES[number], store, store.nodes[0],
                Chain(store.log.files if number or self.files is None else self.files, reader,
                      self.progress))
            for number, (store, reader) in enumerate(zip(self.stores, readers, strict=True))]
        try:
            open_run: DifferingEntries | None = None
            for run in self._pieces():
                if open_run is not None and run.first != self.border + 1 and _goes_on(
                        open_run, run):
                    open_run = open_run._replace(last=run.last, end=run.end)
                    continue
                if open_run is not None:
                    self._add(open_run)
                open_run = run
            if open_run is not None:
                self._add(open_run)
        finally:
            for reader in readers:
                reader.close()

    def _add(self, run: DifferingEntries) -> None:
        count = run.last - run.first + 1
        for member, kind in zip(self.members, run.kinds, strict=True):
            member.damaged += count * (kind in (HOLE, DAMAGED))
            member.behind += count * (kind == BEYOND)
        if all(kind in (BEFORE, WHOLE) for kind in run.kinds) and len(
                {group for kind, group in zip(run.kinds, run.groups, strict=True)
                 if kind == WHOLE}) == 1:
            if len(self.expired) < self.most:
                self.expired.append(run)
            return
        self.count += count
        if run.parted and self.parted is None:
            self.parted = run
        self.runs_total += 1
        if len(self.runs) < self.most:
            self.runs.append(run)

    def _pieces(self) -> Iterator[DifferingEntries]:
        """Yield runs of differing entries in index order."""
        pages = [iter(member.chain) for member in self.members]
        held: list[ChainEntries] = [NONE for _ in pages]
        done = [False for _ in pages]
        while True:
            for number, page in enumerate(pages):
                while not done[number] and not len(held[number]):
                    more = next(page, None)
                    if more is None:
                        done[number] = True
                    else:
                        self.members[number].note_terms(more)
                        held[number] = more
            if not any(len(entries) for entries in held):
                return
            upto = min(int(entries.number[-1]) for entries in held if len(entries))
            now = [entries.select(slice(0, int(np.searchsorted(entries.number, upto, "right"))))
                   for entries in held]
            held = [entries.select(slice(len(part), None))
                    for entries, part in zip(held, now, strict=True)]
            yield from self._compared(now)

    def _compared(self, parts: Sequence[ChainEntries]) -> Iterator[DifferingEntries]:
        numbers = distinct(np.concatenate([part.number for part in parts]))
        rows = [np.searchsorted(part.number, numbers) for part in parts]
        kinds, groups, terms = (np.zeros((len(parts), len(numbers)), np.int64) for _ in range(3))
        pos, end = (np.full(len(numbers), -1, np.int64) for _ in range(2))
        columns: list[tuple[Array, ...]] = []
        for index, (part, row) in enumerate(zip(parts, rows, strict=True)):
            there = row < len(part)
            there[there] = part.number[row[there]] == numbers[there]
            at = row[there]
            first, member = self.members[index].chain.first, self.members[index]
            kinds[index] = HOLE
            if first is not None:
                kinds[index, numbers < first.number] = BEFORE
            kinds[index, numbers > member.last] = BEYOND
            kinds[index, there] = np.where(part.whole[at], WHOLE, DAMAGED)
            identity = []
            for column in (part.term, part.pos, part.size, part.crc):
                full = np.full(len(numbers), -1, np.int64)
                full[there] = column[at]
                identity.append(full)
            terms[index] = identity[0]
            columns.append(tuple(identity))
            groups[index] = index
            for other in range(index - 1, -1, -1):
                same = np.logical_and.reduce([left == right for left, right in zip(
                    columns[other], columns[index], strict=True)]) & there
                groups[index, same] = groups[other, same]
        for kind in (WHOLE, DAMAGED):  # their places, by an intact one if there is one
            for index, (_, at, size, _) in enumerate(columns):
                new = (pos < 0) & (kinds[index] == kind)
                pos[new], end[new] = at[new], (at + size)[new]
        for index, member in enumerate(self.members):  # its first file begins with damage
            kinds[index, (kinds[index] == BEFORE) & (pos >= member.begin)] = HOLE
        terms[kinds != WHOLE] = -1
        alike = (kinds == WHOLE).all(axis=0) & (groups == groups[0]).all(axis=0)
        self.equal += int(alike.sum())
        last = np.flatnonzero(alike)
        if len(last) and self.parted is None:
            parting = self._first_parting(kinds, terms)
            last = last[last < parting]
            if len(last):
                self.common = (int(numbers[last[-1]]), int(terms[0, last[-1]]), int(pos[last[-1]]))
                self.common_end = int(end[last[-1]])
        odd = np.flatnonzero(~alike)
        if not len(odd):
            return
        cut = np.ones(len(odd), bool)
        cut[1:] = (np.diff(numbers[odd]) != 1) | (numbers[odd][1:] == self.border + 1)
        for table in (kinds, groups, terms):
            cut[1:] |= (np.diff(table[:, odd], axis=1) != 0).any(axis=0)
        starts = np.flatnonzero(cut).tolist()
        for low, high in zip(starts, [*starts[1:], len(odd)], strict=True):
            start, until = int(odd[low]), int(odd[high - 1])
            which, alike_as, of_term = (tuple(table[:, start].tolist())
                                        for table in (kinds, groups, terms))
            yield DifferingEntries(int(numbers[start]), int(numbers[until]), which, alike_as,
                                   of_term, int(pos[start]), int(end[until]))

    @staticmethod
    def _first_parting(kinds: Array, terms: Array) -> int:
        """Return the first column in which two members have intact entries of different terms.

        Each column belongs to one entry index. If no column qualifies, return the number of
        columns.
        """
        low = np.where(kinds == WHOLE, terms, np.iinfo(np.int64).max).min(axis=0)
        high = np.where(kinds == WHOLE, terms, -1).max(axis=0)
        columns = np.flatnonzero((high >= 0) & (low < high))
        return int(columns[0]) if len(columns) else kinds.shape[1]

    # -- what it means ----------------------------------------------------------------------------

    @property
    def same(self) -> bool:
        return not self.count

    @property
    def newest(self) -> list[DLedgerMember]:
        """Return all members that have the newest last entry."""
        top = max((member.last_term, member.last) for member in self.members)
        return [member for member in self.members if (member.last_term, member.last) == top]

    @property
    def electable(self) -> list[str] | None:
        """Return the members of a group of three that would get the vote of another member.

        These are the members whose log is at least as new as the log of another member. None for
        two members, as their group may be larger.
        """
        if len(self.members) < 3:
            return None
        logs = sorted((member.last_term, member.last) for member in self.members)
        return [member.name for member in self.members
                if (member.last_term, member.last) >= logs[1]]

    @property
    def committed(self) -> int | None:
        """Return the greatest index that any member records as committed."""
        indexes = [member.committed for member in self.members if member.committed is not None]
        return max(indexes, default=None)

    def as_dict(self) -> dict[str, Any]:
        parted = self.parted
        return {
            "members": {member.name: member.as_dict() for member in self.members},
            "equal": self.equal, "different": self.count,
            "common": None if self.common is None else dict(zip(
                ("index", "term", "offset"), self.common, strict=True)),
            "divergence": None if parted is None else {
                "index": parted.first, "offset": parted.pos, "terms": {
                    member.name: term for member, kind, term in zip(
                        self.members, parted.kinds, parted.terms, strict=True) if kind == WHOLE}},
            "committed_index": self.committed,
            "newest": [member.name for member in self.newest], "electable": self.electable}

    def remarks(self) -> Iterator[str]:
        """Yield sentences that describe the result."""
        committed, newest, parted = self.committed, self.newest, self.parted
        top = newest[0]
        # Where the logs diverge, and which of them the group keeps.
        if self.common is None:
            yield "no entry is the same in all: these are probably not members of one group"
        elif parted is not None:
            terms = ", ".join(f"{member.name} has term {term}" for member, kind, term in zip(
                self.members, parted.kinds, parted.terms, strict=True) if kind == WHOLE)
            yield f"the logs diverge at entry {parted.first}, at {parted.pos}: {terms}"
            names = " and ".join(member.name for member in newest)
            yield (f"{names} has the newest log (entry {top.last} of term {top.last_term}); the "
                   "group keeps the entries that most members have, and truncates the other logs "
                   "where they diverge")
            if self.electable is not None:
                names = " and ".join(self.electable)
                yield f"of these three, {names} can be elected leader, judging by the others' logs"
            if committed is not None and committed >= parted.first:
                who = " and ".join(member.name for member in self.members
                                   if (member.committed or -1) >= parted.first)
                yield (f"entries from {parted.first} on are marked as committed in {who}: members "
                       "of a group never diverge at a committed entry, so one of these members "
                       "belongs to another group or was restored from a copy")
        elif self.count:
            yield f"the logs do not diverge; the last entry that all have is {self.common[0]}"
        # The entries that each member lacks.
        for member in self.members:
            if member.behind:
                short = max(0, min(committed or -1, top.last) - member.last)
                yield (f"{member.name} ends with entry {member.last}: "
                       f"{plural(member.behind, 'entry', 'entries')} missing, {short} of them "
                       "marked as committed; a running leader sends them")
            if member.damaged:
                yield (f"{member.name}: {plural(member.damaged, 'entry', 'entries')} damaged here "
                       "but intact in another member")
        # Entries that may still be overwritten.
        if committed is not None and committed < top.last and top.last_term > 0:
            yield (f"{plural(top.last - committed, 'entry', 'entries')} after {committed} in "
                   f"{top.name} are not marked as committed in any member")

    def differences(self) -> Iterator[Difference]:
        """Yield a difference for each run of differing entries."""
        for run in self.runs:
            yield Difference("entry", physical_offset=run.pos + dledger.HEAD_SIZE,
                             length=run.end - run.pos - dledger.HEAD_SIZE,
                             fields=("term",) if run.parted else (), detail=run.words())


def _goes_on(run: DifferingEntries, other: DifferingEntries) -> bool:
    return run.last + 1 == other.first and (run.kinds, run.groups, run.terms) == (
        other.kinds, other.groups, other.terms)


def committed_index(store: Store) -> int:
    """Return the committed index from the checkpoint of a store's node; -1 if it is unknown."""
    try:
        saved = store.nodes[0].checkpoint
    except FormatError:
        return -1
    return -1 if saved is None else max(-1, saved["committed_index"])


def are_members(stores: Sequence[Store]) -> bool:
    """Return whether each store belongs to a single DLedger node."""
    return all(store.layout.member for store in stores)
