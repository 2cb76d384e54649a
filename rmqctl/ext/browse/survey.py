"""The overview at the top of the screen: a verdict, damage in the log, and store times of messages.

The verdict comes from `rmqctl preflight` or, after a full verification, from `rmqctl doctor`. Only
a sample of the log is read: the first record at or after each of `_SAMPLES` positions. Parts that
were not read are shown as not read, never as intact.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import field, replace
from itertools import groupby, pairwise
from typing import TYPE_CHECKING

from rmqctl.errors import FormatError, RmqctlError, StoreIOError
from rmqctl.ext.browse.listing import LogListing, Watch, sentence
from rmqctl.formats.local.header_rules import EARLIEST
from rmqctl.formats.local.message import decode
from rmqctl.lazy_dataclass import dataclass
from rmqctl.phrases import Joined, Phrase
from rmqctl.scan.profile import LATEST
from rmqctl.scan.resync import located_size, next_provable
from rmqctl.scan.source import FileSource
from rmqctl.store.log.bounds import View
from rmqctl.store.store import Store

if TYPE_CHECKING:
    from rmqctl.checks.doctor import Diagnosis
    from rmqctl.checks.preflight.types import Prediction

_SAMPLES = 480
_WINDOW = 64 << 10
"""Maximum number of bytes that are searched for a record after each sampled position."""
_CROWD, _FAR = 0.01, 12
"""``_CROWD``: share of the samples that may be ignored at each end of the time axis. ``_FAR``:
samples are ignored only if this makes the axis shorter by more than this factor.
"""
BARS = " ▁▂▃▄▅▆▇█"
UNREAD, INTACT, DAMAGED, MISSING, EMPTY, LOST = "·", "─", "█", "x", " ", "░"
Span = tuple[int, int]
Piece = tuple[str, str]
"""A piece of a line: (text, style); the style is one of the screen's styles, or empty."""


