"""Export of a range of a log: the work of a task, and its small result."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import numpy as np

from rmqctl.export.attempt import WrittenFile
from rmqctl.export.buffers import Origin
from rmqctl.export.layout import Values
from rmqctl.export.spec import Export
from rmqctl.export.tally import UNREADABLE, ExportTally
from rmqctl.lazy_dataclass import dataclass
from rmqctl.scan import malloc_tuning
from rmqctl.scan.frames import Batch, Span
from rmqctl.scan.tolerant import TolerantWalk, UnreadRange
from rmqctl.store.files import StoreFile
from rmqctl.store.log.ranges import FileRange
from rmqctl.store.pages import BatchPage
from rmqctl.store.query.conditions import filtered

if TYPE_CHECKING:
    from rmqctl.export.spill import Spilled


@dataclass(frozen=True, slots=True)
class ExportRange(FileRange[StoreFile]):
    """Range number ``at`` of the log of store number ``store``.

    ``name``: the store as named by the user.
    ``relative``: the file's name in the store.
    ``alone``: the store has no other range.
    ``buckets``: number of buckets for spilled messages.
    ``batches``: None for a file of a commitlog. For other files, a function that yields the
    messages and passes unreadable ranges to its argument.
    """

    store: int
    at: int
    name: str
    relative: str
    alone: bool
    buckets: int
    batches: Callable[[Callable[[UnreadRange], None]], Iterator[Batch]] | None = None

    @property
    def origin(self) -> Origin:
        """Return the origin of the range's messages."""
        return Origin(self.name, self.relative, self.file.base)


@dataclass(slots=True)
class ExportedRange:
    """The result of exporting a range. The frames at positions ``[first, position)`` were read.

    ``store`` and ``at``: see `ExportRange`.
    ``files``: the export files, in the folder ``attempt``.
    ``values``: values of the files' partitions.
    ``spilled``: messages that are not in an export file yet.
    """

    store: int
    at: int
    first: int
    position: int
    attempt: str
    files: list[WrittenFile]
    values: dict[int, Values]
    spilled: Spilled | None
    tally: ExportTally


class RangeWalk:
    """The batches of a range. Unreadable bytes are counted and skipped."""

    def __init__(self, part: FileRange[StoreFile], tally: ExportTally) -> None:
        self._part, self._tally = part, tally
        self.first = self.position = part.start

    def __iter__(self) -> Iterator[Batch]:
        part, file = self._part, self._part.file
        if isinstance(part, ExportRange) and part.batches is not None:
            for batch in part.batches(self._lost):
                if len(batch):
                    self.position = min(int(batch.offset[-1]) - file.base, part.end)
                yield batch
            self.position = part.end
            return
        with ExitStack() as opened:
            walk = TolerantWalk(lambda: opened.enter_context(file.open()),
                                part.start, part.end, resync=part.resync, no_stale=True)
            for item in walk:
                self.first, self.position = walk.first, walk.position
                if isinstance(item, UnreadRange):
                    self._lost(item)
                else:
                    yield item
            self.first, self.position = walk.first, walk.position
        if self.position < part.end and walk.shrunk:
            self._lost(UnreadRange(self.position, part.end,
                                   f"{file.path}: truncated while it was read"))
            self.position = part.end

    def _lost(self, lost: UnreadRange) -> None:
        self._tally.missing.add(Span(UNREADABLE, self._part.file.base + lost.start,
                                     lost.end - lost.start, lost.reason))


def chosen(spec: Export, batch: Batch) -> Batch:
    """Return those messages of a batch that the export selects."""
    if not spec.conditions:
        return batch
    page = filtered(BatchPage(batch), spec.conditions)
    assert isinstance(page, BatchPage)
    return page.batch


_AT_ONCE = 32
"""Maximum number of messages that are decoded before they are written, because decoded values may
be large.
"""


def portions(spec: Export, batch: Batch) -> Iterator[Batch]:
    """Yield a batch in parts of bounded size if bodies are decoded, else unchanged."""
    if spec.decoding is None or len(batch) <= _AT_ONCE:
        yield batch
        return
    for start in range(0, len(batch), _AT_ONCE):
        yield batch.select(np.arange(start, min(start + _AT_ONCE, len(batch))))


def export_range(spec: Export, folder: str, behind: bool, part: Any) -> ExportedRange:
    """Export an `ExportRange` into a new folder for this attempt below ``folder``.

    ``behind``: see `RangeSink`.
    Raises: WriteError.
    """
    from rmqctl.export.sink import RangeSink

    assert isinstance(part, ExportRange)
    malloc_tuning.keep_freed_memory()
    tally = ExportTally()
    reading = RangeWalk(part, tally)
    sink = RangeSink(spec, part.origin, folder, at=part.at, buckets=part.buckets, alone=part.alone,
                     behind=behind)
    try:
        for batch in reading:
            tally.passed(batch)
            wanted = chosen(spec, batch) if len(batch) else batch
            if len(wanted):
                tally.exported(wanted)
                for portion in portions(spec, wanted):
                    sink.add(portion)
        files, spilled = sink.close()
    except BaseException:
        sink.abandon()
        raise
    return ExportedRange(part.store, part.at, reading.first, reading.position, sink.attempt, files,
                         sink.values, spilled, tally)
