"""Code for all commands that print messages: rows and cells, problems, the exit code."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import tzinfo
from typing import TYPE_CHECKING, Any

import typer

from rmqctl.commands.shared.message_options import BRIEF, NARROW, MessageOptions
from rmqctl.errors import ExitCode
from rmqctl.output import Encoded, Output
from rmqctl.output.units import counted, time_text

if TYPE_CHECKING:
    from rmqctl.formats.local.message import Record
    from rmqctl.output.cells import Render
    from rmqctl.store.pages import Page
    from rmqctl.store.problems import Problem
    from rmqctl.store.projection import Projection
    from rmqctl.store.query.json_objects import JsonObjects

_MAX_NAMED = 5
_MIN_BY_COLUMN = 32
"""Minimum number of messages on a page at which creating JSON column by column is faster."""


def show_rows(out: Output, rows: Iterable[Mapping[str, Any] | Encoded], projection: Projection,
              tz: tzinfo, *, empty: str = "no messages") -> int:
    """Print rows of messages in the chosen format; return their number."""
    return out.rows(rows, projection.names, empty=empty, render=message_render(tz))


def message_render(tz: tzinfo) -> Render:
    """Return, by field name, the functions that make a message's fields human-readable."""
    def moment(millis: Any) -> str:
        return time_text(millis, tz)

    return {"store_timestamp": moment, "born_timestamp": moment, "keys": " ".join}


def rows_of(out: Output, pages: Iterable[Page],
            projection: Projection) -> Iterator[Mapping[str, Any] | Encoded]:
    """Yield the rows of all pages; for JSON output, a large page is yielded as encoded lines."""
    objects: JsonObjects | None = None
    for page in pages:
        if objects is None and out.is_json and len(page) >= _MIN_BY_COLUMN and (
                projection.redaction is None):
            from rmqctl.store.query.json_objects import JsonObjects

            objects = JsonObjects(projection)
        lines = objects.lines(page) if objects is not None and len(page) >= _MIN_BY_COLUMN else None
        if lines is not None:
            yield Encoded(lines, len(page))
        else:
            yield from projection.rows(page)


def show_records(out: Output, records: Sequence[Record], projection: Projection, tz: tzinfo,
                 faults: ReadFaults) -> None:
    """Print messages that a query found. For people, a single message gets all its fields."""
    from rmqctl.store.objects import FIELDS
    from rmqctl.store.pages import RecordPage
    from rmqctl.store.projection import DECODED

    pages = list(faults.judged([RecordPage(records)] if records else []))
    if len(records) == 1 and not out.is_data and projection.fields in (BRIEF, NARROW):
        decoding = projection.decoding
        all_fields = replace(projection, preview=0, fields=FIELDS if decoding is None else (
            *FIELDS, *DECODED))
        out.human().pairs(_worded(next(all_fields.rows(pages[0])), tz))
    else:
        show_rows(out, rows_of(out, pages, projection), projection, tz, empty="")


def _worded(row: Mapping[str, Any], tz: tzinfo) -> dict[str, Any]:
    """Return the fields of a message with times and flags as text, for people. ``properties_raw``
    is omitted because it repeats the properties.
    """
    from rmqctl.formats.local import sysflag

    shown = {name: value for name, value in row.items() if name != "properties_raw"}
    for name in ("born_timestamp", "store_timestamp"):
        shown[name] = f"{time_text(row[name], tz)} ({row[name]})"
    flag = row["sys_flag"]
    words = [sysflag.compression(flag), sysflag.transaction_type(flag)]
    named = ", ".join(word for word in words if word not in (None, "none"))
    shown["sys_flag"] = f"{flag} ({named})" if named else flag
    return shown


def not_found(out: Output, faults: ReadFaults, *reasons: str) -> None:
    """Print warnings that explain why a query found nothing; the exit code is then at least 1."""
    for reason in reasons:
        out.warn(reason)
    faults.has_findings = True


def undecided_text(count: int) -> str:
    """Return a note on undecided records, which may be messages and are not shown."""
    return (f"{counted(count, 'record')} not shown: it is not certain whether they are "
            "messages or part of a damaged body")


class ReadFaults:
    """The problems found while messages are read, for warnings and for the exit code."""

    def __init__(self, out: Output, show: MessageOptions | None = None) -> None:
        self._out, self._show = out, show
        self.has_findings = self.unreadable = False
        self._bad_crc: list[int] = []
        self._bad_crc_count = self.undecided = 0

    def report(self, problem: Problem) -> None:
        """Print a problem, and record it for the exit code."""
        if problem.is_fault:
            self._out.warn(problem.text)
            self.has_findings = True
            self.undecided += problem.undecided
            self.unreadable |= problem.kind == "unreadable"
        else:
            self._out.note(problem.text)

    def judged(self, pages: Iterable[Page]) -> Iterator[Page]:
        """Yield the pages, then warn about all messages in them that have a CRC mismatch."""
        for page in pages:
            checked = page.numbers("crc_ok")
            if not checked.all():
                bad = page.numbers("physical_offset")[~checked].tolist()
                self._bad_crc_count += len(bad)
                self._bad_crc += bad[:max(_MAX_NAMED - len(self._bad_crc), 0)]
            yield page
        self._tell_bad_crc()

    def _tell_bad_crc(self) -> None:
        if not self._bad_crc_count:
            return
        more = self._bad_crc_count - len(self._bad_crc)
        places = ", ".join(map(str, self._bad_crc)) + (f" and {more} more" if more else "")
        counted = "1 message has" if self._bad_crc_count == 1 else (
            f"{self._bad_crc_count} messages have")
        self._out.warn(f"{counted} a body CRC mismatch (crc_ok false): physical offset {places}")
        self._bad_crc_count = 0
        self._bad_crc.clear()
        self.has_findings = True

    def end(self) -> None:
        """Print notes on undecoded bodies and undecided records. Exit with code 5 if data could not
        be read, with 1 if data was damaged.
        """
        if self._show is not None:
            self._show.tell_undecoded(self._out)
        if self.undecided:
            self._out.warn(undecided_text(self.undecided))
        if self.unreadable:
            raise typer.Exit(int(ExitCode.IO))
        if self.has_findings:
            raise typer.Exit(int(ExitCode.FINDINGS))
