"""Results of walks over a log, put together from what one pass has kept."""

from __future__ import annotations

from dataclasses import dataclass, field

from rmqctl.scan.frames import Array, Span


@dataclass(slots=True)
class WalkResults:
    """Results of `AlreadyLost.look` in walks over the whole log. By number of the queue: ``ends``
    after the last queue offset of an intact message; ``pieces`` (places of the first and last,
    queue offsets from … to before …) of messages that follow each other, ``damaged`` queue offsets
    that damaged records name, and their places; ``sound`` queues have none of these, nor an entry
    that points to nothing. ``newest``: the latest store time (ms) of an intact message.
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