@dataclass(slots=True)
class LogOverview:
    """A survey of the log.

    * ``first``, ``end``: range of physical offsets of the log files
    * ``used``: end of the written data
    * ``samples``: evenly spaced physical offsets, each with the store time (ms) of the next record
    * ``start``: the prediction of startup
    * ``diagnosis``: the result of `doctor`, after a full verification
    """

    has_abort: bool = False
    first: int = 0
    end: int = 0
    used: int = 0
    file_size: int = 1
    gaps: list[Span] = field(default_factory=list)
    samples: list[Span] = field(default_factory=list)
    start: Prediction | None = None
    diagnosis: Diagnosis | None = None
    problem: str = ""

    @property
    def verdict(self) -> Phrase:
        """The verdict as one sentence. It never says "sound" if the broker did not stop cleanly."""
        from rmqctl.checks.preflight.in_words import in_words

        parts = [Phrase("abort file: the broker did not stop cleanly")] if self.has_abort else []
        if self.diagnosis is not None and not (self.has_abort and self.diagnosis.sound):
            parts.append(self.diagnosis.verdict)
        elif self.start is not None:
            parts.append(in_words(self.start))
        else:
            parts.append(Phrase("startup cannot be predicted: {why}", why=self.problem)
                         if self.problem else Phrase("predicting startup …"))
        return Joined("; ", parts)

    @property
    def is_bad(self) -> bool:
        """True if anything is damaged or lost, or would be lost at startup."""
        return (self.start is not None and not self.start.harmless) or (
            self.diagnosis is not None and not self.diagnosis.sound)

    @property
    def damaged(self) -> list[Span]:
        """Ranges of physical offsets in which a full verification found damage."""
        if self.diagnosis is None:
            return []
        from rmqctl.checks.verify.verdict import DAMAGE

        return [(finding.offset, finding.offset + max(finding.length or 0, 1))
                for finding in self.diagnosis.findings.findings if finding.is_trouble
                and finding.category in DAMAGE and finding.offset is not None]

    @property
    def reach(self) -> int:
        """The physical offset where the log ends. Files that are missing at the end count if
        consume queue or index entries point to them.
        """
        places = None if self.start is None else self.start.log.gone.places
        if not self.end or places is None or places[1] < self.end:  # no known file size
            return self.end
        return (places[1] // self.file_size + 1) * self.file_size

    @property
    def missing(self) -> list[Span]:
        """Physical offset ranges of missing files, between other files and after the last file."""
        return [*self.gaps, *([(self.end, self.reach)] if self.reach > self.end else [])]

    @property
    def lost(self) -> list[tuple[int | None, int | None]]:
        """Ranges of store times (ms) of lost messages. For a missing part of the log, the range
        extends from the sample before that part to the sample after it. If no part is missing, the
        prediction's range is used.
        """
        start = self.start
        first, last = (None, None) if start is None else (
            start.log.gone.earliest, start.log.gone.latest)
        spans: list[tuple[int | None, int | None]] = []
        for begin, end in self.missing:
            number = bisect_left(self.samples, (begin, 0))
            before = self.samples[number - 1][1] if number else first
            number = bisect_left(self.samples, (end, 0))
            spans.append((before, self.samples[number][1] if number < len(self.samples) else last))
        return [span for span in spans or [(first, last)] if span != (None, None)]


def judged(store: Store, watch: Watch) -> Iterator[LogOverview]:
    """Yield the survey of a store twice: first without, then with the prediction of startup."""
    from rmqctl.checks.preflight.around import around_in_use  # large, and not needed at the start
    from rmqctl.checks.preflight.preflight import preflight

    sampled = survey(store, watch)
    yield sampled
    try:
        yield replace(sampled, start=preflight(store, full=False, progress=watch,
                                               machine=around_in_use(store)))
    except (RmqctlError, OSError) as error:
        yield replace(sampled, problem=sentence(error))


def survey(store: Store, watch: Watch) -> LogOverview:
    """Return the survey of a store, without a prediction. Unreadable parts have no samples."""
    if not store.layout.reads("commitlog"):
        return LogOverview(store.has_abort)
    log = store.log
    sampled = LogOverview(store.has_abort, log.min_offset, log.end,
                          LogListing(View(store), "").used,
                          log.file_size, [(gap.start, gap.end) for gap in log.gaps()])
    # The positions are evenly spaced over the written parts of all files.
    sizes = [max(min(file.size, sampled.used - file.base), 0) for file in log.files]
    step = max(sum(sizes) // _SAMPLES, 1)
    passed = 0
    for number, size in enumerate(sizes):
        for place in range(-passed % step, size, step):
            watch(0)
            with suppress(FormatError, StoreIOError):
                stored = _stored(log.source(number), place)
                if stored is not None and EARLIEST <= stored < LATEST:
                    sampled.samples.append((log.files[number].base + place, stored))
        passed += size
    return sampled


def _stored(source: FileSource, place: int) -> int | None:
    """Return the store time of the first record at or after a position."""
    start = next_provable(source, place, min(place + _WINDOW, source.size))
    size = None if start is None else located_size(source, start)
    if start is None or size is None:  # a blank
        return None
    return decode(source.read(start + source.head, size - source.head)).store_timestamp


# -- strips ----------------------------------------------------------------------------------------


def log_strip(shown: LogOverview, width: int, damaged: Iterable[Span],
              read_of: Callable[[int, int], int], cursor: int | None) -> list[Piece]:
    """Return a map of the complete log as one line.

    * ``damaged``: ranges of damage found since the survey
    * ``read_of``: returns the number of bytes already read in a range
    """
    length = shown.reach - shown.first
    if length <= 0:
        return [("no log file", "dim")]

    def cell(offset: int) -> int:
        return min(max((offset - shown.first) * width // length, 0), width - 1)

    # Draw the read parts, then missing and damaged ones over them.
    edges = [shown.first + length * number // width for number in range(width + 1)]
    cells = [EMPTY if low >= shown.used else INTACT if shown.diagnosis is not None
             or read_of(low, high) >= min(high, shown.used) - low else UNREAD
             for low, high in pairwise(edges)]
    for spans, sign in ((shown.missing, MISSING), ((*shown.damaged, *damaged), DAMAGED)):
        for start, end in spans:
            if end > shown.first:
                cells[cell(start):cell(end - 1) + 1] = sign * (cell(end - 1) + 1 - cell(start))
    styles = ["bad" if sign in (MISSING, DAMAGED) else "dim" if sign == UNREAD else ""
              for sign in cells]
    if cursor is not None and shown.first <= cursor < shown.reach:
        styles[cell(cursor)] += " cursor"
    return _joined(cells, styles)


def time_range(shown: LogOverview) -> Span | None:
    """Return the first and the last store time (ms) on the time axis; the axis includes lost
    messages.
    """
    times = sorted(when for _, when in shown.samples)
    if times:
        spare = int(len(times) * _CROWD)
        crowd = times[spare:len(times) - spare]
        if (crowd[-1] - crowd[0] + 1) * _FAR < times[-1] - times[0]:
            times = crowd
    ends = [*times, *(when for span in shown.lost for when in span if when is not None)]
    return (min(ends), max(ends)) if ends else None


def time_strip(shown: LogOverview, width: int) -> list[Piece]:
    """Return the time axis as one line. Bars show the bytes of messages by store time; marks show
    the times of lost messages.
    """
    span = time_range(shown)
    if span is None:
        return [("no message", "dim")]
    first, length = span[0], span[1] - span[0] + 1

    def column(when: int) -> int:
        return min((when - first) * width // length, width - 1)

    sums = [0] * width
    for _, when in shown.samples:
        if span[0] <= when <= span[1]:
            sums[column(when)] += 1
    most = max(sums)
    cells = [BARS[-(-8 * count // most)] if most else BARS[0] for count in sums]
    styles = [""] * width
    for before, after in shown.lost:
        begin, end = (span[0] if before is None else before), (span[1] if after is None else after)
        for number in range(column(begin), column(max(begin, end)) + 1):
            styles[number] = "bad"
            if cells[number] == BARS[0]:
                cells[number] = LOST
    return _joined(cells, styles)


def _joined(cells: Sequence[str], styles: Sequence[str]) -> list[Piece]:
    """Join adjacent characters of the same style into pieces."""
    numbers = groupby(range(len(cells)), styles.__getitem__)
    return [("".join(cells[number] for number in part), style.strip()) for style, part in numbers]
