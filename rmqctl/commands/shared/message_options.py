"""Options of commands that show messages: which messages, and which of their fields."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import UTC, tzinfo
from functools import cached_property
from typing import TYPE_CHECKING, Annotated

import typer

from rmqctl.commands.app.option_groups import OptionGroup
from rmqctl.commands.shared.options import SHOWN, Body, Queue, Since, Topic, Until, Zone
from rmqctl.errors import UsageError
from rmqctl.formats import bodies
from rmqctl.lazy_dataclass import dataclass
from rmqctl.output import Output
from rmqctl.output.units import counted
from rmqctl.parse_values import (
    RawCondition,
    parse_condition,
    parse_offset,
    parse_time_range,
)

if TYPE_CHECKING:
    from rmqctl.store.decoded import Decoding
    from rmqctl.store.projection import Projection
    from rmqctl.store.query.conditions import Condition
    from rmqctl.store.query.select import Selection


_CODECS = f"{', '.join(bodies.CODEC_NAMES[:-1])} or {bodies.CODEC_NAMES[-1]}"

NARROW = ("queue_offset", "physical_offset", "store_timestamp", "topic", "queue_id", "tags", "keys",
          "total_size", "body")
BRIEF = (*NARROW[:-2], "offset_msg_id", "unique_key", *NARROW[-2:])
"""Columns of messages for people if ``--fields`` is not given. On a narrow terminal, `NARROW` is
used, without message ids.
"""
_WIDE_COLUMNS = 150
_MAX_PREVIEW, _MIN_PREVIEW = 64, 16
_OTHER_COLUMNS = 130
"""Approximate width in characters of all columns in `BRIEF` except the body."""

Fields = Annotated[str | None, typer.Option(
    "--fields", metavar="A,B,C",
    help="Show only these fields, in this order; property.NAME is a property, body.NAME a field of "
         "the decoded body.")]


def _by_hand(ctx: typer.Context, param: typer.CallbackParam, value: str | None) -> str | None:
    """Raise UsageError if ``--decode python:…`` comes from the configuration file or the
    environment. Such a decoder runs code, and other users may be able to change these places.
    """
    source = ctx.get_parameter_source(param.name or "")
    if value is not None and "python:" in value and (
            source is None or source.name != "COMMANDLINE"):
        raise UsageError(f"--decode {value}: python: runs code and can only be given on the "
                         "command line")
    return value


Decode = Annotated[str | None, typer.Option(
    "--decode", metavar="NAME", show_default=False, callback=_by_hand, rich_help_panel=SHOWN,
    help="Decode bodies: auto, json, gbk, gzip, msgpack, hessian, avro:SCHEMA, protobuf:DESC#TYPE, "
         "python:m.f.")]


Redact = Annotated[bool, typer.Option(
    "--redact", rich_help_panel=SHOWN, help="Replace bodies, keys, property values, addresses and "
                                            "ids with digests, comparable only within this run.")]
RedactKey = Annotated[str | None, typer.Option(
    "--redact-key", metavar="FILE", show_default=False, rich_help_panel=SHOWN,
    help="File with a secret that makes the digests of several --redact runs comparable.")]


@dataclass(frozen=True, kw_only=True)
class SelectOptions(OptionGroup):
    """Options that select messages."""

    topic: Topic = None
    queue: Queue = None
    from_offset: Annotated[int | None, typer.Option(
        "--offset", "--from-offset", metavar="N", parser=parse_offset,
        help="First queue offset (with --queue).")] = None
    count: Annotated[int | None, typer.Option(
        "--limit", "--count", metavar="N", min=0, help="At most this many messages.")] = None
    from_phy: Annotated[int | None, typer.Option(
        "--from-phy", metavar="OFFSET", parser=parse_offset,
        help="First physical offset (inclusive).")] = None
    to_phy: Annotated[int | None, typer.Option(
        "--to-phy", metavar="OFFSET", parser=parse_offset,
        help="Last physical offset (exclusive).")] = None
    since: Since = None
    until: Until = None
    tag: Annotated[str | None, typer.Option(
        "--tag", metavar="TAG", help="Only messages with this tag ('A || B' for several).",
    )] = None
    key: Annotated[str | None, typer.Option(
        "--key", "-k", metavar="KEY",
        help="Only messages with this key or unique key.")] = None
    where: Annotated[list[RawCondition] | None, typer.Option(
        "--where", metavar="FIELD=VALUE", parser=parse_condition,
        help="FIELD, property.NAME or body.NAME with = != < <= > >= ~ !~ (regular expression); "
             "repeatable, all match.")] = None

    def selection(self, tz: tzinfo, decoding: Callable[[], Decoding] | None = None) -> Selection:
        """Return these options as a selection of messages. Raises: UsageError.

        * ``tz``: time zone of times without a zone
        * ``decoding``: returns the decoder of bodies for conditions on fields of the body (None:
          such conditions are not allowed)
        """
        from rmqctl.store.query.select import Selection

        begin, end = parse_time_range(self.since, self.until, tz=tz)
        return Selection(self.topic, self.queue, self.from_offset, self.count, self.from_phy,
                         self.to_phy, begin, end, self.tag, self.key,
                         self._conditions(tz, decoding))

    def _conditions(self, tz: tzinfo, decoding: Callable[[], Decoding] | None) -> tuple[
            Condition, ...]:
        from rmqctl.store.query.conditions import read_condition

        return tuple(read_condition(raw, tz, decoding) for raw in self.where or ())


#: The options of `SelectOptions` for commands that read the log in physical order.
IN_LOG_ORDER = "topic queue since until tag key where"


@dataclass(frozen=True, kw_only=True)
class MessageOptions(OptionGroup):
    """Options for how messages are shown: fields, bodies, digests, time zone."""

    fields: Fields = None
    body: Body = "auto"
    decompress: Annotated[bool, typer.Option(
        "--decompress", rich_help_panel=SHOWN,
        help=f"Decompress bodies ({_CODECS}) if the sys_flag says so.")] = False
    decode: Decode = None
    redact: Redact = False
    redact_key: RedactKey = None
    tz: Zone = UTC

    @cached_property
    def _decoding(self) -> Decoding:
        return decoding_of(self.decode)

    def decoding(self) -> Decoding:
        """Return the decoder of bodies for ``--decode`` (default: ``auto``); every call returns the
        same object. Raises: UsageError, StoreIOError, MissingExtraError.
        """
        return self._decoding

    def tell_undecoded(self, out: Output) -> None:
        """Print the number of bodies that could not be decoded, if decoding was requested."""
        if "_decoding" in self.__dict__:
            tell_undecoded(out, self._decoding, redact=self.redact)

    def projection(self, out: Output, more: Sequence[str] = ()) -> Projection:
        """Return the fields to show: those named by ``--fields``. By default, programs get all
        fields and people get a few.

        ``more``: fields that the command adds to a message; ``--fields`` may also name them.
        Raises: UsageError for an unknown field.
        """
        from rmqctl.store.objects import FIELDS
        from rmqctl.store.projection import DECODED, Projection, checked_fields, is_decoded

        redaction = None
        if self.redact or self.redact_key is not None:
            from rmqctl.store.redaction import redaction_of

            redaction = redaction_of(self.redact_key, wanted=self.redact)
        decoding = None if self.decode is None else self.decoding()
        if self.fields is not None:
            named = checked_fields(self.fields.split(","), (*more, *DECODED))
            if any(map(is_decoded, named)):
                decoding = self.decoding()
            return Projection(named, self.body, self.decompress, decoding=decoding,
                              redaction=redaction)
        if out.is_data:
            return Projection(FIELDS if decoding is None else (*FIELDS, *DECODED), self.body,
                              self.decompress, decoding=decoding, redaction=redaction)
        preview = _preview(out) if self.body == "auto" else 0
        wide = out.format != "table" or out.human().width >= _WIDE_COLUMNS
        return Projection(BRIEF if wide else NARROW, self.body, self.decompress, preview=preview,
                          decoding=decoding, redaction=redaction)


def decoding_of(name: str | None) -> Decoding:
    """Return the decoder of bodies for the value ``name`` of ``--decode`` (None: ``auto``). Raises:
    UsageError, StoreIOError, MissingExtraError.
    """
    from rmqctl.ext.payloads.decoding import AUTO, Decoding

    return Decoding(name or AUTO)


def tell_undecoded(out: Output, decoding: Decoding, *, redact: bool = False) -> None:
    """Print the number of bodies that were not decoded. Unless ``redact`` is set, also print the
    offset and the problem of the first of these bodies.
    """
    if decoding.problems:
        first = "" if redact else f", the first at {decoding.first_problem}"
        out.note(f"{counted(decoding.problems, 'body', 'bodies')} not decoded with --decode "
                 f"{decoding.spec}{first}")
    if decoding.unknown:
        out.note(f"{counted(decoding.unknown, 'body', 'bodies')} left as text or bytes: neither "
                 "JSON nor gzip, the formats that --decode auto detects")


def _preview(out: Output) -> int:
    """Return the number of bytes of a body that fit in a terminal line after other columns."""
    if out.format != "table":
        return _MAX_PREVIEW
    return min(max(out.human().width - _OTHER_COLUMNS, _MIN_PREVIEW), _MAX_PREVIEW)
