"""Verdicts on ranges of the log, with the evidence and the action of a repair."""

from __future__ import annotations

from collections.abc import Iterable, KeysView, Mapping
from enum import Enum
from typing import Any

from rmqctl.lazy_dataclass import dataclass


class Verdict(Enum):
    """Classification of bytes of the log."""

    INTACT = "intact"
    DAMAGED = "damaged"
    STALE = "stale"
    """An intact record from an earlier use of the file: entries point to other messages at its
    offset.
    """
    CONTRADICTED = "contradicted"
    """An intact record that is contradicted by its consume queue entry or its index keys."""
    UNDECIDED = "undecided"
    """An intact record that may be a message, part of a message body, or stale."""
    MISSING = "missing"
    UNUSED = "unused"


class Remedy(Enum):
    """Action of a repair on a range of the log."""

    NONE = "none"
    COPIED = "copied"
    MOVED_BACK = "moved_back"
    CORRECTED = "corrected"
    RECONSTRUCTED = "reconstructed"
    KEPT = "kept"
    FILLED = "filled"
    DROPPED = "dropped"


OF_ACTION: Mapping[str, Remedy] = {
    "copy": Remedy.COPIED, "put back": Remedy.MOVED_BACK, "correct": Remedy.CORRECTED,
    "mend record": Remedy.RECONSTRUCTED, "keep damaged": Remedy.KEPT, "fill": Remedy.FILLED,
    "zero": Remedy.DROPPED}
"""`Remedy` for each action of a plan."""


@dataclass(frozen=True, slots=True)
class Evidence:
    """Evidence for a verdict: its ``source``, and a description of what it shows."""

    source: str
    detail: str


@dataclass(frozen=True, slots=True)
class LogRange:
    """A range of a log, physical offsets ``[start, end)``, with a verdict."""

    start: int
    end: int
    verdict: Verdict
    evidence: tuple[Evidence, ...]
    remedy: Remedy = Remedy.NONE

    def as_dict(self) -> dict[str, Any]:
        return {"start": self.start, "end": self.end, "verdict": self.verdict.value,
                "remedy": self.remedy.value, "evidence": [
                    {"source": evidence.source, "detail": evidence.detail}
                    for evidence in self.evidence]}


class Condemned:
    """The verdicts on intact records that do not count as messages, by physical offset."""

    def __init__(self, verdicts: Mapping[int, Verdict] | None = None) -> None:
        self._verdicts = dict(verdicts or {})

    @property
    def places(self) -> KeysView[int]:
        return self._verdicts.keys()

    @property
    def verdicts(self) -> Mapping[int, Verdict]:
        return self._verdicts

    def of(self, *verdicts: Verdict) -> set[int]:
        """Return the physical offsets of the records with one of these verdicts."""
        return {place for place, verdict in self._verdicts.items() if verdict in verdicts}

    def add(self, places: Iterable[int], verdict: Verdict = Verdict.DAMAGED) -> bool:
        """Add records that do not count as messages; return whether any of them is new. Existing
        verdicts do not change.
        """
        before = len(self._verdicts)
        for place in places:
            self._verdicts.setdefault(place, verdict)
        return len(self._verdicts) > before

    def acquit(self, places: Iterable[int]) -> None:
        """Remove the verdicts on records at these offsets, because the records have been
        replaced.
        """
        for place in places:
            self._verdicts.pop(place, None)

    def copy(self) -> Condemned:
        return Condemned(self._verdicts)
