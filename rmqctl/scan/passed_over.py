"""The damaged bytes of a log, as counted by readers that skip them."""

from __future__ import annotations

from dataclasses import field
from typing import ClassVar

from rmqctl.lazy_dataclass import dataclass
from rmqctl.scan.frames import Span

MAX_SPANS = 100
"""Maximum number of listed damaged spans; further spans are only counted, with their
total length.
"""


@dataclass(slots=True)
class Damage:
    """Skipped bytes of the log.

    ``count``, ``length``: number of skipped spans, and of their bytes.
    ``spans``: the first spans (physical offsets). A record whose only fault is a wrong body CRC is
        also a span.
    ``undecided``: number of intact records in the spans that may be messages.
    """

    most: ClassVar[int] = MAX_SPANS
    count: int = 0
    length: int = 0
    undecided: int = 0
    spans: list[Span] = field(default_factory=list)

    def add(self, span: Span) -> None:
        self.count += 1
        self.length += span.length
        self.undecided += len(span.doubtful)
        if len(self.spans) < self.most:
            self.spans.append(span)

    def merge(self, other: Damage) -> None:
        self.count += other.count
        self.length += other.length
        self.undecided += other.undecided
        self.spans += other.spans[:max(self.most - len(self.spans), 0)]
