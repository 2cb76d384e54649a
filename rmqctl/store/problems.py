"""What a reading meets and goes on after: damage, holes, rows that lead nowhere."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

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


Report = Callable[[Problem], None]
