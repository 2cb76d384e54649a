"""The note that a repair writes when it truncates a log. It is kept while the truncated bytes are
still in the file.

If a broker or a repair truncates a log, the truncated bytes remain, and so do the entries that
point to them (spec: recovery.md §3). A repair notes the new end of the log in
``.rmqctl/log-end.json``, with a checksum of the truncated bytes. If the checksum still matches,
nothing was written since the repair, and the truncated bytes are not part of the log.

Before a writer appends messages, it overwrites the truncated bytes with zeros. Meanwhile the note
names a copy of these bytes, and each byte in the file is either zero or the same as in the copy.
The note is deleted before the first message is written, when no entry points beyond the end of the
log.
"""

from __future__ import annotations

import json
import os
import zlib
from typing import Any, NamedTuple

import numpy as np

from rmqctl import vfs
from rmqctl.errors import FormatError, StoreIOError
from rmqctl.scan.source import FileSource, Source
from rmqctl.store.log.commit_log import CommitLog
from rmqctl.store.log.end import used_size
from rmqctl.store.store_settings import FOLDER

NOTE = f"{FOLDER}/log-end.json"
COPIES = f"{FOLDER}/aside"
_FORMAT = 1
_MAX_CHECKPOINT_SIZE = 4096
_BLOCK = 1 << 16


class CutOff(NamedTuple):
    """A log that was truncated at physical offset ``end``.

    ``used``: physical offset after the truncated bytes.
    ``crc``: CRC-32 of the truncated bytes, without blocks of zeros.
    """

    end: int
    used: int
    crc: int

    def build(self, copy: str | None = None) -> bytes:
        """Return the content of the note.

        ``copy``: path of the copy of the bytes that are being overwritten with zeros; below
        `COPIES`, relative to the store.
        """
        more = {} if copy is None else {"copy": copy}
        return json.dumps({"format": _FORMAT, **self._asdict(), **more}).encode() + b"\n"


def cut_at(log: CommitLog, end: int) -> CutOff:
    """Describe the truncated bytes that follow ``end`` in its file.

    Raises: StoreIOError.
    """
    place = log.locate(end)
    if place is None:
        return CutOff(end, end, 0)
    source, position = place
    used = max(position, used_size(source))
    return CutOff(end, source.base + used, _crc(source, position, used))


def cut_off(root: str, log: CommitLog) -> CutOff | None:
    """Return the content of the note of the store at ``root``; None if the note is missing,
    unreadable or invalid, or no longer matches the log.
    """
    try:
        with FileSource(os.path.join(root, NOTE)) as source:
            from rmqctl.formats.config import config_json

            document = config_json.parse(source.read(0, _MAX_CHECKPOINT_SIZE)).value
        noted = CutOff(*(int(document[name]) for name in CutOff._fields))
        if document["format"] != _FORMAT or any(file.base > noted.end for file in log.files):
            return None
        now = cut_at(log, noted.end)
        return now if now == noted or _is_being_cleared(root, log, now, document) else None
    except (StoreIOError, FormatError, KeyError, TypeError, ValueError,
            OverflowError):
        return None


def _is_being_cleared(root: str, log: CommitLog, now: CutOff, document: dict[str, Any]) -> bool:
    """Return whether each byte from ``now.end`` to ``now.used`` is zero, or the same as in the copy
    that the note names.
    """
    copy = document.get("copy")
    if not isinstance(copy, str) or vfs.normpath(copy) != copy or not copy.startswith(
            f"{COPIES}/"):
        return False
    place = log.locate(now.end)
    with FileSource(os.path.join(root, copy)) as kept:
        if place is None or now.used - now.end > kept.size:
            return False
        source, position = place
        for start in range(0, now.used - now.end, _BLOCK):
            length = min(_BLOCK, now.used - now.end - start)
            current = np.frombuffer(source.read(position + start, length), np.uint8)
            saved = np.frombuffer(kept.read(start, length), np.uint8)
            if len(current) != len(saved) or bool(((current != saved) & (current != 0)).any()):
                return False
    return True


def _crc(source: Source, start: int, end: int) -> int:
    """Return the CRC of all nonzero blocks, including their positions; holes are not read."""
    crc, position = 0, start
    while position < end:
        used = source.next_data(position)
        position += max(0, used - position) // _BLOCK * _BLOCK
        data = source.read(position, max(0, min(_BLOCK, end - position)))
        if data.strip(b"\0"):
            crc = zlib.crc32(data, zlib.crc32(b"%d" % position, crc))
        position += _BLOCK
    return crc
