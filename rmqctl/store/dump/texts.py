"""`dump` of small files: checkpoint pages, JSON files in ``config/``, text files."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from rmqctl.errors import FormatError
from rmqctl.formats import dledger, kinds
from rmqctl.formats.config import broker_identity, config_json, epoch
from rmqctl.formats.fixed import FirstOfPage
from rmqctl.formats.local import abort, lock
from rmqctl.formats.local.checkpoint import CHECKPOINT
from rmqctl.formats.timer.timer_check import TIMER_CHECK
from rmqctl.store.config import client_offsets
from rmqctl.store.dump.fields import Row, Target, field_row

MAX_TEXT = 256 << 20
"""Maximum bytes of a file that is read as one text."""
_MAX_PAGE = 1 << 20
_FATAL = (config_json.TRAILING_GARBAGE, config_json.INVALID_UTF8)


def _whole(target: Target, most: int = MAX_TEXT) -> bytes:
    if target.size > most:
        raise FormatError(f"{target.size:,} bytes are too many for such a file",
                          offset=most, path="size")
    return target.read(0, target.size)


def _refused(target: Target, error: FormatError) -> Row:
    return {**target.place(error.offset or 0), "type": "damaged", "size": target.size,
            "error": target.fault_of(error)}


def _page(target: Target, unit: FirstOfPage[Any], extra: tuple[str, ...] = ()) -> Iterator[Row]:
    """Yield the only record of a file that consists of one page."""
    try:
        data = _whole(target, _MAX_PAGE)
        record = unit.read(data)
    except FormatError as error:
        row = _refused(target, error)
        target.add_fields(row, unit.declaration, target.read(0, _MAX_PAGE), 0)
        yield row
        return
    row = {**target.place(0), "type": target.kind, **record._asdict(),
           **{name: getattr(record, name) for name in extra}}
    if not unit.rest_is_zero(data):
        row["error"] = target.fault("bytes other than zeros follow the fields",
                                    len(data) - len(data.lstrip(b"\0")), "rest")
    target.add_fields(row, unit.declaration, data, 0)
    yield row


def checkpoint_rows(target: Target) -> Iterator[Row]:
    """Yield the checkpoint's fields, and the store time from which recovery after an unclean
    shutdown would start.
    """
    return _page(target, CHECKPOINT, ("min_timestamp", "min_timestamp_index"))


def timercheck_rows(target: Target) -> Iterator[Row]:
    """Yield the fields of config/timercheck."""
    return _page(target, TIMER_CHECK)


def config_rows(target: Target) -> Iterator[Row]:
    """Yield one row per member of the JSON object, then one per oddity in the file."""
    try:
        data = _whole(target)
        value, oddities = config_json.parse(data)
    except FormatError as error:
        yield _refused(target, error)
        return
    members = value.items() if isinstance(value, dict) else [("", value)]
    start = target.options.start or 0
    for number, (name, member) in enumerate(members):
        if number >= start:
            yield {**target.place(0, number), "type": "member", "name": name, "value": member}
    yield from _oddity_rows(target, oddities)


def client_offset_rows(target: Target) -> Iterator[Row]:
    """Yield one row per queue, then the faults and oddities. For a file that no client can read,
    yield the reason and note how clients react.
    """
    try:
        rows, faults, oddities = client_offsets.parse(_whole(target))
    except FormatError as error:
        yield _refused(target, error)
        target.notes += filter(None, [client_offsets.instead(target.source.name)])
        return
    for number, row in enumerate(rows):
        if number >= (target.options.start or 0):
            yield {**target.place(0, number), "type": "client_offset", **row._asdict()}
    for fault in faults:
        path, _, reason = fault.partition(": ")
        yield {**target.place(0), "type": "damaged", "error": target.fault(reason, 0, path)}
    yield from _oddity_rows(target, oddities)


def _oddity_rows(target: Target, oddities: list[config_json.Oddity]) -> Iterator[Row]:
    for oddity in oddities:
        row = {**target.place(oddity.offset), "type": "oddity", "name": oddity.kind,
               "value": oddity.detail}
        if oddity.kind in _FATAL:
            row["error"] = target.fault(oddity.detail, oddity.offset, "$")
        yield row


def _text_rows(target: Target, parse: Callable[[bytes], Any],
               rows: Callable[[bytes, Any], list[tuple[Row, list[tuple[str, int, bytes]]]]],
               ) -> Iterator[Row]:
    """Yield a row for each part of a text file, with its position."""
    try:
        data = _whole(target, _MAX_PAGE)
        parsed = parse(data)
    except FormatError as error:
        row = _refused(target, error)
        if target.options.hex:
            raw = target.read(0, _MAX_PAGE)
            row["fields"] = [field_row("text", 0, raw, raw, full=target.options.full)]
        yield row
        return
    for number, (content, parts) in enumerate(rows(data, parsed)):
        if number < (target.options.start or 0):
            continue
        row = {**target.place(parts[0][1] if parts else 0, number), **content}
        if target.options.hex:
            row["fields"] = [field_row(name, position, raw, raw, full=target.options.full)
                             for name, position, raw in parts]
        yield row


def abort_rows(target: Target) -> Iterator[Row]:
    """Yield the process id, if the file contains one."""
    return _text_rows(target, abort.parse, lambda data, pid: [
        ({"type": "abort", "pid": pid}, [("pid", 0, data)] if data else [])])


def lock_rows(target: Target) -> Iterator[Row]:
    """Yield the text of the file as one row."""
    return _text_rows(target, lock.parse, lambda data, text: [
        ({"type": "lock", "text": text}, [("text", 0, data)])])


def epoch_rows(target: Target) -> Iterator[Row]:
    """Yield one row per epoch; ``end_offset`` is the start of the next epoch."""
    def rows(data: bytes, epochs: list[epoch.Epoch]) -> list[tuple[Row, list[Any]]]:
        lines = epoch.lines(data)
        ends = [entry.start_offset for entry in epochs[1:]] + [None]
        return [({"type": "epoch", **entry._asdict(), "end_offset": end},
                 [(f"entries[{number}]", line.at, line.raw)])
                for number, (entry, end, line) in enumerate(
                    zip(epochs, ends, lines[2:], strict=True))]

    return _text_rows(target, epoch.parse, rows)


def identity_rows(target: Target) -> Iterator[Row]:
    """Yield the parts of the broker's identity."""
    return _text_rows(target, broker_identity.parse, lambda data, identity: [
        ({"type": "broker_identity", **identity._asdict()}, broker_identity.pieces(data))])


def dledger_checkpoint_rows(target: Target) -> Iterator[Row]:
    """Yield the two indexes in DLedger's checkpoint: the index of the last entry, and the index of
    the last committed entry.
    """
    return _text_rows(target, dledger.parse_checkpoint, lambda data, values: [
        ({"type": "dledger_checkpoint", **values}, [("text", 0, data)])])


READERS: dict[str, Callable[[Target], Iterator[Row]]] = {
    kinds.CHECKPOINT: checkpoint_rows,
    kinds.TIMERCHECK: timercheck_rows,
    kinds.CONFIG: config_rows,
    kinds.CLIENT_OFFSETS: client_offset_rows,
    kinds.ABORT: abort_rows,
    kinds.LOCK: lock_rows,
    kinds.EPOCH: epoch_rows,
    kinds.BROKER_IDENTITY: identity_rows,
    kinds.DLEDGER_CHECKPOINT: dledger_checkpoint_rows,
}
