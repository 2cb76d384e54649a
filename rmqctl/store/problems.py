"""Problems that a reader meets and skips: damage, gaps, entries that point to nothing."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Literal

from rmqctl.lazy_dataclass import dataclass

if TYPE_CHECKING:
    from rmqctl.scan.frames import Span
    from rmqctl.scan.tolerant import UnreadRange

Kind = Literal["damage", "gap", "row", "unreadable", "in-progress", "note"]


@dataclass(frozen=True, slots=True)
class Problem:
    """A problem that was found while a store was read.

    ``kind``: ``note`` and ``in-progress`` are not faults of the store. ``in-progress`` is an
    incomplete last record that a broker is writing. ``unreadable`` means that the operating system
    could not read a file. All other kinds are damage.
    ``text``: the text for users.
    ``offset`` (physical), ``length`` (bytes): None if the problem has no position.
    ``undecided``: number of records in the range that may be messages but are not shown.
    """

    kind: Kind
    text: str
    offset: int | None = None
    length: int | None = None
    undecided: int = 0

    @property
    def is_fault(self) -> bool:
        """Return whether the problem is a fault of the store."""
        return self.kind not in ("note", "in-progress")


def gap(start: int, end: int) -> Problem:
    """Return the problem for physical offsets that no file of the log covers."""
    return Problem("gap", f"no file contains physical offsets {start} to {end} ({end - start:,} "
                   "bytes)", start, end - start)


def damage(span: Span) -> Problem:
    """Return the problem for a damaged or zeroed span of the log."""
    field = f" (field {span.field})" if span.field else ""
    also = f"; {ambiguity(span.doubtful)}" if span.doubtful else ""
    return Problem("damage", f"damage at physical offset {span.offset}, {span.length} bytes: "
                   f"{span.reason or 'zeroed range in the log'}{field}{also}", span.offset,
                   span.length, len(span.doubtful))


def ambiguity(doubtful: Sequence[tuple[int, int]],
              why: str = "neither entries nor index confirm them") -> str:
    """Return the text for records that may be messages or part of a damaged message's body."""
    count = len(doubtful)
    return (f"{count} intact record{'s' if count > 1 else ''} from physical offset "
            f"{doubtful[0][0]} on may be {'messages' if count > 1 else 'a message'}, or part of a "
            f"damaged message's body: {why}")


def earlier_life(count: int, first: int) -> str:
    """Return the text for records that `rmqctl.damage.by_time` considers stale."""
    return (f"{count} intact record{'s' if count > 1 else ''} from physical offset {first} on, "
            "between damaged bytes, older than the neighboring messages and not confirmed by "
            "entries or index: stale, or stored while the clock was set back")


def contradicted(count: int, first: int) -> str:
    """Return the text for stale records (as judged by `rmqctl.scan.damage.stale`) between undamaged
    bytes.
    """
    return (f"{count} intact record{'s' if count > 1 else ''} from physical offset {first} on, "
            "between undamaged bytes, contradicted by entries and index: stale records from an "
            "earlier use of the file, unless the entries are wrong")


def unread(base: int, lost: UnreadRange) -> Problem:
    """Return the problem for an unreadable part of a file whose first byte has the physical offset
    ``base``.
    """
    offset, length = base + lost.start, lost.end - lost.start
    return Problem("unreadable", f"{lost.reason}: {length:,} bytes from physical offset {offset} "
                   "on are skipped", offset, length)


Report = Callable[[Problem], None]
