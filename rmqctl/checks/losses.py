"""The list of losses that `preflight`, `doctor`, `impact` and `report` share (JSON: ``losses``)."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any

from rmqctl.phrases import Joined, Phrase

MESSAGES, OFFSETS, TOPICS, GROUPS = "messages", "offsets", "topics", "groups"
TIMERS, INDEX = "timers", "index"


@dataclass(frozen=True, slots=True)
class Loss:
    """``count`` of ``what`` (a constant above) is or would be lost; None where it is unknown.

    ``cause`` is one sentence. ``file`` is relative to the store root. ``already``: it is lost
    before the start, so another start makes it no worse.
    """

    what: str
    count: int | None
    cause: str
    file: str | None = None
    already: bool = False

    def as_dict(self) -> dict[str, Any]:
        """The JSON object."""
        return asdict(self)


def counted(what: str, count: int | None) -> Phrase:
    """``12 committed offsets``; ``committed offsets`` where the number is unknown."""
    if what == OFFSETS:
        return Phrase("committed offsets") if count is None else Phrase(
            "{count:,} committed offset", "{count:,} committed offsets", count=count)
    if what == TOPICS:
        return Phrase("topics") if count is None else Phrase(
            "{count:,} topic", "{count:,} topics", count=count)
    if what == GROUPS:
        return Phrase("consumer groups") if count is None else Phrase(
            "{count:,} consumer group", "{count:,} consumer groups", count=count)
    if what == TIMERS:
        return Phrase("timed messages") if count is None else Phrase(
            "{count:,} timed message", "{count:,} timed messages", count=count)
    if what == INDEX:
        return Phrase("index entries") if count is None else Phrase(
            "{count:,} index entry", "{count:,} index entries", count=count)
    return Phrase("messages") if count is None else Phrase(
        "{count:,} message", "{count:,} messages", count=count)


def summed(losses: Iterable[Loss]) -> Phrase | None:
    """``12 committed offsets, 3 topics``: one sum for each kind; None without a loss."""
    sums: dict[str, int | None] = {}
    for loss in losses:
        known = sums.get(loss.what, 0)
        sums[loss.what] = None if loss.count is None or known is None else known + loss.count
    return Joined(", ", [counted(what, count) for what, count in sums.items()]) if sums else None
