"""Options of the commands that show messages: which ones, and what of them."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, tzinfo
from typing import TYPE_CHECKING, Annotated, NamedTuple

import typer

from rmqctl.commands.app.option_groups import OptionGroup
from rmqctl.commands.shared.options import Body, Queue, Since, Topic, Until, Zone
from rmqctl.errors import UsageError
from rmqctl.formats import bodies
from rmqctl.output import Output
from rmqctl.parse_values import parse_offset, parse_time, parse_time_range

if TYPE_CHECKING:
    from rmqctl.store.projection import Projection
    from rmqctl.store.query.conditions import Condition
    from rmqctl.store.query.select import Selection

_CONDITION = re.compile(r"([^=!<>~]+)(==|!=|<=|>=|!~|=|<|>|~)(.*)", re.DOTALL)
_TIMES = ("born_timestamp", "store_timestamp")

_CODECS = f"{', '.join(bodies.CODEC_NAMES[:-1])} or {bodies.CODEC_NAMES[-1]}"

BRIEF = ("queue_offset", "physical_offset", "store_timestamp", "topic", "queue_id", "tags", "keys",
         "total_size", "body")
"""The columns for people when no fields were named."""
_PREVIEW, _LEAST_PREVIEW = 64, 16
_OTHER_COLUMNS = 130
"""About what the brief columns without the body take on a terminal."""

Fields = Annotated[str | None, typer.Option(
    "--fields", metavar="A,B,C",
    help="Only these fields of the message object, in this order; property.NAME is one "
    "property.")]


class RawCondition(NamedTuple):
    """A condition as typed."""

    field: str
    operator: str
    value: str


def parse_condition(text: str | RawCondition) -> RawCondition:
    """``FIELD=VALUE`` with one of ``= != < <= > >= ~ !~``; UsageError shows the text."""
    if isinstance(text, RawCondition):
        return text
    match = _CONDITION.fullmatch(text)
    if match is None or not match.group(1).strip():
        raise UsageError(f"{text!r} is not of the form FIELD=VALUE; the comparisons are = != < <= "
                         "> >= and ~ !~ (regular expression)")
    field, operator, value = match.groups()
    return RawCondition(field.strip(), "=" if operator == "==" else operator, value)


def condition_of(raw: RawCondition, tz: tzinfo) -> Condition:
    """The condition, checked; values of time fields may be written like any time. UsageError."""
    from rmqctl.store.query.conditions import Condition

    field, operator, value = raw
    return Condition.of(field, operator, parse_time(value, tz=tz)
                        if field in _TIMES and "~" not in operator else value)


@dataclass(frozen=True, kw_only=True)
class SelectOptions(OptionGroup):
    """Which messages."""

    topic: Topic = None
    queue: Queue = None
    from_offset: Annotated[int | None, typer.Option(
        "--offset", "--from-offset", metavar="N", parser=parse_offset,
        help="From this queue offset on (with --queue).")] = None
    count: Annotated[int | None, typer.Option(
        "--limit", "--count", metavar="N", min=0, help="At most this many messages.")] = None
    from_phy: Annotated[int | None, typer.Option(
        "--from-phy", metavar="OFFSET", parser=parse_offset,
        help="From this physical offset on.")] = None
    to_phy: Annotated[int | None, typer.Option(
        "--to-phy", metavar="OFFSET", parser=parse_offset,
        help="Up to before this physical offset.")] = None
    since: Since = None
    until: Until = None
    tag: Annotated[str | None, typer.Option(
        "--tag", metavar="TAG", help="Only messages with this tag ('A || B': one of them).",
    )] = None
    key: Annotated[str | None, typer.Option(
        "--key", "-k", metavar="KEY",
        help="Only messages with this key, or this unique key.")] = None
    where: Annotated[list[RawCondition] | None, typer.Option(
        "--where", metavar="FIELD=VALUE", parser=parse_condition,
        help="Only messages whose field compares so: = != < <= > >=, ~ and !~ for a regular "
        "expression; property.NAME is one property. Repeatable, all must hold.")] = None

    def selection(self, tz: tzinfo) -> Selection:
        """As the library takes it; times without a zone are in ``tz``. UsageError."""
        from rmqctl.store.query.select import Selection

        begin, end = parse_time_range(self.since, self.until, tz=tz)
        return Selection(self.topic, self.queue, self.from_offset, self.count, self.from_phy,
                         self.to_phy, begin, end, self.tag, self.key, self._conditions(tz))

    def _conditions(self, tz: tzinfo) -> tuple[Condition, ...]:
        return tuple(condition_of(raw, tz) for raw in self.where or ())


#: The options of `SelectOptions` for what reads a log in its order.
IN_LOG_ORDER = "topic queue since until tag key where"


@dataclass(frozen=True, kw_only=True)
class MessageOptions(OptionGroup):
    """What is shown of each message."""

    fields: Fields = None
    body: Body = "auto"
    decompress: Annotated[bool, typer.Option(
        "--decompress", help=f"Undo {_CODECS} where the sys_flag says so.")] = False
    tz: Zone = UTC

    def projection(self, out: Output, more: Sequence[str] = ()) -> Projection:
        """The fields to make: all for programs, a few for people, or those the user named.

        ``more``: fields a command adds to those of the message object, which may be named as
        well. UsageError for a field there is not.
        """
        from rmqctl.store.objects import FIELDS
        from rmqctl.store.projection import Projection, checked_fields

        if self.fields is not None:
            named = checked_fields(self.fields.split(","), more)
            return Projection(named, self.body, self.decompress)
        if out.is_data:
            return Projection(FIELDS, self.body, self.decompress)
        preview = _preview(out) if self.body == "auto" else 0
        return Projection(BRIEF, self.body, self.decompress, preview=preview)


def _preview(out: Output) -> int:
    """Bytes of a body to show: what is left of a line of the terminal."""
    if out.format != "table":
        return _PREVIEW
    return min(max(out.human().width - _OTHER_COLUMNS, _LEAST_PREVIEW), _PREVIEW)
