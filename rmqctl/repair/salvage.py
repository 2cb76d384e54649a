"""salvage: damaged spans of a log become tombstones, in place, and nothing intact is lost.

A broker ends its log at the first record it cannot read and deletes what follows (recovery.md
§3-§4). Here each damaged span is filled to the byte with well-formed messages instead
(`rmqctl.repair.tombstone`), those of lost messages where consumequeues, the damaged records
themselves or gaps in the queue offsets tell of them. The log then walks clean to its end, and
every queue goes on without a gap.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import Literal

from rmqctl.formats import names
from rmqctl.repair import tombstone
from rmqctl.repair.evidence import Evidence, Gatherer
from rmqctl.repair.lost import lost_messages
from rmqctl.repair.plan import Action, Create, Lost, Patch, Step
from rmqctl.repair.salvage_layout import Carried, Filling, Mode, Span
from rmqctl.repair.salvage_log import laid_over, log_parts, padded
from rmqctl.repair.salvage_mend import Mended, mend, put_back
from rmqctl.repair.salvage_rows import Collector, Known
from rmqctl.repair.salvage_survey import Region, Survey, Surveyor
from rmqctl.repair.tombstone import Style
from rmqctl.scan.overlay import LogPart, Piece
from rmqctl.store.store import Store

MissingFile = Literal["tombstones", "blank"]
_ROUNDS = 6


@dataclass(frozen=True, slots=True)
class Salvage:
    """The log as it will be, and what makes it so.

    ``parts`` the files of the log with all changes laid over; ``steps`` only create and patch
    commitlog files. ``log_end``: where the next message is appended. ``restored``: messages
    brought back whole. ``notes`` are warnings for a person.
    """

    parts: tuple[LogPart, ...]
    steps: tuple[Step, ...] = ()
    actions: tuple[Action, ...] = ()
    lost: tuple[Lost, ...] = ()
    log_end: int = 0
    notes: tuple[str, ...] = ()
    restored: int = 0

    @property
    def empty(self) -> bool:
        """Whether the log needs no change."""
        return not self.steps


def salvage(store: Store, generation: int | None = None, *,
            missing_file: MissingFile = "tombstones",
            batch_topics: Iterable[str] | None = None,
            progress: Callable[[int], None] | None = None) -> Salvage:
    """Plans it; nothing is written. ``generation`` (4 or 5): whose rules decide, else the store's.

    ``missing_file``: what stands for a file that is missing between others, tombstones of what
    is known of it, or one blank record over all of it. ``progress`` hears of the bytes walked.
    RefusedError for files whose names or sizes no broker can have written; StoreIOError.
    """
    topics = ({topic for topic, _ in store.batch_queues} if batch_topics is None
              else set(batch_topics))
    return _Job(store, generation or store.generation, missing_file, topics, progress).run()


@dataclass(slots=True)
class _Job:
    store: Store
    generation: int
    missing_file: MissingFile
    batch_topics: set[str]
    progress: Callable[[int], None] | None
    condemned: set[int] = field(default_factory=set)
    vouched: dict[int, int] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    actions: list[Action] = field(default_factory=list)

    def run(self) -> Salvage:
        parts = log_parts(self.store)
        if not parts:
            return Salvage(())
        restored = 0
        looked_elsewhere = False
        survey = self._survey(parts)
        for rounds in count():
            doubtful = survey.doubtful() - self.condemned
            if doubtful:
                self.condemned |= doubtful
                survey = self._survey(parts)
            gatherer = Gatherer(self.store, survey.runs, survey.regions, parts[-1].end)
            evidence = gatherer.gather()
            if rounds >= _ROUNDS:
                break
            found = mend(self.store, parts, survey, gatherer, evidence, self.condemned)
            if not self._is_news(found):
                if looked_elsewhere:
                    break
                # Only now: what is whole where it stands must not be covered by other bytes.
                looked_elsewhere = True
                found = put_back(parts, survey)
                if not self._is_news(found):
                    break
            before = parts, dict(self.vouched), set(self.condemned)
            parts = laid_over(parts, found.pieces)
            self.vouched.update(found.vouched)
            self.condemned |= found.condemned
            seen = self._survey(parts)
            if found.moved and seen.messages <= survey.messages:
                parts, self.vouched, self.condemned = before  # they were no moved bytes
                continue
            survey = seen
            restored += found.messages
            self.actions += found.actions
        return self._fill(parts, survey, gatherer, evidence, restored)

    def _is_news(self, found: Mended) -> bool:
        return bool(found.pieces or found.condemned - self.condemned
                    or found.vouched.items() - self.vouched.items())

    def _survey(self, parts: Sequence[LogPart]) -> Survey:
        return Surveyor(self.generation, self.batch_topics, self.condemned, self.vouched,
                        self.progress).run(parts)

    def _fill(self, parts: Sequence[LogPart], survey: Survey, gatherer: Gatherer,
              evidence: Evidence, restored: int) -> Salvage:
        style = self._style(survey)
        known = Collector(parts, survey, gatherer, style).collect(evidence.rows)
        self.notes += [*known.notes, *evidence.unreadable, *self._oddities(survey, evidence)]
        carried = known.carried
        spans = self._spans(parts, survey, carried)
        by_place = sorted((one for one in carried if one.physical is not None),
                          key=lambda one: one.physical or 0)
        waiting = sorted((one for one in carried if one.physical is None),
                         key=lambda one: (one.high, one.low, one.own.queue_offset))
        fillings = []
        at = 0
        for span in spans:
            while at < len(by_place) and (by_place[at].physical or 0) < span.start:
                at += 1
            while at < len(by_place) and (by_place[at].physical or 0) < span.end:
                span.items.append(by_place[at])
                at += 1
            filling = Filling(span, style)
            filling.settle()
            waiting = sorted([*waiting, *filling.left], key=lambda one: (
                one.high, one.low, one.own.queue_offset))
            waiting = filling.place(waiting)
            fillings.append(filling)
        return self._made(parts, survey, fillings, known, restored)

    def _oddities(self, survey: Survey, evidence: Evidence) -> list[str]:
        """Intact messages that a broker may stumble over all the same, and rows out of reach."""
        found = []
        if self.generation < 5 and survey.newer:
            found.append(f"messages of version 2, the first at physical offset {survey.newer[0]}: "
                         "a broker before 5.1.0 ends the log there; they are left as they are")
        if survey.undated:
            found.append(f"messages with the store time 0, the first at physical offset "
                         f"{survey.undated[0]}: a broker does not begin its recovery in a file "
                         "that starts with one; they are left as they are")
        if evidence.ahead:
            found.append(f"{evidence.ahead} consumequeue rows lead behind the last file of the "
                         "log: these queues go on at smaller queue offsets")
        return found

    def _style(self, survey: Survey) -> Style:
        return Style(survey.is_sealed, survey.host or Style().host)

    def _spans(self, parts: Sequence[LogPart], survey: Survey,
               carried: Sequence[Carried]) -> list[Span]:
        """The regions to fill, with what each must end with."""
        used = survey.used
        for one in carried:
            if one.physical is not None:
                used = max(used, next((number for number, part in enumerate(parts)
                                       if part.base <= one.physical < part.end), -1))
        found = []
        for region in survey.regions:
            mode: Mode = "exact"
            if region.end == parts[region.file].end:
                mode = ("zero" if region.file > used else
                        "tail" if region.file == used else "blank")
            found.append(Span(region.start, region.end, mode, region.time))
        return found

    def _made(self, parts: Sequence[LogPart], survey: Survey, fillings: Sequence[Filling],
              known: Known, restored: int) -> Salvage:
        pieces: dict[int, list[Piece]] = {}
        log_end = survey.last_end
        for region, filling in zip(survey.regions, fillings, strict=True):
            part, span = parts[region.file], filling.span
            missing = part.path is None and span.mode == "blank"
            if missing and (self.missing_file == "blank" or not span.items):
                span.items, piece = [], Piece(0, part.size, tombstone.blank(part.size))
            elif span.mode == "zero" or (span.mode == "tail" and not span.items):
                if not region.dirty:
                    continue
                piece = Piece(span.start - part.base, span.end - span.start)
            else:
                piece = filling.piece(part.base)
                if filling.short:
                    piece = padded(part, region, filling.short, self._style(survey))
                if span.mode in ("tail", "exact"):
                    log_end = max(log_end, filling.end)
            pieces.setdefault(region.file, []).append(piece)
            self.actions.append(_action(self._target(part), region, filling))
        placed = {id(one) for filling in fillings for one in filling.span.items}
        homeless = [one for one in known.carried if id(one) not in placed]
        if homeless:
            self.notes.append(f"{len(homeless)} lost messages found no room for a tombstone: "
                              "their queues have gaps")
        result = laid_over(parts, pieces)
        return Salvage(
            tuple(result), tuple(self._steps(result)), tuple(self.actions),
            lost_messages(self.store, survey, known), self._end(result, survey, log_end),
            tuple(self.notes), restored)

    def _end(self, parts: Sequence[LogPart], survey: Survey, end: int) -> int:
        """Behind the last message; behind its file's blank if the next file is there."""
        for number, part in enumerate(parts):
            if part.base < end <= part.end and number in survey.closed and number + 1 < len(parts):
                return part.end
        return end if end >= 0 else parts[0].base

    def _steps(self, parts: Sequence[LogPart]) -> list[Step]:
        steps: list[Step] = []
        for number, part in enumerate(parts):
            target = self._target(part)
            if part.path is None:
                whole = Piece(0, part.size, tuple(
                    (one.at + at, data) for one in part.pieces for at, data in one.parts))
                steps.append(Create(target, whole, self._mtime(parts, number)))
                if not part.pieces:
                    self.actions.append(Action("create", target, None, "zeros",
                                               "missing; nothing intact follows"))
                continue
            size = os.stat(part.path).st_size
            some = list(part.pieces)
            if size < part.size and (not some or some[-1].end < part.size):
                some.append(Piece(max(size, some[-1].end if some else 0), 0))
                some[-1] = Piece(some[-1].at, part.size - some[-1].at)
                self.actions.append(Action("extend", target, size, part.size,
                                           "shorter than the other files"))
            if some:
                steps.append(Patch(target, tuple(some)))
        return steps

    def _mtime(self, parts: Sequence[LogPart], number: int) -> int | None:
        """A neighbour's modification time: a broker's expiry goes by it."""
        for part in [*reversed(parts[:number]), *parts[number + 1:]]:
            if part.path is not None:
                return os.stat(part.path).st_mtime_ns
        return None

    def _target(self, part: LogPart) -> str:
        """The file's path, relative to the root where it lies below it."""
        path = part.path
        if path is None:
            folders = sorted(self.store.log_folders)
            path = os.path.join(folders[(part.base // part.size) % len(folders)],
                                names.build_offset(part.base))
        relative = os.path.relpath(path, self.store.root)
        return path if relative.startswith("..") else relative


def _action(target: str, region: Region, filling: Filling) -> Action:
    size = region.end - region.start
    count = len(filling.span.items)
    if filling.span.mode in ("zero", "tail") and not count:
        return Action("zero", target, f"{size} bytes from {region.start}", "zeros",
                      "no record, and nothing known of it; nothing intact follows")
    what = f"{count} lost messages" if count else "no message known"
    return Action("fill with tombstones", target, f"{size} bytes from {region.start}",
                  what, "damaged; intact messages follow" if filling.span.mode != "tail"
                  else "the consumequeues know of messages here")
