"""Results of scans of a log, derived from the results of one pass."""

from __future__ import annotations

from dataclasses import dataclass, field

from rmqctl.scan.frames import Array, Span


@dataclass(slots=True)
class WalkResults:
    """Results of `AlreadyLost.look` for a scan of the whole log. By queue number: ``ends``, the
    offset after the last intact message; ``pieces``, runs of adjacent messages (positions of the
    first and last message, half-open range of queue offsets); ``damaged``, queue offsets in damaged
    records, and the positions of these records; ``sound``, queues without damaged records in which
    every entry points to a message. ``newest``: the latest store time (ms) of an intact message.
    """

    spans: list[Span]
    places: list[tuple[int, int]]
    end: int
    accepted: list[tuple[int, int]]
    ends: dict[int, int] = field(default_factory=dict)
    pieces: dict[int, list[tuple[int, int, int, int]]] = field(default_factory=dict)
    damaged: dict[int, tuple[Array, Array]] = field(default_factory=dict)
    sound: set[int] = field(default_factory=set)
    newest: int | None = None
