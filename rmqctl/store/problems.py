"""What a reading meets and goes on after: damage, holes, rows that lead nowhere."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from rmqctl.scan.frames import Span

Kind = Literal["damage", "gap", "row", "unreadable", "in-progress", "note"]


@dataclass(frozen=True, slots=True)
class Problem:
    """``text`` is for people. ``offset`` and ``length`` (bytes) are physical, where there are any.

    ``note`` and ``in-progress`` (the torn last record of a store a broker is writing to) are no
    faults of the store; ``unreadable`` is the system's refusal, all others are damage.
    """

    kind: Kind
    text: str
    offset: int | None = None
    length: int | None = None

    @property
    def is_fault(self) -> bool:
        """Whether the store is not as it should be."""
        return self.kind not in ("note", "in-progress")


def damage(span: Span) -> Problem:
    """A span of the log that holds no message although it should."""
    field = f" (field {span.field})" if span.field else ""
    return Problem("damage", f"damage at physical offset {span.offset}, {span.length} bytes: "
                   f"{span.reason or 'zeros inside the log'}{field}", span.offset, span.length)


Report = Callable[[Problem], None]
