"""Options that choose messages, shared by the commands that list them."""

from __future__ import annotations

import re
from collections.abc import Iterable
from datetime import tzinfo
from typing import TYPE_CHECKING, Annotated, Literal, NamedTuple

import typer

from rmqctl.commands.shared.parsing import parse_offset, parse_time
from rmqctl.errors import UsageError

if TYPE_CHECKING:
    from rmqctl.output import Output
    from rmqctl.store import Store as OpenedStore
    from rmqctl.store.query.conditions import Condition

_CONDITION = re.compile(r"([^=!<>~]+)(==|!=|<=|>=|!~|=|<|>|~)(.*)", re.DOTALL)
# Named here and in store.conditions.TIMES: this module is read for --help, that one needs numpy.
_TIMES = ("born_timestamp", "store_timestamp")


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


def conditions(raw: Iterable[RawCondition] | None, tz: tzinfo) -> tuple[Condition, ...]:
    """Checked conditions; values of time fields may be written like any time. UsageError."""
    from rmqctl.store.query.conditions import Condition

    return tuple(Condition.of(one.field, one.operator, parse_time(one.value, tz=tz)
                              if one.field in _TIMES and "~" not in one.operator else one.value)
                 for one in raw or ())


Where = Annotated[
    list[RawCondition] | None,
    typer.Option(
        "--where",
        metavar="FIELD=VALUE",
        parser=parse_condition,
        help="Only messages whose field compares so: = != < <= > >=, ~ and !~ for a regular "
        "expression; property.NAME is one property. Repeatable, all must hold.",
    ),
]
Tag = Annotated[
    str | None,
    typer.Option("--tag", metavar="TAG", help="Only messages with this tag ('A || B': one of "
                                              "them)."),
]
Key = Annotated[
    str | None,
    typer.Option("--key", metavar="KEY", help="Only messages with this key, or this unique key."),
]
FromOffset = Annotated[
    int | None,
    typer.Option(
        "--from-offset",
        "--offset",
        metavar="N",
        parser=parse_offset,
        help="From this queue offset on (with --queue).",
    ),
]
Count = Annotated[
    int | None, typer.Option("--count", metavar="N", min=0, help="At most this many messages.")
]
ViewName = Literal["disk", "broker"]
View = Annotated[
    ViewName,
    typer.Option(
        "--view",
        help="disk: all that is intact on disk. broker: only what a broker would still have after "
        "a start, which ends the log at the first damage.",
    ),
]
AnswerView = Annotated[
    Literal["auto", "disk", "broker"],
    typer.Option(
        "--view",
        help="disk: all that is intact on disk. broker: only what a broker would still have after "
        "a start. auto: broker where the log is small (64 MiB), because it must be walked, else "
        "disk.",
    ),
]


def warn_of_cut(out: Output, store: OpenedStore, view: str) -> bool:
    """Says what the broker's view leaves out; whether it does: damage hides what lies behind."""
    from rmqctl.store.log.bounds import View as OpenedView
    from rmqctl.store.query.lookup import cut_by_broker

    if view != "broker":
        return False
    cut = cut_by_broker(OpenedView(store, view))
    if cut is not None:
        out.warn(f"a broker would end this log at {cut[0]}, at the first record it cannot read; "
                 f"records up to {cut[1]} are left out (--view disk shows what is there, "
                 "`rmqctl verify` what is wrong)")
    return cut is not None
