"""Replace damaged spans of a log with fillers, in place, without losing intact messages.

A broker truncates its log at the first record that it cannot read, and deletes the rest
(recovery.md §3-§4). To prevent this, each damaged span is filled completely with well-formed
messages (`rmqctl.repair.salvage.filler`). Each lost message that is known from consume queues,
damaged records or gaps in the queue offsets gets a separate filler. Then the log can be read to its
end, and no queue has a gap.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import field, replace
from itertools import count
from typing import Literal

from rmqctl.checks.verify.common import plural
from rmqctl.damage.evidence import Gatherer, HoleEntries
from rmqctl.damage.ranges import Range, Ranges
from rmqctl.damage.records import Records
from rmqctl.damage.stale import contradicted_places, stale_records, unclear_places
from rmqctl.damage.survey.survey import Region, Survey
from rmqctl.damage.survey.surveyor import Surveyor
from rmqctl.damage.verdicts import Condemned, Verdict
from rmqctl.errors import RefusedError
from rmqctl.formats.local.header_rules import FLAG_BITS, STORE_HOST
from rmqctl.formats.local.message import BLANK_SIZE
from rmqctl.lazy_dataclass import dataclass
from rmqctl.repair.plan import Action, Dropped, Lost, Step
from rmqctl.repair.salvage import filler
from rmqctl.repair.salvage.checkpoint_times import note_on_times
from rmqctl.repair.salvage.copies import Copier, CopyResult
from rmqctl.repair.salvage.correct import Chances, Correct
from rmqctl.repair.salvage.filler import Style
from rmqctl.repair.salvage.layout import FilledMessage, Filling, FillSpan, Mode
from rmqctl.repair.salvage.log_files import Files, laid_over, log_parts, padded, without_empty_end
from rmqctl.repair.salvage.lost import Collector, KnownLosses, dropped, lost_messages
from rmqctl.repair.salvage.mend.mend import Mending, keep, mark, mend, put_back
from rmqctl.repair.salvage.mend.properties import NO_ROOM
from rmqctl.repair.scratch import Scratch
from rmqctl.repair.sources.opening import LogSource, file_size_of
from rmqctl.scan.overlay import LogPart, OverlayPiece
from rmqctl.store.problems import ambiguity, contradicted, earlier_life
from rmqctl.store.store import Store

MissingFile = Literal["fillers", "blank"]
Ambiguous = Literal["leave-out", "keep"]
Fillers = Literal["in-place", "none"]
_ROUNDS = 6
STALE, CONTRADICTED, UNDECIDED = NOT_OURS = (
    Verdict.STALE, Verdict.CONTRADICTED, Verdict.UNDECIDED)
"""Verdicts on complete records that do not count as messages, although every byte may be right."""
_OF_MODE = {"bit": "bit", "byte": "byte or a torn run"}
_OTHER_WAYS = ("--correct byte and --keep-damaged reduce their number; --fillers in-place writes "
               "them")


@dataclass(frozen=True, slots=True)
class Salvage:
    """The planned log, and the steps that create it.

    * ``parts``: the files of the log with all changes applied.
    * ``steps``: create and patch commitlog files, and move empty ones aside.
    * ``lost``: the first lost messages; ``lost_total``: number of all.
    * ``log_end``: physical offset at which the next message is appended.
    * ``notes``: warnings for the user.
    * ``restored``: number of messages that are restored completely.
    * ``inner_batch_topics``: topics whose messages show that they have batch queues.
    * ``ambiguous``: number of skipped records that may be messages.
    * ``messages``: number of intact messages.
    * ``kept_damaged``: number of messages that are delivered although a part of them is lost.
    * ``conflicts``: number of positions at which a source has different intact messages, and for
      which the user has not chosen between ours and the source's.
    * ``wrong_topics``: number of messages that keep an invalid topic.
    * ``void_from``: physical offset from which a preferred source's log replaces the rest of ours.
    * ``unmarked``: number of messages with damaged properties that are not changed.
    * ``dropped``: lost messages without a filler.
    * ``wrong_corrections``: expected number of wrong corrections
      (`rmqctl.repair.salvage.correct.Chances`).
    * ``fillers``: number of fillers.
    * ``verdicts``: verdicts on complete records that do not count as messages, by physical offset.
    """

    parts: tuple[LogPart, ...]
    steps: tuple[Step, ...] = ()
    actions: tuple[Action, ...] = ()
    lost: tuple[Lost, ...] = ()
    log_end: int = 0
    notes: tuple[str, ...] = ()
    restored: int = 0
    lost_total: int = 0
    inner_batch_topics: frozenset[str] = frozenset()
    ambiguous: int = 0
    messages: int = 0
    kept_damaged: int = 0
    conflicts: int = 0
    wrong_topics: int = 0
    void_from: int | None = None
    unmarked: int = 0
    dropped: Dropped = field(default_factory=Dropped)
    wrong_corrections: float = 0.0
    fillers: int = 0
    verdicts: Mapping[int, Verdict] = field(default_factory=dict)

    @property
    def empty(self) -> bool:
        """Return whether the log needs no change."""
        return not self.steps


def salvage(store: Store, generation: int | None = None, *,
            missing_file: MissingFile = "fillers", ambiguous: Ambiguous = "leave-out",
            batch_topics: Iterable[str] | None = None,
            progress: Callable[[int], None] | None = None,
            scratch: Scratch | None = None, correct: Correct = "bit",
            keep_damaged: bool = False, fillers: Fillers = "in-place",
            sources: Sequence[LogSource] = (), keep_ours: bool = False) -> Salvage:
    """Plan the repair of a log; nothing is changed.

    * ``generation``: major version (4 or 5) of the broker whose rules apply; default: the store's.
    * ``missing_file``: how to replace a file that is missing between others: with fillers for the
      known messages, or with one blank record.
    * ``ambiguous``: what to do with complete records after damage that may be messages or part of a
      body.
    * ``progress``: called with the bytes read.
    * ``scratch``: folder in which missing files with very many messages are built, instead of in
      memory. It must exist until the steps are carried out.
    * ``correct``: how much of a record may be changed if its CRC proves the original.
    * ``keep_damaged``: whether to deliver messages with a body that cannot be corrected, marked as
      damaged.
    * ``fillers``: ``none`` creates no fillers.
    * ``sources``: other stores with the same log, from which lost bytes are copied first. They must
      stay open.
    * ``keep_ours``: whether to keep this store's messages where a source has different intact ones.

    Raises: StoreIOError; RefusedError for a source with another log, and for files whose names or
    sizes no broker can have written.
    """
    topics = ({topic for topic, _ in store.queues.batch} if batch_topics is None
              else set(batch_topics))
    return _Job(store, generation or store.generation, missing_file, ambiguous, topics, progress,
                scratch, correct, keep_damaged, fillers, sources=sources,
                keep_ours=keep_ours).run()


@dataclass(slots=True)
class _Job:
    store: Store
    generation: int
    missing_file: MissingFile
    ambiguous: Ambiguous
    batch_topics: set[str]
    progress: Callable[[int], None] | None
    scratch: Scratch | None
    correct: Correct
    keep_damaged: bool
    fillers: Fillers
    kept: int = 0
    condemned: Condemned = field(default_factory=Condemned)
    confirmed: dict[int, int] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    actions: list[Action] = field(default_factory=list)
    sources: Sequence[LogSource] = ()
    keep_ours: bool = False
    left_out: list[tuple[int, int | None]] = field(default_factory=list)
    """Physical offsets and sizes of skipped records that may be messages."""
    refused: dict[int, str] = field(default_factory=dict)
    by_byte: set[int] = field(default_factory=set)
    chances: Chances = field(default_factory=Chances)
    topics: dict[int, str] = field(default_factory=dict)
    """Reasons why invalid topics are kept, by physical offset."""
    unmarked: dict[int, str] = field(default_factory=dict)
    """Reasons why messages with damaged properties are not marked, by physical offset."""
    tolerated: set[int] = field(default_factory=set)
    """Physical offsets of messages that are kept in spite of an appended CRC mismatch, because
    their body is intact.
    """
    settled: set[int] = field(default_factory=set)
    """Physical offsets of messages that are kept damaged, regardless of what contradicts them."""
    copied: CopyResult = field(default_factory=lambda: CopyResult([]))
    surveyor: Surveyor = field(init=False)

    def __post_init__(self) -> None:
        self.surveyor = Surveyor(self.generation, self.batch_topics, self.progress,
                                 store=self.store)

    def run(self) -> Salvage:
        parts: Sequence[LogPart] = log_parts(self.store,
                                             file_size_of(self.store, self.sources))
        if not parts and self.sources:
            witness = self.store.new_witness()
            parts = [LogPart(part.base, part.size, None, witness=witness)
                     for part in self.sources[0].parts()]
        if not parts:
            return Salvage(())
        files = self.store.log.files
        if files and all(file.size != parts[0].size for file in files):
            self.notes.append(f"every commitlog file is shorter than the {parts[0].size} bytes "
                              "that the names imply; if mappedFileSizeCommitLog differs, pass "
                              "--commitlog-file-size (a broker with another size does not start)")
        restored = 0
        looked_elsewhere = False
        survey = self._survey(parts)
        # Complete records that are not, or may not be, messages of this log.
        stale, beside = stale_records(parts, survey)
        if self.condemned.add(stale, STALE):
            survey = self._survey(parts)
        if self.ambiguous != "keep":
            unclear = set() if self.sources else unclear_places(parts, survey)
            is_new = self.condemned.add(contradicted_places(parts, survey), CONTRADICTED)
            if self.condemned.add(beside | unclear, UNDECIDED) or is_new:
                survey = self._survey(parts)
        if self.sources:
            parts, survey = self._copy(survey, parts)
            restored = self.copied.messages
        kept: set[int] = set()
        for rounds in count():
            # Records that the user keeps. A restored message may make further records undecided.
            if self.ambiguous == "keep" and not kept >= {place for place, _ in survey.unclear}:
                kept.update(place for place, _ in survey.unclear)
                self.confirmed.update(survey.unclear)
                survey = self._survey(parts)
            # Records that contradict their appended CRC count as damaged from now on.
            if self.condemned.add(survey.doubtful() - self.tolerated):
                survey = self._survey(parts)
            # Collect the entries of the damaged parts, and restore records with this evidence.
            gatherer = Gatherer(self.store, survey.runs, survey.regions, parts[-1].end,
                                self._by_column(parts, survey), self.copied.yielded)
            evidence = gatherer.gather()
            if rounds >= _ROUNDS:
                break
            mending = mend(self.store, parts, survey, gatherer, evidence, self.condemned.places,
                           self.correct, self.chances, kept)
            self.refused, self.by_byte = mending.refused, mending.by_byte
            self.topics = mending.topics
            if not self._is_news(mending):
                # Not before: moved pages must not overwrite records that are intact at their
                # position.
                if not looked_elsewhere:
                    looked_elsewhere = True
                    mending = put_back(self.store, parts, survey)
                if not self._is_news(mending):
                    mending = mark(self.store, parts, survey, evidence)
                    self.kept += len(mending.marked)
                    self.unmarked = mending.unmarked | dict.fromkeys(
                        self.tolerated & survey.doubtful(), NO_ROOM)
                if not self._is_news(mending):
                    mending = keep(self.store, parts, survey, gatherer, evidence, self.generation,
                                   self.condemned.of(*NOT_OURS), bodies=self.keep_damaged)
                    self.kept += len(mending.actions)
                    self.settled |= mending.corrected
                    full = mending.unmarked.keys() & self.condemned.places
                    self.tolerated |= full
                    if not mending.pieces:
                        full |= mending.corrected & self.condemned.places
                    if full:
                        self.condemned.acquit(full)
                        survey = self._survey(parts)
                        continue
                if not self._is_news(mending):
                    break
            # Apply the pieces and survey the log again: only records that the survey accepts count.
            before = parts, dict(self.confirmed), self.condemned.copy()
            parts = laid_over(parts, mending.pieces)
            self.confirmed.update(mending.confirmed)
            self.condemned.acquit(mending.corrected)
            self.condemned.add(mending.rejected - self.settled)
            seen = self._survey(parts)
            if mending.moved and seen.messages <= survey.messages:
                parts, self.confirmed, self.condemned = before  # no page was moved
                continue
            survey = seen
            # A page that was put back may be stale; records that the user keeps stay.
            if mending.moved and self.condemned.add(
                    stale_records(parts, seen)[0] - kept, STALE):
                survey = self._survey(parts)
            restored += mending.messages
            self.actions += mending.actions
        for verdict, words in ((CONTRADICTED, contradicted), (UNDECIDED, earlier_life)):
            if left := {place for place in self.condemned.of(verdict)
                        if not self.copied.has(place)}:
                self.left_out += [(place, None) for place in sorted(left)]
                self.notes.append(f"{words(len(left), min(left))}. They are left out, unless "
                                  "--ambiguous keep is given")
        if self.ambiguous != "keep" and survey.unclear:
            self.left_out += survey.unclear
            self.notes.append(f"{ambiguity(survey.unclear)}; they are left out, unless "
                              "--ambiguous keep is given")
        if (times := note_on_times(self.store, self.left_out)) is not None:
            self.notes.append(times)
        return self._fill(parts, survey, gatherer, evidence, restored)

    def _copy(self, survey: Survey, parts: Sequence[LogPart]) -> tuple[Sequence[LogPart], Survey]:
        """Return the log with damaged or missing bytes copied from the sources, and its survey."""
        def survey_of(parts: Sequence[LogPart], places: Sequence[tuple[int, int]],
                      disproved: Iterable[int]) -> Survey:
            self.condemned.acquit([place for place in self.condemned.places
                                   if any(start <= place < end for start, end in places)])
            self.condemned.add(disproved)
            return self._survey(parts)

        if self.condemned.add(survey.doubtful()):
            survey = self._survey(parts)
        records = Records(parts)
        strange = [(place, place + len(records.read(place, None)[2]))
                   for place in sorted(self.condemned.of(*NOT_OURS))]
        copier = Copier(self.store, self.scratch, self.keep_ours, survey_of, strange=strange)
        self.copied, survey = copier.run(parts, survey, self.sources)
        self.notes += self.copied.notes
        self.actions += self.copied.actions
        # The source proves that copied records are not part of a body, even after bytes that it
        # lacks.
        copied = Ranges()
        for start, end in sorted(self.copied.places):
            copied.put(Range(start, end))
        while proven := {place: size for place, size in survey.unclear
                         if place not in self.confirmed and any(copied.within(place, place + 1))}:
            self.confirmed.update(proven)
            survey = self._survey(self.copied.parts)
        return self.copied.parts, survey

    def _by_column(self, parts: Sequence[LogPart], survey: Survey) -> list[Region]:
        """Return the regions that each cover a complete missing file: their messages are known only
        from consume queues.
        """
        if self.scratch is None:
            return []
        return [region for region in survey.regions if (region.start, region.end) == (
            parts[region.file].base, parts[region.file].end) and parts[region.file].path is None
            and not parts[region.file].pieces]

    def _is_news(self, mending: Mending) -> bool:
        return bool(mending.pieces or mending.rejected - self.condemned.places - self.settled
                    or mending.confirmed.items() - self.confirmed.items())

    def _survey(self, parts: Sequence[LogPart]) -> Survey:
        return self.surveyor.run(parts, self.condemned.places, self.confirmed)

    def _fill(self, parts: Sequence[LogPart], survey: Survey, gatherer: Gatherer,
              evidence: HoleEntries, restored: int) -> Salvage:
        style = self._style(survey)
        # The lost messages. Records from an earlier use of the file are no losses.
        losses = Collector(self.store, parts, survey, gatherer, style).collect(evidence)
        self.notes += [*losses.notes, *evidence.unreadable, *self._oddities(survey, evidence)]
        aged = self.condemned.of(CONTRADICTED, UNDECIDED)
        losses.filled = filled = [message for message in losses.filled if not (
            message.by == "record" and message.physical in aged)]
        losses.without_row = [(place, size, record) for place, size, record in losses.without_row
                             if place not in aged]
        # Messages of known physical offset go into their regions, the others wait for space.
        spans = self._spans(parts, survey, losses)
        by_place = sorted((message for message in filled if message.physical is not None),
                          key=lambda message: message.physical or 0)
        waiting = sorted((message for message in filled if message.physical is None), key=_by_room)
        # Fill each region with its own messages, then with as many waiting messages as fit.
        fillings = []
        number = 0
        for region, span in spans:
            while number < len(by_place) and (by_place[number].physical or 0) < span.start:
                number += 1
            while number < len(by_place) and (by_place[number].physical or 0) < span.end:
                span.items.append(by_place[number])
                number += 1
            filling = Filling(span, style)
            filling.settle()
            if filling.left:
                waiting = sorted([*waiting, *filling.left], key=_by_room)
            if waiting:
                waiting = filling.place(waiting)
            fillings.append((region, filling))
        return self._result(parts, survey, fillings, losses, evidence, restored)

    def _oddities(self, survey: Survey, evidence: HoleEntries) -> list[str]:
        """Return notes about damage that is not repaired, intact messages that some brokers reject,
        and entries that point beyond the end of the log.
        """
        # Messages that other broker versions reject.
        oddities = []
        if self.generation < 5 and survey.newer:
            oddities.append(f"v2 messages, the first at physical offset {survey.newer[0]}: a "
                            "broker before 5.1.0 truncates the log there; they are left as they "
                            "are")
        if self.generation < 5 and survey.inner_batch_topics:
            oddities.append(f"topic {min(survey.inner_batch_topics)} has inner batches, which only "
                            "brokers from 5.0.0 on write, but nothing else in the store is from "
                            "5.x: if its queues are batch queues, pass --broker-version 5.3.3")
        # Damage that is not repaired, with the reason.
        if self.refused:
            place, why = min(self.refused.items())
            oddities.append(f"{plural(len(self.refused), 'damaged record')} not corrected: a "
                            f"changed {_OF_MODE[self.correct]} is a possible explanation, but not "
                            f"beyond doubt; the first is at physical offset {place}: {why}")
        if self.by_byte:
            oddities.append(f"{plural(len(self.by_byte), 'damaged message')} that one changed byte "
                            "or a torn run explains, the first at physical offset "
                            f"{min(self.by_byte)}: "
                            "--correct byte restores the original")
        if self.unmarked:
            place, why = min(self.unmarked.items())
            oddities.append(f"{plural(len(self.unmarked), 'message')} with damaged properties, the "
                            f"first at physical offset {place}: {why}; left unchanged")
        if self.topics:
            place, why = min(self.topics.items())
            oddities.append(f"{plural(len(self.topics), 'message')} with a wrong topic, the first "
                            f"at physical offset {place}: {why}; left unchanged")
        # Unusual messages that do no harm, or only with some settings.
        if survey.undated:
            oddities.append(f"messages with store time 0, the first at physical offset "
                            f"{survey.undated[0]}: a broker does not start its recovery in a file "
                            "that begins with such a message; they are left as they are")
        flagged = [fault.offset for fault in survey.headers.faults
                   if FLAG_BITS in fault.categories]
        if flagged:
            oddities.append(f"{plural(len(flagged), 'message')} with system flags that no "
                            f"known release writes, the first at physical offset {flagged[0]}: "
                            "nothing proves the right value, so these bits stay and verify reports "
                            "the message")
        odd = [fault for fault in survey.headers.faults
               if {*fault.categories} - {STORE_HOST, FLAG_BITS}]
        if odd:
            oddities.append(f"{plural(len(odd), 'message')} with a header that no broker writes, "
                            f"the first at physical offset {odd[0].offset} "
                            f"({', '.join(odd[0].categories)}): the original cannot be proved, and "
                            "clients are not affected; left unchanged")
        if survey.has_crcs and survey.lacking_crc:
            oddities.append("messages without an appended CRC among others that have one, the "
                            f"first at physical offset {survey.lacking_crc[0]}: a broker with "
                            "forceVerifyPropCRC truncates its log there; they are left as they "
                            "are")
        if self._crcs_forced and survey.glued:
            oddities.append(f"{plural(len(survey.glued), 'message')} without a separator before "
                            "the appended CRC, as in batches that brokers write, the first at "
                            f"physical offset {survey.glued[0]}: a broker with forceVerifyPropCRC "
                            "does not find the CRC and truncates its log there; left unchanged")
        if evidence.ahead:
            oddities.append(plural(evidence.ahead, "consume queue entry refers",
                                   "consume queue entries refer")
                            + " to an offset beyond the last file of the log: these queues "
                            "continue at smaller queue offsets")
        return oddities

    @property
    def _crcs_forced(self) -> bool:
        """Return whether the broker truncates its log at a message without an appended CRC."""
        return bool(self.store.sizes.conf.force_property_crc)

    def _style(self, survey: Survey) -> Style:
        return Style(survey.has_crcs, survey.host or Style().host)

    def _spans(self, parts: Sequence[LogPart], survey: Survey,
               losses: KnownLosses) -> list[tuple[Region, FillSpan]]:
        """Return (region, span to fill) pairs, with the mode of each span.

        In a missing file whose messages are handled by column, only the gaps between them are
        spans.
        """
        last = max((message.physical for message in losses.filled if message.physical is not None),
                   default=-1)
        used = max(survey.used, bisect_right(parts, last, key=lambda part: part.base) - 1,
                   *(bulk.region.file for bulk in losses.bulks.values()))
        spans = []
        for region in survey.regions:
            mode: Mode = "exact"
            if region.end == parts[region.file].end:
                mode = ("zero" if region.file > used else
                        "tail" if region.file == used else "blank")
            bulk = losses.bulks.get(region.start)
            if bulk is None or self._is_blank(region, mode):
                spans.append((region, FillSpan(region.start, region.end, mode, region.time)))
                continue
            bulk.absorb(filler.least_filler(self._style(survey)))
            for start, end in bulk.gaps():
                spans.append((region, FillSpan(start, end, mode if end == region.end else "exact",
                                           region.time)))
        return spans

    def _is_blank(self, region: Region, mode: Mode) -> bool:
        """Return whether one blank record is to replace a missing file, whatever the file
        contained.
        """
        return self.missing_file == "blank" and mode == "blank" and not region.dirty

    def _result(self, parts: Sequence[LogPart], survey: Survey,
              fillings: Sequence[tuple[Region, Filling]], losses: KnownLosses,
              evidence: HoleEntries,
              restored: int) -> Salvage:
        # Missing files by column, unless one blank record is to represent them.
        pieces: dict[int, list[OverlayPiece]] = {}
        files = Files(self.store, self.scratch, self.actions, self.copied.files)
        bulks = {start: bulk for start, bulk in losses.bulks.items() if not any(
            self._is_blank(region, filling.span.mode) for region, filling in fillings
            if region is bulk.region)}
        counts = {start: len(bulk) for start, bulk in bulks.items()}
        log_end = max([survey.last_end, *(bulk.end for bulk in bulks.values())])
        # The bytes of each region: a blank, zeros, or fillers.
        filled, reached = set(bulks), 0
        for region, filling in fillings:
            part, span, bulk = parts[region.file], filling.span, bulks.get(region.start)
            span.time = bulk.time if bulk is not None else span.time
            if region.before is None and region.after is None:  # no intact message has a time
                span.time = max(span.time, reached)
            missing = part.path is None and span.mode == "blank" and bulk is None
            if missing and (self.missing_file == "blank" or not span.items):
                span.items, piece = [], OverlayPiece(0, part.size, filler.blank(part.size))
            elif span.mode == "blank" and span.end - span.start < BLANK_SIZE:
                self.notes.append(
                    f"{plural(span.end - span.start, 'byte')} at physical offset {span.start} are "
                    "too short for an end-of-file record and are left as they are: a broker's "
                    "recovery truncates the log there")
                continue
            elif span.mode == "zero" or (span.mode == "tail" and not span.items):
                if not region.dirty:
                    continue
                piece = OverlayPiece(span.start - part.base, span.end - span.start)
            else:
                filled.add(region.start)
                piece = filling.piece(part.base)
                reached = max(reached, filling.time)
                if filling.short:
                    piece = padded(part, region, filling.short, self._style(survey))
                if span.mode in ("tail", "exact"):
                    log_end = max(log_end, filling.end)
            if bulk is not None:
                bulk.pieces.append(piece)
                bulk.later(span.end, filling.time)
                counts[region.start] += len(span.items)
                continue
            pieces.setdefault(region.file, []).append(piece)
            files.filled(part, region, filling)
        if filled and self.fillers != "in-place":
            raise RefusedError(
                f"--fillers {self.fillers}: {plural(len(filled), 'damaged part')} of the log, the "
                f"first at physical offset {min(filled)}, can only be replaced by fillers"
                f". {_OTHER_WAYS}")
        written = files.by_column(parts, bulks, counts, self._style(survey))
        # Messages without space, the log after the repair, and the steps that create it.
        placed = {id(item) for _, filling in fillings for item in filling.span.items}
        homeless = sum(id(message) not in placed for message in losses.filled) + sum(
            len(bulk) for start, bulk in losses.bulks.items() if start not in bulks)
        if homeless:
            self.notes.append(f"no space for fillers of {plural(homeless, 'lost message')}: "
                              "gaps remain in the queues")
        result, empty = without_empty_end([
            replace(part, path=written[number]) if number in written else part
            for number, part in enumerate(laid_over(parts, pieces))])
        held = self.store.snapshot  # the index may have later messages
        lost = lost_messages(self.store, survey, losses, evidence, parts[-1].end if held is None
                             else min(parts[-1].end, held.log_end))
        if lost.once:
            self.notes.append(
                f"the index has keys of {plural(lost.once, 'more lost message')}; gaps in the "
                "queue offsets may show the same messages, so each is counted once")
        steps = [*files.emptied(empty), *files.steps(result, written)]
        end = self._end(result, survey, log_end) if result else parts[0].base
        unnamed = sum(filling.unnamed for _, filling in fillings)
        return Salvage(tuple(result), tuple(steps), tuple(self.actions), lost.listed, end,
                       tuple(self.notes), restored, lost.total,
                       frozenset(survey.inner_batch_topics), len(self.left_out), survey.messages,
                       self.kept, self.copied.conflicts, len(self.topics),
                       self.copied.void_from if self.copied.parts else None,
                       len(self.unmarked) + (len(survey.lacking_crc) + len(survey.glued)
                                             if self._crcs_forced else 0),
                       dropped(self.store, self.left_out, losses, lost.total, homeless, unnamed),
                       self.chances.expected, losses.count - homeless + unnamed,
                       self.condemned.verdicts)

    def _end(self, parts: Sequence[LogPart], survey: Survey, end: int) -> int:
        """Return the end of the last message, or of its file if a next file exists."""
        for number, part in enumerate(parts):
            if part.base < end <= part.end and number in survey.closed and number + 1 < len(parts):
                return part.end
        return end if end >= 0 else parts[0].base


def _by_room(message: FilledMessage) -> tuple[int, int, int]:
    return message.high, message.low, message.own.queue_offset
