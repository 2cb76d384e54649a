"""Results of walks over a log, derived from the results of one pass."""

from __future__ import annotations

from dataclasses import dataclass, field

from rmqctl.scan.frames import Array, Span


@dataclass(slots=True)
class WalkResults:
    """Results of `AlreadyLost.look` in walks over the whole log. By number of the queue: ``ends``,
    the offset after the last intact message; ``pieces``, runs of adjacent messages (places of the
    first and last, queue offsets from … to before …); ``damaged``, queue offsets in damaged
    records, and their places; ``sound``, queues without these and without an entry that points to
    no message. ``newest``: the latest store time (ms) of an intact message.
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
