"""Copy lost bytes from another store whose log is proven to be the same.

A log only grows at its end, and a slave copies its master's log byte for byte. So if two records
are equal in both logs, the bytes between these records were equal, too
(`rmqctl.repair.salvage.proven`).
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import field, replace
from typing import Any

from rmqctl.checks.verify.common import plural
from rmqctl.damage.ranges import ENDLESS, EmptyRange, Range, stretches
from rmqctl.damage.survey.survey import Survey
from rmqctl.formats.local.message import START_SIZE, total_size_at
from rmqctl.lazy_dataclass import dataclass
from rmqctl.repair.plan import Action, FileContent
from rmqctl.repair.salvage.agreement import disputed
from rmqctl.repair.salvage.comparison import Comparison, compare
from rmqctl.repair.salvage.log_files import FAR, laid_over
from rmqctl.repair.salvage.proven import Proven, by_part, has_parted, proven_part
from rmqctl.repair.scratch import Scratch
from rmqctl.repair.sources.copying import Copying, widen
from rmqctl.repair.sources.opening import LogSource
from rmqctl.repair.targets import part_target
from rmqctl.scan.overlay import LogPart, OverlayPiece
from rmqctl.scan.walk import Walk
from rmqctl.store.store import Store

_MAX_TOPICS = 3
_KEPT = "this store's copy is kept, as preferred"


@dataclass(slots=True)
class CopyResult:
    """Result of copying from the sources.

    * ``parts``: the files of the log with the copied bytes.
    * ``files``: complete contents of some files, by the file's first physical offset.
    * ``places``: ranges ``[start, end)`` of copied bytes.
    * ``yielded``: ranges of this store's log that are replaced with bytes of a preferred source.
    * ``messages``: number of copied messages.
    * ``conflicts``: number of unresolved conflicts.
    """

    parts: list[LogPart]
    files: dict[int, FileContent] = field(default_factory=dict)
    actions: list[Action] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    places: list[tuple[int, int]] = field(default_factory=list)
    yielded: list[tuple[int, int]] = field(default_factory=list)
    messages: int = 0
    conflicts: int = 0

    def has(self, place: int) -> bool:
        """Return whether the byte at a physical offset was copied."""
        return any(start <= place < end for start, end in self.places)

    @property
    def void_from(self) -> int | None:
        """Return the physical offset from which a preferred source replaces the rest of our log.

        None if no source does. Entries that point after this offset are stale.
        """
        end = self.parts[-1].end
        return min((low for low, high in self.yielded if high >= end), default=None)


class Copier:
    """Copies bytes that are missing from our log, from one source after another.

    * ``survey_of``: function (parts, ranges, offsets) that surveys a log again. Rejected records in
      ``ranges`` are accepted if their bytes are intact. Records at the physical ``offsets`` count
      as damaged from now on.
    * ``strange``: ranges of our log with complete records that are not messages of this log.
    """

    def __init__(self, store: Store, scratch: Scratch | None, keep_ours: bool,
                 survey_of: Callable[[Sequence[LogPart], Sequence[tuple[int, int]],
                                      Iterable[int]], Survey],
                 progress: Callable[[int], None] | None = None, *,
                 strange: Sequence[tuple[int, int]] = ()) -> None:
        self._strange = strange
        self._store, self._keep_ours = store, keep_ours
        self._bytes = Copying(scratch)
        self._survey_of, self._progress = survey_of, progress
        self._fillers: list[int] = []
        self._sources: Sequence[LogSource] = ()
        self._contested: list[tuple[int, int, int]] = []

    def run(self, parts: Sequence[LogPart], survey: Survey, sources: Sequence[LogSource]) -> tuple[
            CopyResult, Survey]:
        """Copy from the sources; return (the result, the survey of the log with the copied bytes).

        Raises: StoreIOError; RefusedError for a source with another log.
        """
        result = CopyResult(list(parts))
        self._sources = sources
        for source in sources:
            result.notes += source.notes
            gone, comparison = self._compared(result, source, survey)
            given_up: set[int] = set()
            if comparison.disproved:
                filled = {int(place) for some in comparison.fillers for place in some[:, 0]}
                given_up = filled & comparison.disproved
                self._fillers += given_up
                survey = self._survey_of(result.parts, [], comparison.disproved)
                gone, comparison = self._compared(result, source, survey)
            if not source.preferred:  # an earlier source provided the message
                comparison.conflicts.items = [item for item in comparison.conflicts.items
                                         if item.messages != 1 or not result.has(item.start)]
            if comparison.conflicts.items:
                spans = self._conflicts(result, source, comparison)
                if source.preferred:
                    survey = self._give_way(result, spans)
                    gone, comparison = self._compared(result, source, survey)
            parted = next((stretch for stretch in gone if has_parted(
                source, comparison, stretch, survey.runs)), None) if source.preferred else None
            if parted is not None:
                survey = self._give_way(result, [self._other_way(result, source, parted)])
                gone, comparison = self._compared(result, source, survey)
            before = len(result.places)
            for stretch in gone:
                if comparison.offered.has_any(stretch.start, stretch.end):
                    self._stretch(result, source, comparison, stretch)
            # Keep fillers of an earlier repair where nothing was copied.
            new = [*result.places[before:], *((place, place + 1) for place in given_up)]
            if new:
                survey = self._survey_of(result.parts, new, ())
        self._decided(result)
        return result, survey

    def _compared(self, result: CopyResult, source: LogSource, survey: Survey) -> tuple[
            list[EmptyRange], Comparison]:
        gone = stretches(survey.regions, result.parts[0].base, result.parts[-1].end)
        for place in self._fillers:
            gone[bisect_right(gone, place, key=lambda stretch: stretch.start) - 1].filled = True
        return gone, compare(self._store, result.parts, source, survey, gone, self._progress)

    # -- split brain ------------------------------------------------------------------------------

    def _conflicts(self, result: CopyResult, source: LogSource, comparison: Comparison) -> list[
            tuple[int, int]]:
        """Report the spans in which the logs have different intact messages; return these spans."""
        spans: dict[tuple[int, int], int] = {}
        # Conflicts between the same two equal parts of the logs count as one.
        for item in comparison.conflicts.items:
            before, behind = comparison.equal.before(item.start), comparison.equal.behind(item.end)
            span = (0 if before is None else before.end, ENDLESS if behind is None
                    else behind.start)
            spans[span] = spans.get(span, 0) + item.messages
        # The decision in words.
        decided = source.preferred or self._keep_ours
        words = (f"{source.name} is preferred" if source.preferred else _KEPT
                 if self._keep_ours else
                 f"this store's copy is kept, unless --prefer {source.name} is given")
        # One action for each span, with topics and fields.
        for (low, high), messages in spans.items():
            start = max(low, min(item.start for item in comparison.conflicts.within(low, high)))
            end = min(high, max(comparison.end, result.parts[-1].end) if high == ENDLESS else high)
            part = next((part for part in result.parts if part.base <= start < part.end),
                        result.parts[-1])
            topics = Counter(topic for place, topic in comparison.topics if low <= place < high)
            names = sorted(topics, key=lambda topic: (-topics[topic], topic))
            named = ", ".join(names[:_MAX_TOPICS]) + (
                f" and {len(names) - _MAX_TOPICS} more topics"
                if len(names) > _MAX_TOPICS else "")
            differ = sorted({name for place, fields in comparison.fields.items()
                             if low <= place < high for name in fields})
            if messages == 1 and differ:
                named += f"; {', '.join(differ[:_MAX_TOPICS])}"
            what = (f"{plural(messages, 'intact message')} in {source.name}, different from this "
                    f"store ({named})" if messages else f"the end of a file in {source.name}, "
                    "where this store has messages")
            result.actions.append(Action(
                "conflict", part_target(self._store, part), None, None,
                f"{what}: {words}", offset=start, length=end - start,
                proof={"source": source.name, "messages": messages, "topics": dict(topics),
                       "fields": differ,
                       "neighbours": {"before": low or None,
                                      "after": None if high == ENDLESS else high},
                       "decided": decided}))
            result.conflicts += not decided
        if not decided:
            result.notes.append(
                f"{source.name} and this store have different intact messages at the same physical "
                "offsets (a split brain, or changed bytes that no CRC covers). This store's copy "
                "is kept, and the two are not mixed. Pass --prefer ours to confirm that, or "
                f"--prefer {source.name} to copy its messages instead")
        return list(spans)

    def _other_way(
            self, result: CopyResult, source: LogSource, stretch: EmptyRange
    ) -> tuple[int, int]:
        """Report that the logs diverge after a stretch. Return the span from the start of the
        stretch to the end of the log.
        """
        start, end = stretch.end, result.parts[-1].end
        part = next(part for part in result.parts if part.base <= start < part.end)
        result.actions.append(Action(
            "conflict", part_target(self._store, part), None, None,
            "the logs diverge from here on: queue offsets of earlier messages in "
            f"{source.name} belong to other messages in this store; {source.name} is preferred",
            offset=start, length=end - start,
            proof={"source": source.name, "messages": 0, "topics": {}, "fields": [],
                   "neighbours": {"before": None, "after": None}, "decided": True}))
        return stretch.start, ENDLESS

    def _give_way(self, result: CopyResult, spans: Sequence[tuple[int, int]]) -> Survey:
        """Zero this store's bytes in the given spans, so that the preferred source's bytes are
        copied. Return the new survey.
        """
        result.yielded += spans
        pieces: dict[int, list[OverlayPiece]] = {}
        for low, high in spans:
            for number, start, end in by_part(result.parts, low, high):
                pieces.setdefault(number, []).append(
                    OverlayPiece(start - result.parts[number].base, end - start))
        result.parts = laid_over(result.parts, pieces)
        return self._survey_of(result.parts, list(spans), ())

    # -- one stretch ------------------------------------------------------------------------------

    def _stretch(self, result: CopyResult, source: LogSource, comparison: Comparison,
                 stretch: EmptyRange) -> None:
        # Copy the part of the stretch that is proven, or all of it if the source is preferred.
        proven = proven_part(result.parts, source, comparison, stretch)
        is_head = stretch.start < result.parts[0].base  # expired files are not restored
        why = proven if isinstance(proven, str) else "" if (proven.start, proven.end) == (
            stretch.start, stretch.end) else "not all of it is proven"
        if source.preferred and not is_head and why:
            proven = Proven(stretch.start, stretch.end, None, None, f"preferred, although {why}")
            result.yielded.append((stretch.start, stretch.end))
        if isinstance(proven, str):
            items = list(comparison.offered.within(stretch.start, stretch.end))
            result.notes.append(
                f"{source.name}: {plural(sum(item.messages for item in items), 'message')} from "
                f"physical offset {max(items[0].start, stretch.start)} on not copied: {proven}")
            return
        # Report what is not copied, and why.
        left = [max(item.start, proven.end) for item in comparison.offered.within(
            proven.end, stretch.end) if item.messages]
        if left:
            result.notes.append(f"{source.name}: its messages from physical offset {left[0]} on "
                                "are not copied: nothing in this store proves that its log "
                                "continued in the same way")
        # The ranges to copy: without records that our log contradicts, and not far from our files.
        ranges = [clipped for item in comparison.offered.within(proven.start, proven.end)
                  if (clipped := _clipped(source, item, proven.start, proven.end)) is not None]
        if not source.preferred:
            ranges = _without(source, ranges, stretch)
            ranges = self._undisputed(result, source, comparison, ranges)
        ranges, refused = _near(source, ranges, result.parts)
        if refused:
            result.notes.append(f"{source.name}: not all of it is copied: {refused}")
        if not ranges:
            return
        # File by file.
        widen(result.parts, ranges[0].start, ranges[-1].end)
        for number, part in enumerate(result.parts):
            here = [clipped for item in ranges
                    if (clipped := _clipped(source, item, part.base, part.end)) is not None]
            if here:
                self._copy(result, source, number, here, proven, stretch)

    def _undisputed(self, result: CopyResult, source: LogSource, comparison: Comparison,
                    ranges: Sequence[Range]) -> list[Range]:
        """Return the ranges without the messages that our log or other sources contradict, and
        report these messages as conflicts.
        """
        others = [other for other in self._sources if other is not source]
        replaced = sorted([*self._strange, *(
            (int(place), int(end)) for some in comparison.fillers for place, end in some)])
        left: list[Range] = []
        for item in ranges:
            start = item.start
            for low, high in disputed(result.parts, source, others, item, replaced):
                clipped = _clipped(source, item, start, low)
                left += [] if clipped is None else [clipped]
                start = high
                self._add_contested(result, source, low, high)
            clipped = _clipped(source, item, start, item.end)
            left += [] if clipped is None else [clipped]
        return left

    def _add_contested(self, result: CopyResult, source: LogSource, low: int, high: int) -> None:
        part = next(part for part in result.parts if part.base <= low < part.end)
        self._contested.append((len(result.actions), low, high))
        result.actions.append(Action(
            "conflict", part_target(self._store, part), None, None,
            f"the remains of this store's message, or another source, contradict {source.name}: "
            + (_KEPT if self._keep_ours else
               f"not copied, unless --prefer {source.name} is given"), offset=low,
            length=high - low, proof={
                "source": source.name, "messages": 1, "topics": {}, "fields": [],
                "neighbours": {"before": None, "after": None}, "decided": self._keep_ours}))

    def _decided(self, result: CopyResult) -> None:
        """Mark contested messages as decided if another source's message was copied."""
        for number, low, high in self._contested:
            if any(start < high and end > low for start, end in result.places):
                action = result.actions[number]
                proof = action.proof or {}
                result.actions[number] = replace(action, reason=(
                    "the remains of this store's message, or most other sources, contradict "
                    f"{proof['source']}: another source's message is copied"),
                    proof={**proof, "decided": True})
            else:
                result.conflicts += not self._keep_ours

    # -- copying bytes -----------------------------------------------------------------------------

    def _copy(self, result: CopyResult, source: LogSource, number: int, ranges: Sequence[Range],
              proven: Proven, stretch: EmptyRange) -> None:
        part = result.parts[number]
        self._bytes.copy(result.parts, result.files, source, number, ranges)
        for item in ranges:
            result.places.append((item.start, item.end))
            result.messages += item.messages
            result.actions.append(Action(
                "copy", part_target(self._store, part), None, item.messages,
                f"from {source.name}: {proven.words}", "message", item.start,
                item.end - item.start, self._proof(source, proven, stretch)))

    def _proof(self, source: LogSource, proven: Proven, stretch: EmptyRange) -> dict[str, Any]:
        return {"source": source.name, "neighbours": {"before": proven.before,
                                                      "after": proven.after},
                "crc": "right of every message", "rows_agreeing": stretch.rows,
                "keys_agreeing": stretch.keys, "contradicted": len(stretch.against)}


