"""Repair a damaged DLedger log from other members of its group (spec: dledger.md §2, §7).

Members have the same entries at the same byte offsets. If two members have an entry with the same
index and term, all entries before it are equal too.

* Damage before a common entry is replaced by a copy from the other member. The copy must agree with
  the remaining bytes and with most of the other members (`rmqctl.repair.salvage.agreement`).
* After the last common entry, entries are copied only if the other member has recorded them as
  committed. The group's leader sends all other entries.
* Where the logs diverge, nothing is copied unless the user has chosen a log.
* A message that can be corrected with the help of its own CRC needs no copy.
* Fillers are never used, because the other members would not have them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import field, replace

import numpy as np

from rmqctl.checks.diff.members import (
    BEFORE,
    BEYOND,
    DAMAGED,
    HOLE,
    WHOLE,
    DifferingEntries,
    Members,
    committed_index,
)
from rmqctl.checks.verify.common import plural
from rmqctl.checks.verify.queue.rows import merged
from rmqctl.damage.ranges import Range
from rmqctl.errors import FormatError, RefusedError
from rmqctl.formats.dledger import HEAD_SIZE
from rmqctl.formats.local.header_rules import of_record
from rmqctl.formats.local.message import decode
from rmqctl.lazy_dataclass import dataclass
from rmqctl.repair.dledger.heads import head_fixes
from rmqctl.repair.dledger.index import IndexCheck, index_steps
from rmqctl.repair.plan import Action, FileContent, Lost, MoveAside, Planned, Step
from rmqctl.repair.salvage.agreement import disputed, records_of
from rmqctl.repair.salvage.comparison import knowledge
from rmqctl.repair.salvage.correct import Chances, Correct, Correction, corrected
from rmqctl.repair.salvage.log_files import Files, laid_over, log_parts
from rmqctl.repair.salvage.salvage import Salvage
from rmqctl.repair.scratch import Scratch
from rmqctl.repair.sources.copying import Copying, widen
from rmqctl.repair.sources.opening import LogSource, file_size_of
from rmqctl.repair.targets import part_target
from rmqctl.scan import text
from rmqctl.scan.damage.entries import whole_entry
from rmqctl.scan.damage.properties import appended_crcs, unsound_texts
from rmqctl.scan.overlay import LogPart, OverlayPiece
from rmqctl.scan.walk import Walk
from rmqctl.store.log.chain import Chain, ChainLink
from rmqctl.store.log.commit_log import CommitLog
from rmqctl.store.log.dledger import UnitReader
from rmqctl.store.log.end import used_size
from rmqctl.store.store import Store

_MAX_RUNS = 1 << 17
_MAX_LOST = 10_000


def mend_log(store: Store, scratch: Scratch, sources: Sequence[LogSource] = (), *,
             keep_ours: bool = False, correct: Correct = "off",
             progress: Callable[[int], None] | None = None) -> tuple[Salvage, Planned]:
    """Plan the repair of a DLedger member's log. Return (the log after the repair, the plan for
    DLedger's index).

    Damaged or lost entries are copied from ``sources``, the open stores of other members. Entries
    that cannot be repaired are left damaged, and are listed as ``lost``. Only ``scratch`` is
    written to.

    ``keep_ours``: whether this store wins where the logs diverge.
    ``correct``: how much of a message may be changed to match its CRC.

    Raises: RefusedError for a source of another group, and for files whose names or sizes do not
    form a log; StoreIOError.
    """
    return _Job(store, scratch, sources, keep_ours, correct, progress).run()


@dataclass(slots=True)
class _Job:
    store: Store
    scratch: Scratch
    sources: Sequence[LogSource]
    keep_ours: bool
    correct: Correct
    progress: Callable[[int], None] | None
    parts: list[LogPart] = field(default_factory=list)
    files: dict[int, FileContent] = field(default_factory=dict)
    actions: list[Action] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    conflicts: int = 0
    void_from: int | None = None
    copied: int = 0
    wanted: list[tuple[int, int]] = field(default_factory=list)
    placed: list[tuple[int, int]] = field(default_factory=list)
    """Byte ranges already copied from a source, after a comparison with the other sources."""
    chances: Chances = field(default_factory=Chances)
    contested: list[tuple[int, int, int]] = field(default_factory=list)
    """Entries that are not copied at first, because another log contradicts them: (index of the
    conflict action, start, end).
    """
    end: int | None = None
    """The end of a preferred source's log, if this member's log must be shortened to that end."""

    def run(self) -> tuple[Salvage, Planned]:
        self.parts = log_parts(self.store, file_size_of(self.store, self.sources))
        self._by_crc()
        for source in sorted(self.sources, key=lambda source: not source.preferred):
            self.notes += source.notes
            self._from(source)
        self._settle()
        self._heads()
        gone = list(self._ended())
        self.parts = [part for part in self.parts if part.path is not None or part.pieces]
        return self._result(gone)

    # -- what is proven without a source ----------------------------------------------------------

    def _heads(self) -> None:
        """Correct the headers of entries whose messages are intact, unless a conflict with a source
        is undecided.
        """
        if self.conflicts:
            return
        with UnitReader(self.store.nodes[0]) as reader:
            fixes = list(head_fixes(self.parts, reader))
        for fix in fixes:
            part = self._part(fix.at)
            self.parts = laid_over(self.parts, {self.parts.index(part): [
                OverlayPiece.of(fix.at - part.base, fix.after)]})
            names = ", ".join(fix.fields)
            self.actions.append(Action(
                "mend record", part_target(self.store, part), None, None,
                f"entry header corrected ({names}): its message and its place in the chain of "
                "entries are intact", offset=fix.at, length=HEAD_SIZE,
                proof={"fields": [*fix.fields], "witnesses": [
                    "its message", "its place in the chain of entries"]}))

    def _by_crc(self) -> None:
        """Correct each message whose CRC matches after one small change, in entries with an intact
        header.
        """
        if self.correct == "off":
            return
        corrections: list[tuple[int, Correction]] = []
        with UnitReader(self.store.nodes[0]) as reader:
            for page in Chain(self.parts, reader):
                for at in page.pos[~page.whole].tolist():
                    raw = self._entry(at)
                    correction = None if raw is None else self._correction(raw[HEAD_SIZE:])
                    if correction is not None:
                        corrections.append((at + HEAD_SIZE + correction.position, correction))
        for place, correction in corrections:
            part = self._part(place)
            self.parts = laid_over(self.parts, {self.parts.index(part): [
                OverlayPiece.of(place - part.base, correction.after)]})
            self.actions.append(Action(
                "correct", part_target(self.store, part), f"0x{correction.before.hex()}",
                f"0x{correction.after.hex()}", correction.in_words(), offset=place,
                length=len(correction.after), proof=correction.proof))

    def _entry(self, at: int) -> bytes | None:
        """Return the bytes of an entry; None if its header is damaged. Raises: StoreIOError."""
        with self._part(at).open() as opened:
            head = whole_entry(opened, at - opened.base)
            return None if head is None else opened.read(at - opened.base, head.size)

    def _correction(self, raw: bytes) -> Correction | None:
        try:
            record = decode(raw)
        except FormatError:
            return None
        if record.total_size != len(raw):
            return None
        correction = corrected(raw, record, self.correct, sealed=True, chances=self.chances)
        return correction if isinstance(correction, Correction) else None

    # -- one source -------------------------------------------------------------------------------

    def _from(self, source: LogSource) -> None:
        # Compare both logs; a log of another group is not a source.
        other = source.store
        assert other is not None
        committed = committed_index(other)
        members = Members([self.store, other], _MAX_RUNS, self.progress, files=self.parts,
                          border=committed)
        members.run()
        if members.common is None and not source.preferred:
            raise RefusedError(
                f"{source.name}: nothing is copied from it, because it has no entry in common with "
                "this store. It belongs to another group, or no intact entry is left here")
        # Where they diverge, the user decides.
        last, behind = (-1, 0) if members.common is None else (
            members.common[0], members.common_end)
        if members.parted is not None and not all(
                self._was_placed(run.pos, run.end) for run in members.runs if run.parted):
            self._conflict(source, members.parted, source.preferred or self.keep_ours)
        if source.preferred and (members.parted is not None or members.common is None):
            upto = members.members[1].chain.last
            self._follow(source, behind, 0 if upto is None else upto.end)
        for run in members.expired:
            if run.kinds == (BEFORE, WHOLE):
                self._before(source, run)
        left = 0
        for run in members.runs:
            if members.parted is None or run.last <= last:
                self._same_term(source, run)
            if run.kinds[0] not in (HOLE, DAMAGED, BEYOND) or run.kinds[1] != WHOLE:
                continue
            if run.last <= last:
                term = 0 if members.common is None else members.common[1]
                why = f"both have entry {last} of term {term}, so all entries before it are equal"
            elif members.parted is None and run.last <= committed:
                why = f"its checkpoint marks entries up to {committed} as committed"
            else:
                left += (run.last - run.first + 1) * (members.parted is None)
                continue
            self._agreed(source, run, why, alone=run.last <= last)
        if left:
            self.notes.append(
                f"{source.name}: {plural(left, 'entry', 'entries')} after its last committed "
                "entry are not copied: the leader sends them, or writes others in their place")
        if members.runs_total > len(members.runs):
            self.notes.append(f"{source.name}: more than {_MAX_RUNS} places differ; entries "
                              "after these are not copied: run recover again")
        marks, ours = members.members[1].chain.marks, members.members[0].chain.marks
        reach = max(behind, *(run.end for run in members.runs if run.last <= committed), 0) if (
            members.parted is None) else behind
        self.wanted += [(at, end) for at, end in marks.items() if at not in ours and at <= reach]
        self._copy_bytes(source)

    def _before(self, source: LogSource, run: DifferingEntries) -> None:
        """Copy entries before this store's first file if the source is preferred; otherwise add a
        note.
        """
        if source.preferred:
            self._copy(source, run, "preferred, although it may have expired here")
        else:
            self.notes.append(
                f"{source.name}: {plural(run.last - run.first + 1, 'entry', 'entries')} before "
                "the first file of this store are lost or have expired (unknown which); --prefer "
                f"{source.name} copies them")

    def _same_term(self, source: LogSource, run: DifferingEntries) -> None:
        """Compare intact entries that differ in the two logs but have the same index and term.

        One of the two copies is damaged in a part that no checksum covers. This store's consume
        queues and index may show which copy is intact.
        """
        if run.parted or run.kinds != (WHOLE, WHOLE) or self._was_placed(run.pos, run.end):
            return
        at = run.pos
        for number in range(run.first, run.last + 1):
            place = source.log.locate(at)
            head = None if place is None else whole_entry(*place)
            if head is None and place is not None:  # after the end mark
                at = place[0].base + place[0].size
                place = source.log.locate(at)
                head = None if place is None else whole_entry(*place)
            if head is None:
                return
            entry = run._replace(first=number, last=number, pos=at, end=at + head.size)
            at = entry.end
            ours, theirs = (self._trust(log, entry.pos) for log in (self.store.log, source.log))
            if ours == theirs:
                self._conflict(source, entry, source.preferred or self.keep_ours)
            if theirs > ours or (ours == theirs and source.preferred):
                self._copy(source, entry, "preferred, although both are intact" if ours == theirs
                           else "consume queues and index of this store match it, or the entry "
                           "here is invalid")

    def _was_placed(self, start: int, end: int) -> bool:
        return any(low < end and high > start for low, high in self.placed)

    def _agreed(self, source: LogSource, run: DifferingEntries, why: str, *, alone: bool) -> None:
        """Copy entries, except those that the remaining bytes or most other sources contradict.

        ``alone``: decide each entry separately. If False, nothing is copied from the first
        contradicted entry on.
        """
        others = [other for other in self.sources if other is not source]
        bad = [] if source.preferred else disputed(
            self.parts, source, others, Range(run.pos, run.end), [])
        if bad and not alone:
            bad = [(bad[0][0], run.end)]
        number, start = run.first, run.pos
        for low, high in [*bad, (run.end, run.end)]:
            count = sum(1 for _ in records_of(source, Range(start, low)))
            if count:
                self._copy(source, run._replace(
                    first=number, last=number + count - 1, pos=start, end=low), why)
            if low < high:
                self._contest(source, number + count, low, high)
            number, start = number + count + 1, high

    def _contest(self, source: LogSource, index: int, start: int, end: int) -> None:
        self.contested.append((len(self.actions), start, end))
        self.actions.append(Action(
            "conflict", part_target(self.store, self._part(start)), None, None,
            f"the remains of entry {index} here, or another source, contradict {source.name}: "
            + ("this store's copy is kept, as preferred" if self.keep_ours else
               f"not copied, unless --prefer {source.name} is given"), "entry", start, end - start,
            {"source": source.name, "index": index, "decided": self.keep_ours}))

    def _settle(self) -> None:
        """Count each contradicted entry as a conflict, unless another source has provided the
        entry.
        """
        for number, start, end in self.contested:
            if self._was_placed(start, end):
                action = self.actions[number]
                proof = action.proof or {}
                self.actions[number] = replace(
                    action, reason=f"the remains of the entry here, or most other sources, "
                    f"contradict {proof['source']}: another source's entry is copied",
                    proof={**proof, "decided": True})
            else:
                self.conflicts += not self.keep_ours

    def _trust(self, log: CommitLog, at: int) -> int:
        """Return the weight of the evidence for an entry.

        The evidence consists of what this store contains about the entry's message, and of header
        fields with values that brokers write.
        """
        place, record = log.locate(at), log.record_at(at + HEAD_SIZE)
        head = None if place is None else whole_entry(*place)
        if head is None or record is None:
            return 0
        return (knowledge(self.store, self.parts[0].witness, record) - len(of_record(record))
                + (head.channel == head.chain_crc == head.body_crc == 0))

    def _conflict(self, source: LogSource, run: DifferingEntries, decided: bool) -> None:
        decision = (f"{source.name} is preferred" if source.preferred else
                "this store's copy is kept, as preferred" if self.keep_ours else
                f"this store's copy is kept, unless --prefer {source.name} is given")
        difference = (f"the logs diverge at entry {run.first}: term {run.terms[0]} here, "
                f"term {run.terms[1]} in {source.name}" if run.parted else
                f"entry {run.first} is intact in both logs but differs")
        self.actions.append(Action(
            "conflict", part_target(self.store, self._part(run.pos)), None, None,
            f"{difference}; {decision}", "entry", run.pos, run.end - run.pos,
            {"source": source.name, "index": run.first, "terms": list(run.terms),
             "decided": decided}))
        self.conflicts += not decided
        if not decided and not run.parted:
            self.notes.append(f"{source.name}: {difference}, and no checksum or entry shows which "
                              "is damaged; this store's copy is kept, unless --prefer "
                              f"{source.name} is given")
        if not decided and run.parted:
            self.notes.append(
                f"{source.name} and this member have entries of different terms from index "
                f"{run.first} on: two leaders wrote them, and the group keeps the entries of its "
                "majority (`rmqctl diff A B C` compares three members). --prefer ours keeps the "
                f"entries of this member, --prefer {source.name} copies the other entries")

    def _follow(self, source: LogSource, start: int, end: int) -> None:
        """Replace the log from byte ``start`` on with the source's log, which ends at ``end``."""
        self.void_from = start
        ours = next((part.end for part in reversed(self.parts)), start)
        for number, part in enumerate(self.parts):
            low = max(start, part.base) - part.base
            if low < part.size:
                self.parts[number] = laid_over(
                    [part], {0: [OverlayPiece(low, part.size - low)]})[0]
        if start < end:
            self.wanted.append((start, end))
            self.placed.append((start, end))
            widen(self.parts, start, end)
            self.actions.append(Action(
                "copy", part_target(self.store, self._part(start)), None, None,
                f"from {source.name}: preferred where the logs diverge", "entry", start,
                end - start,
                {"source": source.name}))
        self.end = end if end < ours else None

    def _copy(self, source: LogSource, run: DifferingEntries, why: str) -> None:
        count = run.last - run.first + 1
        self.wanted.append((run.pos, run.end))
        self.placed.append((run.pos, run.end))
        self.copied += count
        widen(self.parts, run.pos, run.end)
        self.actions.append(Action(
            "copy", part_target(self.store, self._part(run.pos)), None, count,
            f"from {source.name}: {why}", "entry", run.pos, run.end - run.pos,
            {"source": source.name, "index_from": run.first, "index_to": run.last,
             "crc": "right of every message"}))

    def _copy_bytes(self, source: LogSource) -> None:
        """Copy the byte ranges ``wanted`` from the source's log to the same offsets in this log."""
        ranges, self.wanted = merged(self.wanted), []
        copying = Copying(self.scratch)
        for number, part in enumerate(self.parts):
            own_ranges = [Range(max(start, part.base), min(end, part.end)) for start, end in ranges
                    if start < part.end and end > part.base]
            if own_ranges:
                copying.copy(self.parts, self.files, source, number, own_ranges)

    def _part(self, at: int) -> LogPart:
        return next((part for part in self.parts if part.base <= at < part.end), self.parts[-1])

    # -- what comes of it -------------------------------------------------------------------------

    def _ended(self) -> Iterator[Step]:
        """Yield the steps that move aside the files after the end of a preferred source's log."""
        if self.end is None:
            return
        while self.parts and self.parts[-1].base >= self.end:
            part = self.parts.pop()
            if part.path is not None and part.base not in self.files:
                name = part_target(self.store, part)
                self.actions.append(Action("move aside", name, part.size, None, "after the end of "
                                           "the preferred log", "byte"))
                yield MoveAside(name)

    def _clear(self, end: int) -> None:
        """Zero the bytes after the end of the log: they are not an entry, so nothing is lost."""
        part = self._part(end)
        if part.base > end or part.path is None:
            return
        with part.open() as opened:
            used = used_size(opened)
        if part.base + used > end:
            self.parts = laid_over(self.parts, {self.parts.index(part): [
                OverlayPiece(end - part.base, part.base + used - end)]})
            self.actions.append(Action(
                "zero", part_target(self.store, part), None, None, "not an entry; after the last "
                "entry", "", end, part.base + used - end))

    def _gone(self, last: int) -> int:
        """Return the number of entries after ``last`` that the checkpoint counts; 0 if a preferred
        log was followed.
        """
        try:
            saved = self.store.nodes[0].checkpoint
        except FormatError:
            return 0
        return 0 if saved is None or self.void_from is not None else max(
            0, saved["end_index"] - last)

    def _result(self, steps: list[Step]) -> tuple[Salvage, Planned]:
        # Intact, damaged and missing entries, compared with the index.
        node = self.store.nodes[0]
        lost: list[Lost] = []
        total = entries = damaged = 0
        before: ChainLink | None = None
        with UnitReader(node) as reader:
            check, chain = IndexCheck(reader), Chain(self.parts, reader)
            for page in chain:
                check.add(page)
                entries += len(page)
                for row in np.flatnonzero(~page.whole).tolist():
                    link = page.link(row)
                    damaged += 1
                    if len(lost) < _MAX_LOST:
                        lost.append(Lost(None, None, None, link.pos + HEAD_SIZE,
                                         link.end - link.pos - HEAD_SIZE, by="entry"))
                first = page.link(0)
                total += int((np.diff(page.number) - 1).sum()) + (
                    first.number - before.number - 1 if before is not None else 0)
                before = page.link(len(page) - 1)
        total += damaged
        # The end of the log: after the last entry and its end mark.
        last = chain.last
        end = self.parts[-1].end if self.parts and last is None else 0
        if last is not None:
            end = chain.marks.get(last.end, last.end)
        # Lost entries, for which a group does not agree on fillers.
        if total:
            stay = "stays" if total == 1 else "stay"
            self.notes.append(
                f"{plural(total, 'entry', 'entries')} {stay} damaged or lost: fillers are not "
                "written, because the other members of the DLedger group would not have them. "
                f"{self._who} has the committed entries")
        gone = self._gone(-1 if last is None else last.number)
        if gone:
            self.notes.append(
                f"the log ends with entry {-1 if last is None else last.number}, but its "
                f"checkpoint names {plural(gone, 'more entry', 'more entries')}. A leader sends "
                "the missing entries again if most of the group has them. Until then, this member "
                "votes as if it had never had them; if it took part in committing them, start it "
                "only while the other members run")
        total += gone
        if not total:
            self._clear(end)
        # The files of the log, then those of the index.
        files = Files(self.store, self.scratch, self.actions, self.files)
        steps += files.steps(self.parts, {})
        index = index_steps(self.store, node, self.parts, check, self.scratch)
        unmarked = self._with_bad_properties()
        return Salvage(
            tuple(self.parts), tuple(steps), tuple(self.actions), tuple(lost), log_end=end,
            notes=tuple(self.notes), restored=self.copied, lost_total=total,
            messages=entries - damaged, conflicts=self.conflicts, void_from=self.void_from,
            wrong_corrections=self.chances.expected, unmarked=unmarked), index

    @property
    def _who(self) -> str:
        """Describe the members that may have the lost entries: those that the user did not name."""
        return "A further member of the group" if self.sources else (
            "Another member (pass it with --from)")

    def _with_bad_properties(self) -> int:
        """Return the number of messages with damaged properties, and add a note. Most of these
        messages are in intact entries.
        """
        places = _bad_properties([part for part in self.parts if part.head])
        if places:
            self.notes.append(
                f"{plural(len(places), 'message')} with damaged properties, the first at physical "
                f"offset {places[0]}: not changed, because rmqctl does not mark entries of a "
                f"DLedger group. {self._who} may have intact copies")
        return len(places)


def _bad_properties(parts: Sequence[LogPart]) -> list[int]:
    """Return the physical offsets of messages with damaged properties.

    A wrong CRC among the properties counts as damage only if most messages have a correct one
    (`rmqctl.formats.local.append_crc.stored`).

    Raises: StoreIOError.
    """
    unsound: list[int] = []
    wrong: list[int] = []
    messages = sealed = 0
    for part in parts:
        with part.open() as source:
            for batch in Walk(source):
                with_crc, differs = appended_crcs(batch)
                messages, sealed = messages + len(batch), sealed + int((with_crc & ~differs).sum())
                wrong += batch.offset[differs].tolist()
                unsound += batch.offset[
                    ~(with_crc & ~differs) & unsound_texts(text.properties(batch))].tolist()
    return sorted({*unsound, *(wrong if 2 * sealed > messages else ())})
