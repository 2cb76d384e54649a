"""Options of queries for the queue offset at a given time, and output of the answer."""

from __future__ import annotations

from datetime import tzinfo
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from rmqctl.broker.versions import NEWEST, release_of
from rmqctl.commands.app.option_groups import OptionGroup
from rmqctl.commands.shared.options import RequiredQueue, RequiredTopic
from rmqctl.lazy_dataclass import dataclass
from rmqctl.output.units import time_text
from rmqctl.parse_values import parse_time

if TYPE_CHECKING:
    from rmqctl.broker.offset_by_time import TimeAnswer
    from rmqctl.ext.tiered.as_broker.router import RoutedTime


@dataclass(frozen=True, kw_only=True)
class TimeQuery(OptionGroup):
    """Options of a query for the queue offset at a given time. Subclasses add rules for choosing
    the message, which differ between stores and tiers.
    """

    topic: RequiredTopic
    queue: RequiredQueue
    time: Annotated[str, typer.Option(
        "--time", metavar="TIME",
        help="Store time: ISO-8601, epoch ms or s, yyyyMMdd, or relative (-2h, -7d).")]
    boundary: Literal["lower", "upper"] = "lower"
    like: str = NEWEST
    messages: Annotated[bool, typer.Option(
        "--messages", help="Show the messages from this offset on instead of the offset.")] = False
    count: Annotated[int, typer.Option(
        "--limit", "--count", metavar="N", min=1,
        help="Number of messages to show with --messages.")] = 1

    @property
    def upper(self) -> bool:
        return self.boundary == "upper"

    def when(self, tz: tzinfo) -> int:
        """Return the time in epoch ms. Raises: UsageError."""
        return parse_time(self.time, tz=tz)


@dataclass(frozen=True, kw_only=True)
class StoreTimeQuery(TimeQuery):
    """Options of a query for the queue offset at a given time in a store."""

    boundary: Annotated[Literal["lower", "upper"], typer.Option(
        "--boundary", help="lower: the first message stored at this time or later. upper: the last "
                           "one at this time or earlier.")] = "lower"
    like: Annotated[str, typer.Option(
        "--broker-version", "--like", metavar="VERSION", parser=release_of,
        help="Release whose rule to follow. Before 5.1.1: the nearest message, in a file chosen by "
             "modification time.")] = NEWEST


@dataclass(frozen=True, kw_only=True)
class TierTimeQuery(TimeQuery):
    """Options of a query for the queue offset at a given time in a tier."""

    boundary: Annotated[Literal["lower", "upper"], typer.Option(
        "--boundary", help="lower: first message at this time or later. upper: last message at "
                           "exactly this time; see --broker-version.")] = "lower"
    like: Annotated[Literal["5.3.3", "5.2.0"], typer.Option(
        "--broker-version", "--like",
        help="--boundary upper between two messages: the later one (5.3.3), or the earlier one "
             "(5.2.0, stores).")] = "5.3.3"


def time_document(query: TimeQuery, when: int, answer: TimeAnswer | RoutedTime,
                  **whose: Any) -> dict[str, Any]:
    """Return the answer as a JSON object. ``whose``: fields that name its rule or source."""
    record = answer.record
    return {
        "queue_offset": answer.queue_offset, "topic": query.topic, "queue_id": query.queue,
        "time": when, "boundary": query.boundary, **whose,
        "min_offset": answer.min_offset, "max_offset": answer.max_offset,
        "store_timestamp": None if record is None else record.store_timestamp,
        "physical_offset": None if record is None else record.physical_offset,
    }


def time_in_words(answer: TimeAnswer | RoutedTime, when: int, tz: tzinfo,
                  where: str) -> dict[str, str]:
    """Return the answer as human-readable text. ``where``: text about the position of the message;
    ``{}`` in the text is replaced with the physical offset.
    """
    state = "none yet" if answer.queue_offset >= answer.max_offset else "no readable message"
    if answer.record is not None:
        state = (f"stored {time_text(answer.record.store_timestamp, tz)}, "
                 f"{where.format(answer.record.physical_offset)}")
    return {"requested time": time_text(when, tz), "queue offset": str(answer.queue_offset),
            "message": state, "min offset": str(answer.min_offset),
            "max offset": str(answer.max_offset)}