def _clipped(source: LogSource, item: Range, start: int, end: int) -> Range | None:
    """Return the part of a range between two physical offsets; None if it is empty.

    The offsets must be starts of frames.
    """
    low, high = max(item.start, start), min(item.end, end)
    if low >= high:
        return None
    if (low, high) == (item.start, item.end):
        return item
    messages, position = 0, low
    while position < high and (place := source.log.locate(position)) is not None:
        file, at = place
        walk = Walk(file, at, min(file.size, high - file.base))
        messages += sum(len(batch) for batch in walk)
        position = file.base + max(walk.position, at + 1)
    return Range(low, high, messages)


def _without(source: LogSource, ranges: Sequence[Range], stretch: EmptyRange) -> list[Range]:
    """Remove from ``ranges`` our doubtful records that the source contradicts; return the ranges to
    copy.

    The source contradicts one of our records if the source's record at that position has the same
    size but differs. The bytes copied before and after our record may prove it.
    """
    left, against = list(ranges), {*stretch.against}
    for place, size in stretch.doubtful:
        end = place + size
        here = next((item for item in left if item.start <= place < item.end), None)
        there = source.log.locate(place)
        if here is None or there is None or (place, end) not in against or (
                total_size_at(there[0].read(there[1], START_SIZE)) != size):
            continue
        left[left.index(here):left.index(here) + 1] = [part for part in (
            _clipped(source, here, here.start, place), _clipped(source, here, end, here.end))
            if part is not None]
    return left


def _near(source: LogSource, ranges: Sequence[Range], parts: Sequence[LogPart]) -> tuple[
        list[Range], str]:
    """Return (the ranges that can belong to this log's files, the reason why other ranges
    cannot).
    """
    size, (low, high) = parts[0].size, (parts[0].base, parts[-1].end)
    near, why = [], ""
    behind = [item for item in ranges if item.end > low]
    for item in [*behind, *reversed(ranges[:len(ranges) - len(behind)])]:
        away = max(item.start - high, low - item.end)
        if away > FAR * size:
            why = (f"{away // size} files would be missing between this store's log and physical "
                   f"offset {item.start}, so this offset is probably in another log")
            continue
        # A record is never in two files: where our files end, the source's files must end, too.
        first = parts[0].base - (parts[0].base - item.start - 1) // size * size
        border = next((border for border in range(first, item.end, size)
                       if (file := source.log.file_of(border)) is None
                       or file.base != border), None)
        if border is not None:
            why = f"its files have another size: no file starts at {border}, unlike in this store"
            continue
        low, high = min(low, item.start), max(high, item.end)
        near.append(item)
    return sorted(near, key=lambda item: item.start), why
