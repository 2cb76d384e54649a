"""Results of the scans that a prediction needs, derived from an earlier pass over the log."""

from __future__ import annotations

from dataclasses import field

from rmqctl.lazy_dataclass import dataclass
from rmqctl.scan.frames import Array, Span


@dataclass(slots=True)
class WalkResults:
    """The data that `AlreadyLost.look` would collect in a scan of the whole log.

    ``spans``: spans of bytes that are not records.
    ``places``: positions without intact data, ``[start, end)``.
    ``end``: physical offset after the last intact message.
    ``accepted``: position and store time (ms) of the last two records that recovery accepts.
    ``newest``: the latest store time (ms) of an intact message.

    By queue number:

    ``ends``: the queue offset after the last intact message.
    ``pieces``: gapless runs of messages, as in `LogGaps`.
    ``damaged``: queue offsets in damaged records, and the positions of these records.
    ``sound``: queues without damaged records in which every entry points to a message.
    """

    spans: list[Span]
    places: list[tuple[int, int]]
    end: int
    accepted: list[tuple[int, int]]
    ends: dict[int, int] = field(default_factory=dict)
    pieces: dict[int, Array] = field(default_factory=dict)
    damaged: dict[int, tuple[Array, Array]] = field(default_factory=dict)
    sound: set[int] = field(default_factory=set)
    newest: int | None = None
