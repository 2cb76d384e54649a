"""Messages affected by damage or by a plan: their number, topics and store times.

All commands use the same JSON object (``impact``) and the same line of text.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import field
from typing import Any

from rmqctl.lazy_dataclass import dataclass
from rmqctl.parse_values import time_text
from rmqctl.phrases import Joined, Phrase, counted

_MAX_TOPICS = 3


@dataclass(frozen=True, slots=True)
class Impact:
    """Affected messages.

    * ``messages``: their number
    * ``of``: number of all messages; None if not counted
    * ``topics``: number of affected messages by topic; messages of unknown topics are not counted
    * ``earliest``, ``latest``: range of their store times (ms); None if unknown
    * ``complete``: whether topics and times include all affected messages, not only the first ones
    """

    messages: int
    of: int | None = None
    topics: Mapping[str, int] = field(default_factory=dict)
    earliest: int | None = None
    latest: int | None = None
    complete: bool = True

    def as_dict(self) -> dict[str, Any]:
        """Return the JSON object; times are ISO-8601 in the selected time zone."""
        return {"messages": self.messages, "of": self.of, "topics": _by_count(self.topics),
                "from": None if self.earliest is None else time_text(self.earliest),
                "to": None if self.latest is None else time_text(self.latest),
                "complete": self.complete}

    def in_words(self) -> Phrase:
        """Return ``affected: 20 of 274 messages (TopicA 11, TopicB 9), stored from … to …``."""
        return Phrase("affected: {what}", what=self.concerned)

    @property
    def concerned(self) -> Phrase:
        """Return the line of `in_words` without the leading ``affected:``."""
        count = counted(self.messages, "message") if self.of is None else Phrase(
            "{some:,} of {count:,} message", "{some:,} of {count:,} messages",
            some=self.messages, count=self.of)
        topics = _by_count(self.topics)
        unknown = self.messages - sum(topics.values())
        if topics:
            named = [f"{topic} {count:,}" for topic, count in list(topics.items())[:_MAX_TOPICS]]
            more = len(topics) - _MAX_TOPICS
            if more > 0:
                named.append(counted(more, "more topic"))
            if unknown > 0 and self.complete:
                named.append(Phrase("(unknown) {some:,}", some=unknown))
            listed = Joined(", ", named)
            count = Phrase("{what} ({names})", what=count, names=listed if self.complete else
                           Phrase("of the first: {topics}", topics=listed))
        if self.earliest is None and self.latest is None:
            return count
        when = self._when()
        return Joined(", ", [count, Phrase("stored {when}", when=when) if self.complete else
                             Phrase("the first stored {when}", when=when)])

    def _when(self) -> Phrase:
        earliest = "" if self.earliest is None else time_text(self.earliest)
        latest = "" if self.latest is None else time_text(self.latest)
        if earliest == latest:
            return Phrase("at {time}", time=earliest)
        if earliest and latest:
            return Phrase("from {earliest} to {latest}", earliest=earliest, latest=latest)
        return (Phrase("after {time}", time=earliest) if earliest else
                Phrase("before {time}", time=latest))


def span(times: Iterable[tuple[int | None, int | None]]) -> tuple[int | None, int | None]:
    """Return the earliest start and the latest end of several ranges of store times (ms).

    If the start of any range is unknown (None), the earliest start is None; the same holds for
    ends.
    """
    pairs = list(times)
    starts, ends = [start for start, _ in pairs], [end for _, end in pairs]
    return _extreme(starts, min), _extreme(ends, max)


def _extreme(times: list[int | None], choose: Callable[[list[int]], int]) -> int | None:
    definite = [time for time in times if time is not None]
    return choose(definite) if definite and len(definite) == len(times) else None


def _by_count(topics: Mapping[str, int]) -> dict[str, int]:
    return dict(sorted(topics.items(), key=lambda item: (-item[1], item[0])))
