"""Read records from JSON lines that `read`, `carve` or `pipeline export` wrote."""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator

from rmqctl.engine.input.lines import InputError, Line, open_lines
from rmqctl.engine.input.objects import Exact
from rmqctl.formats.local.message import Record
from rmqctl.repair.sources.encode import encoded
from rmqctl.repair.sources.records import Unused

_TOGETHER = 256
_IS = re.compile(r": is .*, but the .*")
_COLUMN = re.compile(r"column \d+: ")


def records(path: str, unused: Unused) -> Iterator[tuple[str, bytes]]:
    """Yield (description of the position, record bytes) for the message on each line. Raises:
    StoreIOError.
    """
    exact = Exact()
    with open_lines(path) as reader:
        for group in reader.groups():
            for start in range(0, len(group), _TOGETHER):
                part = group[start:start + _TOGETHER]
                for (number, _), record in zip(part, _of(part, exact, path, unused), strict=True):
                    if record is not None:
                        where = f"{path} line {number}"
                        try:
                            yield where, encoded(record)
                        except (struct.error, ValueError) as error:
                            unused.add(f"a record cannot have these values: {error}", where)


def _of(part: list[tuple[int, Line]], exact: Exact, path: str, unused: Unused) -> list[
        Record | None]:
    try:
        return list(exact.lines([line for _, line in part]))
    except InputError:
        pass
    records: list[Record | None] = []
    for number, line in part:
        record = None
        try:
            record = exact.line(line)
        except InputError as error:
            reason = _IS.sub(" contradicts the other fields", _COLUMN.sub("", str(error)))
            unused.add(reason, f"{path} line {number}")
        records.append(record)
    return records
