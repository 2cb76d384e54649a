"""Where a repair has ended the log, though what lies beyond that end is still in the file.

A broker that cuts its log leaves the bytes, and rows and index entries that lead to them
(spec: recovery.md §3); so does the repair that does what a broker does. It notes the end in
``.rmqctl/log-end.json``, with a checksum of what lies beyond it: as long as they are as they were,
nothing has been written since, and they are no part of the log. Whoever appends overwrites them,
and the note says nothing any more.
"""

from __future__ import annotations

import json
import os
import zlib
from typing import NamedTuple

from rmqctl.errors import FormatError, StoreIOError
from rmqctl.scan.source import FileSource, Source
from rmqctl.store.log.commit_log import CommitLog
from rmqctl.store.log.end import used_size
from rmqctl.store.store_settings import FOLDER

NOTE = f"{FOLDER}/log-end.json"
_FORMAT = 1
_MOST = 4096
_BLOCK = 1 << 16


class CutOff(NamedTuple):
    """The log ends at physical offset ``end``; what was cut off lies up to ``used``, and ``crc``
    is the CRC-32 of it, less blocks of zeros.
    """

    end: int
    used: int
    crc: int

    def build(self) -> bytes:
        """The note's content."""
        return json.dumps({"format": _FORMAT, **self._asdict()}).encode() + b"\n"


def cut_at(log: CommitLog, end: int) -> CutOff:
    """What lies beyond ``end`` in its file now. StoreIOError."""
    place = log.locate(end)
    if place is None:
        return CutOff(end, end, 0)
    source, position = place
    used = max(position, used_size(source))
    return CutOff(end, source.base + used, _crc(source, position, used))


def cut_off(root: str, log: CommitLog) -> CutOff | None:
    """The note of the store at ``root``, if its log is still as it was then; else None.

    A note that cannot be read, or is none, counts as not there.
    """
    try:
        with FileSource(os.path.join(root, NOTE)) as source:
            from rmqctl.formats.config import config_json

            document = config_json.parse(source.read(0, _MOST)).value
        noted = CutOff(*(int(document[name]) for name in CutOff._fields))
        if document["format"] != _FORMAT or any(file.base > noted.end for file in log.files):
            return None
        return noted if cut_at(log, noted.end) == noted else None
    except (StoreIOError, FormatError, KeyError, TypeError, ValueError,
            OverflowError):
        return None


def _crc(source: Source, start: int, end: int) -> int:
    """Of the blocks that are not all zeros, each after its position: holes cost nothing."""
    crc, position = 0, start
    while position < end:
        used = source.next_data(position)
        position += max(0, used - position) // _BLOCK * _BLOCK
        data = source.read(position, max(0, min(_BLOCK, end - position)))
        if data.strip(b"\0"):
            crc = zlib.crc32(data, zlib.crc32(b"%d" % position, crc))
        position += _BLOCK
    return crc
