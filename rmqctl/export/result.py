"""Results of an export, and their totals for each store."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import field

from rmqctl.checks.preflight.missing import MissingMessages
from rmqctl.export.attempt import WrittenFile
from rmqctl.export.plan import ExportLosses, StorePlan
from rmqctl.export.tally import GAP, ExportTally
from rmqctl.export.task import ExportedRange
from rmqctl.lazy_dataclass import dataclass
from rmqctl.scan.frames import DAMAGED, Span


@dataclass(slots=True)
class StoreResult(ExportTally):
    """Result of an export for one store."""

    plan: StorePlan = field(kw_only=True)
    files: int = 0
    bytes: int = 0
    in_progress: Span | None = None
    losses: ExportLosses = field(default_factory=ExportLosses)
    """Messages that the store is known to have lost."""

    @property
    def lost(self) -> MissingMessages:
        return self.losses.messages

    @property
    def complete(self) -> bool:
        """Return whether no message of the exported part is known to be missing and every body
        matches its CRC.
        """
        return not (self.bad_crc or self.replaced_here or self.lost.in_repairs
                    or self.lost.discarded or (self.losses.in_part and self._lacks))

    @property
    def _lacks(self) -> bool:
        """Return whether messages are missing, in the exported part or elsewhere."""
        return bool(self.damage.count or self.missing.count or self.lost.total)

    @property
    def lost_elsewhere(self) -> bool:
        """Return whether messages are missing only outside the exported part."""
        return self._lacks and self.complete

    @property
    def undecided(self) -> int:
        """Return the number of records that may or may not be messages. Records that a repair
        discarded are included.
        """
        return self.damage.undecided + self.lost.discarded

    @property
    def nothing_read(self) -> bool:
        """Return whether nothing was read because the log's files or folder are unreadable."""
        return bool(self.missing.count) and not (self.messages or self.damage.count) and all(
            span.kind != GAP for span in self.missing.spans)

    def add(self, part: ExportedRange) -> None:
        """Add the result of the next range, in log order."""
        self.append(part.tally)
        self.take(part.files)

    def take(self, files: Sequence[WrittenFile]) -> None:
        """Count written files."""
        self.files += len(files)
        self.bytes += sum(file.bytes for file in files)

    def finish(self) -> None:
        """Classify the spans after the last message. The zeros of the log's unused end are not
        damage. A record that a broker is still writing is not damage.
        """
        damaged = [span for span in self.tail if span.kind == DAMAGED]
        if damaged and self.plan.held:
            self.in_progress = damaged.pop()
        self.tail = damaged
        self._settle()
        spans = [*self.damage.spans, *self.missing.spans]
        listed = len(spans) == self.damage.count + self.missing.count and all(
            span.length for span in spans)
        self.losses = self.plan.losses(
            [(span.offset, span.end) for span in spans] if listed else None,
            damaged=bool(self.bad_crc or self.damage.count or self.missing.count))


@dataclass(slots=True)
class ExportResult:
    """Result of an export. ``out``: path of the export; ``partitions``: number of its folders."""

    out: str
    stores: list[StoreResult]
    partitions: int = 0

    @property
    def complete(self) -> bool:
        return all(store.complete for store in self.stores)

    def total(self, name: str) -> int:
        """Return the sum of a count over all stores."""
        return sum(getattr(store, name) for store in self.stores)
